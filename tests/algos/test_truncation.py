"""Being cut off is not the end: the value of a task that is only ever truncated.

Reward 1 for ever at discount 0.9 is worth 1/(1 - 0.9) = 10, though no episode is longer than five
steps. Beside it is the same world with a real end after five steps; there the state is worth the
mean over its five places in the episode of (1 - 0.9^k)/(1 - 0.9), k = 1 ... 5: 2.629.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Discrete, Env, EnvSpec, Step

from .small import small_config, small_loop

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


def test_values_of_truncated_and_of_terminated_episodes():
    config = small_config(
        "a2c",
        changes={
            "net.name": "tabular",
            "optimizer.name": "sgd",
            "optimizer.learning_rate": 1.0,
            "algo.discount": 0.9,
            "algo.lambda_": 1.0,
            "algo.value_coef": 1.0,
            "env.num_envs": 16,
            "unroll_length": 4 * LENGTH,
            "log_interval": 150,
        },
    )
    loop = small_loop(config, twins())
    state, metrics = loop.advance(loop.init(), 150)
    ended = np.mean([(1 - 0.9**k) / (1 - 0.9) for k in range(1, 6)])
    np.testing.assert_allclose(ended, 2.629, atol=1e-3)
    np.testing.assert_allclose(state.algo.params["value"]["values"], [10.0, ended], rtol=1e-3)
    # Every episode has returned 5, whichever way it stopped: four in each unroll of each of 16.
    np.testing.assert_array_equal(metrics["episode/count"], 64.0)
    np.testing.assert_array_equal(metrics["episode/return_sum"], 64 * 5.0)
    np.testing.assert_array_equal(metrics["episode/length_sum"], 64 * 5.0)
