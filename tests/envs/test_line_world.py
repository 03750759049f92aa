"""The line world against its table, written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import line_world, make
from rljax.envs.line_world import LineWorldState

# From the notes: move by -1, 0, +1, clamped to -2 ... 2; the reward is the entered position's:
# 10 at 2, -5 at 1, -1 elsewhere.
# position: (next position, reward) for the actions 0, 1, 2
TABLE = {
    -2: [(-2, -1), (-2, -1), (-1, -1)],
    -1: [(-2, -1), (-1, -1), (0, -1)],
    0: [(-1, -1), (0, -1), (1, -5)],
    1: [(0, -1), (1, -5), (2, 10)],
    2: [(1, -5), (2, 10), (2, 10)],
}
ENTRIES = [(p, a, *TABLE[p][a]) for p in TABLE for a in range(3)]


def one_hot(position):
    return [float(p == position) for p in (-2, -1, 0, 1, 2)]


@pytest.fixture(scope="module")
def env():
    env = make("LineWorld-v0")
    return env._replace(step=jax.jit(env.step))


@pytest.mark.parametrize(("position", "action", "next_position", "reward"), ENTRIES)
def test_transition_table(env, key, position, action, next_position, reward):
    state = LineWorldState(jnp.int32(position + 2), jnp.int32(0))
    state, step = env.step(key, state, jnp.int32(action))
    assert int(state.index) - 2 == next_position
    assert float(step.reward) == reward
    assert not step.terminated
    assert not step.truncated
    np.testing.assert_array_equal(step.observation, one_hot(next_position))


def test_every_episode_starts_at_zero(env):
    for seed in range(3):
        state, observation = env.reset(jax.random.key(seed))
        assert int(state.index) - 2 == 0
        np.testing.assert_array_equal(observation, one_hot(0))


def test_truncated_after_exactly_100_steps_and_never_terminated(env, key):
    state, _ = env.reset(key)
    rewards = []
    for t in range(1, 101):
        state, step = env.step(key, state, jnp.int32(2))  # always to the right
        rewards.append(float(step.reward))
        assert not step.terminated
        assert bool(step.truncated) == (t == 100)
    # 0 -> 1 costs 5; then 99 times 10 for entering 2 or staying there.
    assert sum(rewards) == -5 + 99 * 10


def test_tabular_model_is_the_same_world():
    transitions, rewards = line_world.tabular_model()
    for position, action, next_position, reward in ENTRIES:
        np.testing.assert_array_equal(transitions[position + 2, action], one_hot(next_position))
        assert rewards[position + 2, action] == reward
