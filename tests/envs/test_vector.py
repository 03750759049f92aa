"""Environments side by side: what is random in their steps is drawn ahead, for each its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs.vector import vectorize
from rljax.types import Discrete, Env, EnvSpec, Step

T, B = 6, 4


def dice() -> Env:
    """States are numbers drawn by the reset; the reward is one drawn by the step; action 1 ends."""

    def reset(key):
        x = jax.random.uniform(key)
        return x, x[None]

    def step(key, state, action):
        reward = jax.random.uniform(key)
        return state, Step(state[None], reward, action == 1, jnp.bool_(False))

    return Env(reset, step, EnvSpec("Dice-v0", (1,), np.float32, Discrete(2), 1000))


ENVS = vectorize(dice(), B)


def at(draws, t):
    return jax.tree.map(lambda x: x[t], draws)


def test_all_that_is_drawn_is_drawn_once(key):
    """A key for the step and a fresh episode for each of the T·B: no two alike."""
    draws = jax.jit(ENVS.draw, static_argnums=1)(key, T)
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(draws)} == {(T, B)}
    state, observation = draws.fresh
    np.testing.assert_array_equal(observation[..., 0], state)
    rewards = jax.vmap(jax.vmap(jax.random.uniform))(draws.key)
    numbers = np.concatenate([x.ravel() for x in (state, rewards)])
    assert len(np.unique(numbers)) == len(numbers) == 2 * T * B
    again = ENVS.draw(key, T)
    np.testing.assert_array_equal(again.fresh[0], state)
    other = ENVS.draw(jax.random.key(1), T)
    assert not np.intersect1d(other.fresh[0], state).size


def test_a_step_takes_what_was_drawn_for_it(key):
    """Environment b ends in steps where t = b mod 2, and goes on with its own fresh episode."""
    state, observation = ENVS.reset(key)
    draws = ENVS.draw(jax.random.key(1), T)
    fresh, rewards = draws.fresh[1], jax.vmap(jax.vmap(jax.random.uniform))(draws.key)
    step, returns, lengths = jax.jit(ENVS.step), np.zeros(B), np.zeros(B, int)
    for t in range(T):
        ends = np.arange(B) % 2 == t % 2
        state, transition = step(at(draws, t), state, jnp.int32(ends))
        assert transition.mask is None
        np.testing.assert_allclose(transition.reward, rewards[t], rtol=1e-6)
        np.testing.assert_array_equal(transition.terminated, ends)
        np.testing.assert_array_equal(transition.next_observation, observation)
        observation = np.where(ends[:, None], fresh[t], observation)
        np.testing.assert_array_equal(transition.observation, observation)
        np.testing.assert_array_equal(state.env, observation[:, 0])
        returns, lengths = returns + np.asarray(rewards[t]), lengths + 1
        np.testing.assert_allclose(transition.episode_return, returns, rtol=1e-6)
        np.testing.assert_array_equal(transition.episode_length, lengths)
        returns, lengths = np.where(ends, 0, returns), np.where(ends, 0, lengths)


@pytest.mark.errors
@pytest.mark.parametrize("num_envs", [0, -1])
def test_at_least_one(num_envs):
    with pytest.raises(ValueError, match=rf"^num_envs is {num_envs}: it must be at least 1$"):
        vectorize(dice(), num_envs)
