"""Pendulum-v1 in JAX, equal to Gymnasium's step by step: swing up and hold, with too little torque.

Reward -(angle² + 0.1 velocity² + 0.001 torque²), of the state before the step and its angle from
upright in [-π, π); never terminated, truncated after 200 steps.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Array, Box, Env, EnvSpec, Key, Step

GRAVITY = 10.0
MASS = 1.0
LENGTH = 1.0
TIME_STEP = 0.05  # seconds
MAX_VELOCITY = 8.0
MAX_TORQUE = 2.0
MAX_EPISODE_STEPS = 200


class PendulumState(NamedTuple):
    angle: Array  # float32 []: radians from upright, not wrapped
    velocity: Array  # float32 []
    time: Array  # int32 []: steps taken in this episode


def make() -> Env:
    """Pendulum-v1 as an `Env`; observations float32 [3]: cos, sin, velocity; actions float32 [1].

    Actions beyond [-2, 2] count as the bound.

    >>> env = make()
    >>> state, observation = env.reset(jax.random.key(0))
    >>> state, step = env.step(jax.random.key(1), state, jnp.zeros(1))
    >>> bool(step.terminated)
    False
    """
    limit = np.full(1, MAX_TORQUE, np.float32)
    spec = EnvSpec(
        name="Pendulum-v1",
        observation_shape=(3,),
        observation_dtype=np.float32,
        action_space=Box(-limit, limit),
        max_episode_steps=MAX_EPISODE_STEPS,
    )
    return Env(reset, step, spec)


def observe(state: PendulumState) -> Array:
    return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.velocity])


def reset(key: Key) -> tuple[PendulumState, Array]:
    angle, velocity = jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0)
    state = PendulumState(math.pi * angle, velocity, jnp.int32(0))
    return state, observe(state)


def step(key: Key, state: PendulumState, action: Array) -> tuple[PendulumState, Step]:
    del key  # the dynamics are deterministic
    torque = jnp.clip(action[0], -MAX_TORQUE, MAX_TORQUE)
    turns = jnp.floor((state.angle + math.pi) / (2 * math.pi))  # `%` would be a slow fmod
    wrapped = state.angle - 2 * math.pi * turns
    cost = wrapped**2 + 0.1 * state.velocity**2 + 0.001 * torque**2
    acceleration = (
        3 * GRAVITY / (2 * LENGTH) * jnp.sin(state.angle) + 3 / (MASS * LENGTH**2) * torque
    )
    velocity = jnp.clip(state.velocity + acceleration * TIME_STEP, -MAX_VELOCITY, MAX_VELOCITY)
    state = PendulumState(state.angle + velocity * TIME_STEP, velocity, state.time + 1)
    return state, Step(
        observation=observe(state),
        reward=-cost,
        terminated=jnp.bool_(False),
        truncated=state.time >= MAX_EPISODE_STEPS,
    )
