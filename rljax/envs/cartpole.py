"""CartPole-v1 in JAX, equal to Gymnasium's step by step.

Barto, Sutton and Anderson (1983), "Neuronlike adaptive elements that can solve difficult learning
control problems", with the constants of Gymnasium's CartPole-v1. Reward 1 per step, the last one
included; terminated outside |x| <= 2.4 or |angle| <= 12 degrees; truncated after 500 steps.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Array, Discrete, Env, EnvSpec, Key, Step

GRAVITY = 9.8
MASS_CART = 1.0
MASS_POLE = 0.1
TOTAL_MASS = MASS_CART + MASS_POLE
HALF_LENGTH = 0.5  # of the pole, in metres
FORCE = 10.0  # newtons
TIME_STEP = 0.02  # seconds
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * math.pi / 360
MAX_EPISODE_STEPS = 500


class CartPoleState(NamedTuple):
    physics: Array  # float32 [4]: position, velocity, angle, angular velocity; also the observation
    time: Array  # int32 []: steps taken in this episode


def make() -> Env:
    """CartPole-v1 as an `Env`; observations float32 [4], actions 0 (push left) and 1 (push right).

    >>> env = make()
    >>> state, observation = env.reset(jax.random.key(0))
    >>> state, step = env.step(jax.random.key(1), state, jnp.int32(1))
    >>> float(step.reward), bool(step.terminated)
    (1.0, False)
    """
    spec = EnvSpec(
        name="CartPole-v1",
        observation_shape=(4,),
        observation_dtype=np.float32,
        action_space=Discrete(2),
        max_episode_steps=MAX_EPISODE_STEPS,
    )
    return Env(reset, step, spec)


def reset(key: Key) -> tuple[CartPoleState, Array]:
    physics = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
    return CartPoleState(physics, jnp.int32(0)), physics


def step(key: Key, state: CartPoleState, action: Array) -> tuple[CartPoleState, Step]:
    del key  # the dynamics are deterministic
    x, x_dot, theta, theta_dot = state.physics
    force = jnp.where(action == 1, FORCE, -FORCE)
    sin, cos = jnp.sin(theta), jnp.cos(theta)
    pole_term = (force + MASS_POLE * HALF_LENGTH * theta_dot**2 * sin) / TOTAL_MASS
    theta_acc = (GRAVITY * sin - cos * pole_term) / (
        HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * cos**2 / TOTAL_MASS)
    )
    x_acc = pole_term - MASS_POLE * HALF_LENGTH * theta_acc * cos / TOTAL_MASS
    physics = jnp.stack(
        [
            x + TIME_STEP * x_dot,
            x_dot + TIME_STEP * x_acc,
            theta + TIME_STEP * theta_dot,
            theta_dot + TIME_STEP * theta_acc,
        ]
    )
    state = CartPoleState(physics, state.time + 1)
    return state, Step(
        observation=physics,
        reward=jnp.float32(1.0),
        terminated=(jnp.abs(physics[0]) > MAX_POSITION) | (jnp.abs(physics[2]) > MAX_ANGLE),
        truncated=state.time >= MAX_EPISODE_STEPS,
    )
