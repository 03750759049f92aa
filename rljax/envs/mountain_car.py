"""MountainCar-v0 and MountainCarContinuous-v0 in JAX, equal to Gymnasium's step by step.

Moore (1990), "Efficient Memory-based Learning for Robot Control": a car too weak for the hill must
first back up the other side. Discrete: reward -1 per step, the goal is at 0.5, truncated after 200
steps. Continuous: reward 100 at the goal, 0.45, less 0.1·action² per step, truncated after 999.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Array, Box, Discrete, Env, EnvSpec, Key, Step

MIN_POSITION, MAX_POSITION = -1.2, 0.6
MAX_SPEED = 0.07
GRAVITY = 0.0025
FORCE, GOAL, MAX_EPISODE_STEPS = 0.001, 0.5, 200
POWER, CONTINUOUS_GOAL, CONTINUOUS_MAX_EPISODE_STEPS = 0.0015, 0.45, 999


class MountainCarState(NamedTuple):
    position: Array  # float32 []
    velocity: Array  # float32 []
    time: Array  # int32 []: steps taken in this episode


def make() -> Env:
    """MountainCar-v0 as an `Env`; observations float32 [2], actions 0, 1, 2: left, none, right.

    >>> env = make()
    >>> state, observation = env.reset(jax.random.key(0))
    >>> state, step = env.step(jax.random.key(1), state, jnp.int32(2))
    >>> float(step.reward)
    -1.0
    """
    spec = EnvSpec(
        name="MountainCar-v0",
        observation_shape=(2,),
        observation_dtype=np.float32,
        action_space=Discrete(3),
        max_episode_steps=MAX_EPISODE_STEPS,
    )
    return Env(reset, step, spec)


def make_continuous() -> Env:
    """MountainCarContinuous-v0 as an `Env`; observations float32 [2], actions float32 [1].

    The force is bounded to [-1, 1], but the cost is that of the action as it was given; under
    `transforms.clip_actions` it is that of the bounded one.

    >>> env = make_continuous()
    >>> state, observation = env.reset(jax.random.key(0))
    >>> state, step = env.step(jax.random.key(1), state, jnp.full(1, 2.0))
    >>> round(float(step.reward), 6)
    -0.4
    """
    limit = np.ones(1, np.float32)
    spec = EnvSpec(
        name="MountainCarContinuous-v0",
        observation_shape=(2,),
        observation_dtype=np.float32,
        action_space=Box(-limit, limit),
        max_episode_steps=CONTINUOUS_MAX_EPISODE_STEPS,
    )
    return Env(reset, step_continuous, spec)


def observe(state: MountainCarState) -> Array:
    return jnp.stack([state.position, state.velocity])


def reset(key: Key) -> tuple[MountainCarState, Array]:
    position = jax.random.uniform(key, (), jnp.float32, -0.6, -0.4)
    state = MountainCarState(position, jnp.float32(0), jnp.int32(0))
    return state, observe(state)


def drive(state: MountainCarState, force: Array) -> MountainCarState:
    velocity = state.velocity + force - GRAVITY * jnp.cos(3 * state.position)
    velocity = jnp.clip(velocity, -MAX_SPEED, MAX_SPEED)
    position = jnp.clip(state.position + velocity, MIN_POSITION, MAX_POSITION)
    # The wall on the left stops the car; the goal lies before the end on the right.
    at_wall = (position <= MIN_POSITION) & (velocity < 0)
    return MountainCarState(position, jnp.where(at_wall, 0.0, velocity), state.time + 1)


def step(key: Key, state: MountainCarState, action: Array) -> tuple[MountainCarState, Step]:
    del key  # the dynamics are deterministic
    state = drive(state, (action - 1) * FORCE)
    return state, Step(
        observation=observe(state),
        reward=jnp.float32(-1),
        terminated=(state.position >= GOAL) & (state.velocity >= 0),
        truncated=state.time >= MAX_EPISODE_STEPS,
    )


def step_continuous(
    key: Key, state: MountainCarState, action: Array
) -> tuple[MountainCarState, Step]:
    del key  # the dynamics are deterministic
    state = drive(state, jnp.clip(action[0], -1.0, 1.0) * POWER)
    terminated = (state.position >= CONTINUOUS_GOAL) & (state.velocity >= 0)
    return state, Step(
        observation=observe(state),
        reward=jnp.where(terminated, 100.0, 0.0) - 0.1 * action[0] ** 2,
        terminated=terminated,
        truncated=state.time >= CONTINUOUS_MAX_EPISODE_STEPS,
    )
