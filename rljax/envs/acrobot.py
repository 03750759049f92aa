"""Acrobot-v1 in JAX, equal to Gymnasium's step by step: swing the tip of two links above the bar.

Sutton (1996), "Generalization in Reinforcement Learning: Successful Examples Using Sparse Coarse
Coding", with the equations of motion of Sutton and Barto (1998), section 11.3, and one Runge-Kutta
step of 0.2 s. Reward -1 per step, 0 for the one that gets there; truncated after 500 steps.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Array, Discrete, Env, EnvSpec, Key, Step

GRAVITY = 9.8
MASS = 1.0  # of each link
LENGTH = 1.0  # of each link
CENTRE = 0.5  # of mass, from the link's joint
INERTIA = 1.0  # of each link
TIME_STEP = 0.2  # seconds
MAX_VELOCITY_1 = 4 * math.pi
MAX_VELOCITY_2 = 9 * math.pi
MAX_EPISODE_STEPS = 500


class Physics(NamedTuple):
    """Angles of both joints, the first from hanging down, the second relative to the first link."""

    angle_1: Array  # float32 []: radians in [-π, π]
    angle_2: Array
    velocity_1: Array  # float32 []
    velocity_2: Array


class AcrobotState(NamedTuple):
    physics: Physics
    time: Array  # int32 []: steps taken in this episode


def make() -> Env:
    """Acrobot-v1 as an `Env`; observations float32 [6], actions 0, 1, 2: torque -1, 0, +1.

    >>> env = make()
    >>> state, observation = env.reset(jax.random.key(0))
    >>> state, step = env.step(jax.random.key(1), state, jnp.int32(1))
    >>> float(step.reward)
    -1.0
    """
    spec = EnvSpec(
        name="Acrobot-v1",
        observation_shape=(6,),
        observation_dtype=np.float32,
        action_space=Discrete(3),
        max_episode_steps=MAX_EPISODE_STEPS,
    )
    return Env(reset, step, spec)


def observe(physics: Physics) -> Array:
    """Cosine and sine of both angles, and the velocities."""
    angle_1, angle_2, velocity_1, velocity_2 = physics
    cosines_and_sines = jnp.cos(angle_1), jnp.sin(angle_1), jnp.cos(angle_2), jnp.sin(angle_2)
    return jnp.stack([*cosines_and_sines, velocity_1, velocity_2])


def reset(key: Key) -> tuple[AcrobotState, Array]:
    physics = Physics(*jax.random.uniform(key, (4,), jnp.float32, -0.1, 0.1))
    return AcrobotState(physics, jnp.int32(0)), observe(physics)


def step(key: Key, state: AcrobotState, action: Array) -> tuple[AcrobotState, Step]:
    del key  # the dynamics are deterministic
    angle_1, angle_2, velocity_1, velocity_2 = runge_kutta(state.physics, action - 1.0)
    physics = Physics(
        wrap(angle_1),
        wrap(angle_2),
        jnp.clip(velocity_1, -MAX_VELOCITY_1, MAX_VELOCITY_1),
        jnp.clip(velocity_2, -MAX_VELOCITY_2, MAX_VELOCITY_2),
    )
    height = -jnp.cos(physics.angle_1) - jnp.cos(physics.angle_1 + physics.angle_2)
    terminated = height > 1.0
    state = AcrobotState(physics, state.time + 1)
    return state, Step(
        observation=observe(physics),
        reward=jnp.where(terminated, 0.0, -1.0),
        terminated=terminated,
        truncated=state.time >= MAX_EPISODE_STEPS,
    )


def runge_kutta(physics: Physics, torque: Array) -> Physics:
    """One step of the classical fourth-order method."""

    def after(time: float, slope: Physics) -> Physics:
        return Physics(*(x + time * dx for x, dx in zip(physics, slope)))

    k1 = derivative(physics, torque)
    k2 = derivative(after(TIME_STEP / 2, k1), torque)
    k3 = derivative(after(TIME_STEP / 2, k2), torque)
    k4 = derivative(after(TIME_STEP, k3), torque)
    sums = Physics(*(a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4)))
    return after(TIME_STEP / 6, sums)


def derivative(physics: Physics, torque: Array) -> Physics:
    """Velocities and accelerations of both joints."""
    angle_1, angle_2, velocity_1, velocity_2 = physics
    sin_2, cos_2 = jnp.sin(angle_2), jnp.cos(angle_2)
    arm = LENGTH * CENTRE
    d1 = MASS * (CENTRE**2 + LENGTH**2 + CENTRE**2 + 2 * arm * cos_2) + 2 * INERTIA
    d2 = MASS * (CENTRE**2 + arm * cos_2) + INERTIA
    phi_2 = MASS * CENTRE * GRAVITY * jnp.sin(angle_1 + angle_2)
    phi_1 = (
        -MASS * arm * sin_2 * velocity_2 * (velocity_2 + 2 * velocity_1)
        + MASS * (CENTRE + LENGTH) * GRAVITY * jnp.sin(angle_1)
        + phi_2
    )
    acceleration_2 = (torque + d2 / d1 * phi_1 - MASS * arm * velocity_1**2 * sin_2 - phi_2) / (
        MASS * CENTRE**2 + INERTIA - d2**2 / d1
    )
    acceleration_1 = -(d2 * acceleration_2 + phi_1) / d1
    return Physics(velocity_1, velocity_2, acceleration_1, acceleration_2)


def wrap(angle: Array) -> Array:
    """The same angle in [-π, π]."""
    return angle - 2 * math.pi * jnp.round(angle / (2 * math.pi))
