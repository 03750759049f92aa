"""The five-state line world of the notes: small enough to solve by hand, nasty enough to teach.

Positions -2 ... 2, start at 0. Actions 0, 1, 2 move by -1, 0, +1 and are clamped at the ends. The
reward belongs to the position entered: 10 at 2, -5 at 1, -1 elsewhere. So the way to the prize
leads through the worst place. No position is terminal; an episode is truncated after 100 steps.
The notes use discount 0.9.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Array, Discrete, Env, EnvSpec, Key, Step

NUM_POSITIONS = 5
START = 2  # index of position 0
MOVES = np.array([-1, 0, 1], np.int32)
REWARDS = np.array([-1.0, -1.0, -1.0, -5.0, 10.0], np.float32)  # of entering position -2 ... 2
MAX_EPISODE_STEPS = 100


class LineWorldState(NamedTuple):
    index: Array  # int32 []: position + 2
    time: Array  # int32 []: steps taken in this episode


def make() -> Env:
    """The line world as an `Env`; observations are one-hot float32 [5].

    >>> env = make()
    >>> state, observation = env.reset(jax.random.key(0))
    >>> state, step = env.step(jax.random.key(1), state, jnp.int32(2))
    >>> float(step.reward)
    -5.0
    """
    spec = EnvSpec(
        name="LineWorld-v0",
        observation_shape=(NUM_POSITIONS,),
        observation_dtype=np.float32,
        action_space=Discrete(len(MOVES)),
        max_episode_steps=MAX_EPISODE_STEPS,
    )
    return Env(reset, step, spec)


def observe(state: LineWorldState) -> Array:
    return jax.nn.one_hot(state.index, NUM_POSITIONS, dtype=jnp.float32)


def reset(key: Key) -> tuple[LineWorldState, Array]:
    del key  # every episode starts at the same place
    state = LineWorldState(jnp.int32(START), jnp.int32(0))
    return state, observe(state)


def step(key: Key, state: LineWorldState, action: Array) -> tuple[LineWorldState, Step]:
    del key
    index = jnp.clip(state.index + jnp.asarray(MOVES)[action], 0, NUM_POSITIONS - 1)
    state = LineWorldState(index, state.time + 1)
    return state, Step(
        observation=observe(state),
        reward=jnp.asarray(REWARDS)[index],
        terminated=jnp.bool_(False),
        truncated=state.time >= MAX_EPISODE_STEPS,
    )


def tabular_model() -> tuple[np.ndarray, np.ndarray]:
    """The same world as tables, for `ops.solve.value_iteration`.

    Returns:
      transitions: float32 [S, A, S], probability of the next position; S = 5, A = 3.
      rewards: float32 [S, A], reward of the step.

    >>> transitions, rewards = tabular_model()
    >>> rewards[3]  # at position 1: back to 0, stay, on to 2
    array([-1., -5., 10.], dtype=float32)
    """
    next_index = np.clip(np.arange(NUM_POSITIONS)[:, None] + MOVES[None, :], 0, NUM_POSITIONS - 1)
    transitions = np.eye(NUM_POSITIONS, dtype=np.float32)[next_index]
    return transitions, REWARDS[next_index]
