"""Being cut off is not the end: the value of a task that is only ever truncated.

Reward 1 for ever at discount 0.9 is worth 1/(1 - 0.9) = 10, though no episode is longer than five
steps. Beside it is the same world with a real end after five steps; there the state is worth the
mean over its five places in the episode of (1 - 0.9^k)/(1 - 0.9), k = 1 ... 5: 2.629.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs.line_world import tabular_model
from rljax.ops.tabular import value_iteration
from rljax.types import Discrete, Env, EnvSpec, Step

from .small import ALGOS, shared_loop, small_config, small_loop

LENGTH = 5


class TwinState(NamedTuple):
    ends: jax.Array  # whether this episode is of the world with a real end
    time: jax.Array


def twins() -> Env:
    """Two one-state worlds, drawn at each reset; nothing that is done there matters."""

    def observe(state):
        return jax.nn.one_hot(state.ends.astype(jnp.int32), 2)

    def reset(key):
        state = TwinState(jax.random.bernoulli(key), jnp.int32(0))
        return state, observe(state)

    def step(key, state, action):
        state = TwinState(state.ends, state.time + 1)
        done = state.time >= LENGTH
        return state, Step(observe(state), jnp.float32(1), done & state.ends, done & ~state.ends)

    return Env(reset, step, EnvSpec("Twins-v0", (2,), np.float32, Discrete(2), LENGTH))


# What fits the values best where nothing that is done matters, in whole batches.
OWN = {
    "a2c": {"algo.value_coef": 1.0},
    "vpg": {"algo.value_learning_rate": 1.0, "algo.value_iterations": 4},
    "trpo": {"algo.value_iterations": 4, "algo.cg_iterations": 2},
    "ppo": {"algo.minibatches": 1, "algo.value_coef": 1.0, "algo.normalize_advantages": "none"},
}


@pytest.mark.parametrize("name", ALGOS)
def test_values_of_truncated_and_of_terminated_episodes(name):
    changes = {
        "net.name": "tabular",
        "optimizer.name": "sgd",
        "optimizer.learning_rate": 1.0,
        "algo.discount": 0.9,
        "algo.lambda_": 1.0,
        "env.num_envs": 16,
        "unroll_length": 4 * LENGTH,
        "log_interval": 150,
        **OWN[name],
    }
    loop = small_loop(small_config(name, changes=changes), twins())
    state, metrics = loop.advance(loop.init(), 150)
    ended = np.mean([(1 - 0.9**k) / (1 - 0.9) for k in range(1, 6)])
    np.testing.assert_allclose(ended, 2.629, atol=1e-3)
    np.testing.assert_allclose(state.algo.params["value"]["values"], [10.0, ended], rtol=1e-3)
    # Every episode has returned 5, whichever way it stopped: four in each unroll of each of 16.
    np.testing.assert_array_equal(metrics["episode/count"], 64.0)
    np.testing.assert_array_equal(metrics["episode/return_sum"], 64 * 5.0)
    np.testing.assert_array_equal(metrics["episode/length_sum"], 64 * 5.0)


@pytest.mark.parametrize(
    ("name", "visited"), [("a2c", [4]), ("trpo", [2, 3, 4]), ("ppo", [2, 3, 4])]
)
def test_values_of_the_line_world_are_those_without_a_time_limit(name, visited):
    """It is truncated after 100 steps, and never ends; the way from 0 over 1 stays at 2.

    If a cut were an end, staying at 2 with k steps to go would be worth 100 (1 - 0.9^k): 91 in the
    mean over an episode. Only what is visited to the end can be learned, and VPG's critic is slow.
    """
    exact, _, policy = value_iteration(*tabular_model(), discount=0.9)
    np.testing.assert_allclose(exact[2:], [85.0, 100.0, 100.0], rtol=1e-4)
    loop = shared_loop(name)
    state = loop.init()
    for _ in range(5):
        state, _ = loop.advance(state, 50)
    learned = np.asarray(state.algo.params["value"]["values"])
    np.testing.assert_allclose(learned[visited], exact[np.array(visited)], rtol=0.01)
    rows = np.asarray(state.algo.params["policy"]["rows"])
    np.testing.assert_array_equal(rows[2:4].argmax(1), policy[2:4])
