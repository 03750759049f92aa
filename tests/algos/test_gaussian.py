"""Real actions: every algorithm with both kinds of standard deviation, on a target to hit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.data.rollout import unroll
from rljax.envs.vector import vectorize
from rljax.types import Env, Step

from .small import ALGOS, REACH, make_small, small_config, small_loop

# Quick ones are in test_masked.py: a2c with a parameter, trpo with a network.
pytestmark = pytest.mark.slow

LENGTH = 5


def reach() -> Env:
    """A point in [-1, 1]² is shown for five steps, beside the time; the action is to hit it.

    Reward -|action - point|²: 0 at best; always 0 earns -2/3 a step.
    """

    def observe(point, time):
        return jnp.append(point, 0.2 * time)

    def reset(key):
        point = jax.random.uniform(key, (2,), minval=-1.0)
        return (point, jnp.int32(0)), observe(point, 0)

    def step(key, state, action):
        point, time = state
        reward = -jnp.sum(jnp.square(action - point))
        state = (point, time + 1)
        return state, Step(observe(*state), reward, jnp.bool_(False), time + 1 >= LENGTH)

    return Env(reset, step, REACH)


@functools.cache
def unrolled(log_std):
    """One rollout for each kind; all algorithms have the same networks."""
    algo = make_small("a2c", REACH, {"net.log_std": log_std, "net.log_std_init": -0.5})
    state, envs = algo.init(jax.random.key(0)), vectorize(reach(), 8)

    def run(key, start):
        def act(noise, observations):
            return algo.act(noise, state, observations)

        return unroll(key, envs, algo.draw, act, *start, length=10)[2]

    return jax.jit(run)(jax.random.key(2), envs.reset(jax.random.key(1)))


@pytest.mark.parametrize("log_std", ["parameter", "network"])
@pytest.mark.parametrize("name", ALGOS)
def test_an_update(name, log_std):
    changes = {"net.log_std": log_std, "net.log_std_init": -0.5, "algo.entropy_coef": 0.01}
    if name == "trpo":
        del changes["algo.entropy_coef"]
    algo, rollout = make_small(name, REACH, changes), unrolled(log_std)
    state = algo.init(jax.random.key(0))
    new, metrics = algo.update(jax.random.key(3), state, rollout)
    for leaf in jax.tree.leaves((new, metrics)):
        assert np.isfinite(leaf).all()
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), state.params, new.params)
    assert all(jax.tree.leaves(moved)), moved
    # σ = e^(-½) in two dimensions, to begin with: H = 2·(½ log 2πe - ½)
    if name in ("vpg", "trpo"):
        np.testing.assert_allclose(
            metrics["policy/entropy"], np.log(2 * np.pi * np.e) - 1, atol=0.02
        )


def test_actions_and_their_log_probs():
    """The first policy has a mean near 0 and σ = e^(-½): 400 actions, log-probs by the formula."""
    rollout = jax.tree.map(np.asarray, unrolled("network"))
    assert rollout.actions.shape == (10, 8, 2)
    np.testing.assert_allclose(rollout.actions.mean(), 0.0, atol=5 * np.exp(-0.5) / np.sqrt(160))
    np.testing.assert_allclose(rollout.actions.std(), np.exp(-0.5), rtol=0.25)
    z = rollout.actions.astype(np.float64) / np.exp(-0.5)
    near = -0.5 * (z**2).sum(-1) + 1.0 - np.log(2 * np.pi)  # mean exactly 0
    np.testing.assert_allclose(rollout.behaviour_log_probs, near, atol=0.2)


@pytest.mark.parametrize("log_std", ["parameter", "network"])
def test_ppo_learns_to_hit(log_std):
    config = small_config(
        "ppo",
        REACH.name,
        {
            "net.log_std": log_std,
            "net.log_std_init": -0.5,
            "net.hidden_sizes": (16,),
            "optimizer.learning_rate": 5e-3,
            "algo.discount": 0.0,  # every step is a task of its own
            "algo.target_kl": 0.03,  # the best σ is 0: the ratios get wild on the way there
            "env.num_envs": 16,
            "unroll_length": 20,
            "log_interval": 25,
            "eval_episodes": 200,
        },
    )
    loop = small_loop(config, reach())
    state = loop.init()
    first = loop.evaluate(state)["eval/return_mean"]
    np.testing.assert_allclose(first, -5 * 2 / 3, atol=0.6)  # the mean is near 0 everywhere
    state, metrics = loop.advance(state, 25)
    assert loop.evaluate(state)["eval/return_mean"] > -0.3
    assert metrics["policy/entropy"][-1] < metrics["policy/entropy"][0] - 0.5  # it gets sure
