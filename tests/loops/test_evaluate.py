"""Evaluation counts the first episode of each environment, however long the others take.

The worlds are a lottery: an episode lasts 1 or 9 steps, each as likely, at a reward of 1 a step.
So the mean return is exactly 5, but the episodes that end first are nearly all short.
"""

from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs.gymnasium import make_host
from rljax.loops.evaluate import EVAL_METRICS, evaluate, evaluate_host, summarize
from rljax.types import Discrete, Env, EnvSpec, Step

SHORT, LONG = 1, 9


class LotteryState(NamedTuple):
    length: jax.Array
    time: jax.Array


def lottery() -> Env:
    """Short episodes are terminated, long ones truncated; what comes after the end is NaN."""

    def reset(key):
        length = jnp.where(jax.random.bernoulli(key), LONG, SHORT)
        return LotteryState(length, jnp.int32(0)), jnp.zeros(1)

    def step(key, state, action):
        state = LotteryState(state.length, state.time + 1)
        done = state.time == state.length
        reward = jnp.where(state.time > state.length, jnp.nan, 1.0 + action)
        observation = jnp.where(done, jnp.nan, state.time.astype(jnp.float32))[None]
        return state, Step(
            observation, reward, done & (state.length == SHORT), done & (state.length == LONG)
        )

    return Env(reset, step, EnvSpec("Lottery-v0", (1,), np.float32, Discrete(2), LONG))


class HostLottery(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 10.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = LONG if self.np_random.random() < 0.5 else SHORT
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        done = self.time >= self.length
        observation = np.array([self.time], np.float32)
        return observation, 1.0 + action, done and self.length == SHORT, False, {}


@pytest.fixture(scope="module", autouse=True)
def registered():
    # The time limit of nine steps truncates the long ones.
    gymnasium.register("HostLottery-v0", HostLottery, max_episode_steps=LONG)
    yield
    del gymnasium.registry["HostLottery-v0"]


def always(action):
    return lambda observations: np.full(len(observations), action, np.int32)


def check_unbiased(returns, lengths, tolerance):
    np.testing.assert_array_equal(returns, lengths)
    assert set(np.unique(lengths)) == {SHORT, LONG}
    np.testing.assert_allclose(np.mean(returns), 5.0, atol=tolerance)


@pytest.fixture(scope="module")
def evaluate_lottery():
    def run(key, action):
        return evaluate(
            key,
            lottery(),
            lambda observations: jnp.full(len(observations), action, jnp.int32),
            episodes=3000,
        )

    return jax.jit(run)


def test_first_episode_of_each(evaluate_lottery):
    returns, lengths = evaluate_lottery(jax.random.key(0), 0)
    assert returns.shape == lengths.shape == (3000,)
    assert returns.dtype == np.float32
    assert lengths.dtype == np.int32
    # The mean has a standard deviation of 4/√3000 = 0.07; the first 3000 to end give below 2.
    check_unbiased(returns, lengths, 0.37)


def test_actions_reach_the_environment_and_keys_decide_the_rest(evaluate_lottery):
    first = evaluate_lottery(jax.random.key(0), 0)
    doubled = evaluate_lottery(jax.random.key(0), 1)
    np.testing.assert_array_equal(doubled[0], 2 * first[0])
    np.testing.assert_array_equal(doubled[1], first[1])
    assert (evaluate_lottery(jax.random.key(1), 0)[1] != first[1]).any()


def test_observations_are_the_environments_own():
    """The policy sees 0, 1, 2 ... and gets 2 for each step at an odd time: 1 short, 9 + 4 long."""
    returns, lengths = evaluate(
        jax.random.key(2),
        lottery(),
        lambda observations: (observations[:, 0] % 2 == 1).astype(jnp.int32),
        episodes=20,
    )
    np.testing.assert_array_equal(returns, np.where(lengths == SHORT, 1.0, 13.0))


@pytest.fixture(scope="module")
def host_lotteries():
    envs = {
        mode: make_host("HostLottery-v0", 300, autoreset_mode=mode)
        for mode in ("same_step", "next_step", "disabled")
    }
    yield envs
    for env in envs.values():
        env.close()


def test_first_episode_of_each_host_environment(host_lotteries):
    results = {
        mode: evaluate_host(range(300), env, always(0)) for mode, env in host_lotteries.items()
    }
    returns, lengths = results["same_step"]
    check_unbiased(returns, lengths, 4 * 4 / np.sqrt(300))
    for mode in ("next_step", "disabled"):
        np.testing.assert_array_equal(results[mode], (returns, lengths))


def test_host_evaluation_starts_afresh_each_time(host_lotteries):
    env = host_lotteries["next_step"]
    first = evaluate_host(range(300), env, always(1))
    np.testing.assert_array_equal(first[0], 2 * first[1])
    np.testing.assert_array_equal(evaluate_host(range(300), env, always(1)), first)
    assert (evaluate_host(range(300, 600), env, always(1))[1] != first[1]).any()


def test_summary_by_hand():
    # mean (1 + 3 + 5 + 7)/4 = 4, variance (9 + 1 + 1 + 9)/4 = 5
    summary = summarize(np.array([[1, 3, 5, 7], [2, 2, 2, 2]]), np.array([[1, 2, 3, 6], [4] * 4]))
    assert tuple(summary) == EVAL_METRICS
    np.testing.assert_allclose(summary["eval/return_mean"], [4.0, 2.0])
    np.testing.assert_allclose(summary["eval/return_std"], [np.sqrt(5.0), 0.0])
    np.testing.assert_allclose(summary["eval/return_min"], [1.0, 2.0])
    np.testing.assert_allclose(summary["eval/return_max"], [7.0, 2.0])
    np.testing.assert_allclose(summary["eval/length_mean"], [3.0, 4.0])
    np.testing.assert_allclose(summary["eval/episodes"], [4.0, 4.0])
