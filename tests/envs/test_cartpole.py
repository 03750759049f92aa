"""Our CartPole-v1 and Gymnasium's, driven with the same states and actions."""

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


def test_from_ordinary_states(theirs):
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (200, 4)) * np.array([2.3, 3.0, 0.2, 3.0])
    compare(theirs, states, rng.integers(0, 2, 200))


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


def test_a_full_episode_of_500_steps(key):
    """A controller keeps the pole up; both are set to the same state before every step."""
    theirs = gymnasium.make("CartPole-v1", disable_env_checker=True)
    theirs.reset(seed=0)
    env = make("CartPole-v1")
    step_fn = jax.jit(env.step)
    state, observation = env.reset(key)
    total = 0.0
    for t in range(1, 501):
        x, x_dot, theta, theta_dot = np.asarray(observation, np.float64)
        action = int(0.1 * x + 0.3 * x_dot + 3.0 * theta + theta_dot > 0)
        theirs.unwrapped.state = np.array([x, x_dot, theta, theta_dot])
        state, step = step_fn(key, state, jnp.int32(action))
        expected, reward, terminated, truncated, _ = theirs.step(action)
        observation = step.observation
        np.testing.assert_allclose(observation, expected, rtol=1e-6, atol=1e-6)
        assert float(step.reward) == reward
        assert bool(step.terminated) == terminated
        assert bool(step.truncated) == truncated == (t == 500)
        assert not terminated
        total += float(step.reward)
    assert total == 500
    theirs.close()


def test_start_states_are_uniform_in_a_small_box():
    _, start = jax.vmap(make("CartPole-v1").reset)(jax.random.split(jax.random.key(3), 4000))
    start = np.asarray(start, np.float64)
    assert np.abs(start).max() <= 0.05
    # Uniform on [-0.05, 0.05]: mean 0, variance 0.1^2 / 12. Five standard errors of 4000 draws.
    assert np.abs(start.mean(0)).max() < 5 * 0.1 / np.sqrt(12 * 4000)
    np.testing.assert_allclose(start.var(0), 0.1**2 / 12, rtol=0.1)
