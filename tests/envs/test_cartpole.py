"""Where our CartPole-v1 and Gymnasium's end; `test_classic.py` compares them elsewhere."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import make
from rljax.envs.cartpole import CartPoleState

MAX_POSITION = 2.4  # metres
MAX_ANGLE = 12 * np.pi / 180  # radians


@pytest.fixture(scope="module")
def theirs():
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    env.reset(seed=0)
    yield env
    env.close()


def gymnasium_step(theirs, state, action):
    theirs.unwrapped.state = np.asarray(state, np.float64)
    theirs.unwrapped.steps_beyond_terminated = None
    return theirs.unwrapped.step(int(action))


def compare(theirs, states, actions):
    """Steps both from `states` [N, 4] with `actions` [N] and returns the flags `terminated` [N]."""
    states, actions = np.asarray(states, np.float32), np.asarray(actions, np.int32)
    keys = jax.random.split(jax.random.key(0), len(states))
    ours = CartPoleState(jnp.asarray(states), jnp.zeros(len(states), jnp.int32))
    _, step = jax.jit(jax.vmap(make("CartPole-v1").step))(keys, ours, jnp.asarray(actions))
    flags = []
    for i, (state, action) in enumerate(zip(states, actions, strict=True)):
        observation, reward, terminated, _, _ = gymnasium_step(theirs, state, action)
        np.testing.assert_allclose(step.observation[i], observation, rtol=1e-6, atol=1e-6)
        assert float(step.reward[i]) == reward
        assert bool(step.terminated[i]) == terminated, state
        assert not step.truncated[i]
        flags.append(terminated)
    return np.array(flags)


@pytest.mark.parametrize("action", [0, 1])
@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(("index", "limit"), [(0, MAX_POSITION), (2, MAX_ANGLE)])
def test_on_both_sides_of_the_thresholds(theirs, index, limit, side, action):
    # x' = x + 0.02 v: with v = 1 and x = limit - 0.02 + e the step ends at limit + e, outside if
    # e > 0, and so for the angle. The e are large against float32's spacing, 2.4e-7 at 2.4.
    offsets = np.array([-1e-2, -1e-4, -1e-5, 1e-5, 1e-4, 1e-2])
    states = np.zeros((len(offsets), 4))
    states[:, index] = side * (limit - 0.02 + offsets)
    states[:, index + 1] = side
    terminated = compare(theirs, states, np.full(len(offsets), action))
    np.testing.assert_array_equal(terminated, offsets > 0)


def test_outside_is_terminated_wherever_it_came_from(theirs):
    states = [[3.0, 0, 0, 0], [-3.0, 0, 0, 0], [0, 0, 0.5, 0], [0, 0, -0.5, 0], [2.5, -20.0, 0, 0]]
    terminated = compare(theirs, states, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(terminated, [1, 1, 1, 1, 0])  # 2.5 - 0.02 * 20 = 2.1 is inside
