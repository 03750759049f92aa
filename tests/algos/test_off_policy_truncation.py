"""Being cut off is not the end, for what is learned from a replay: twins, as in
`test_truncation.py`, of which one can see how long its episode will last.

Reward 1 for ever at discount 0.9 is worth 1/(1 - 0.9) = 10, though no episode is longer than five
steps. With a real end after k more steps it is (1 - 0.9^k)/(1 - 0.9).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.types import Box, Discrete, Env, EnvSpec, Step

from .small_off_policy import small_config, small_loop

LENGTH = 5
NUM_FEATURES = 1 + LENGTH  # the truncated world, then the places of the one that ends
DISCRETE = Discrete(2)
REAL = Box(-np.ones(1, "f"), np.ones(1, "f"))


class TwinState(NamedTuple):
    ends: jax.Array  # whether this episode is of the world with a real end
    time: jax.Array


def twins(action_space) -> Env:
    """Nothing that is done matters. The world that is cut looks the same at all times."""

    def observe(state):
        place = jnp.where(state.ends, 1 + jnp.minimum(state.time, LENGTH - 1), 0)
        return jax.nn.one_hot(place, NUM_FEATURES)

    def reset(key):
        state = TwinState(jax.random.bernoulli(key), jnp.int32(0))
        return state, observe(state)

    def step(key, state, action):
        state = TwinState(state.ends, state.time + 1)
        done = state.time >= LENGTH
        return state, Step(observe(state), jnp.float32(1), done & state.ends, done & ~state.ends)

    spec = EnvSpec("Twins-v0", (NUM_FEATURES,), np.float32, action_space, LENGTH)
    return Env(reset, step, spec)


@pytest.mark.parametrize(
    ("name", "n_step"), [("dqn", 1), ("dqn", 3), ("ddpg", 1)], ids=["dqn", "dqn 3-step", "ddpg"]
)
def test_values_of_truncated_and_of_terminated_episodes(name, n_step):
    """Linear in one number for each place: the exact values can be reached, and are."""
    changes = {
        "net.hidden_sizes": (),
        "optimizer.name": "sgd",
        "optimizer.learning_rate": 0.5,
        "algo.discount": 0.9,
        "algo.n_step": n_step,
        "env.num_envs": 16,
        "unroll_length": LENGTH,
        "replay.capacity": 800,
        "replay.warmup_steps": 400,
        "replay.batch_size": 64,
        "replay.updates_per_step": 0.25,  # 20 an update
        "log_interval": 150,
        "algo.target_rate": 1.0 if name == "dqn" else 0.2,
    }
    if name == "dqn":
        changes |= {"algo.target_period": 20, "algo.huber_delta": None}
    env = twins(DISCRETE if name == "dqn" else REAL)
    loop = small_loop(small_config(name, "Twins-v0", changes), env)
    state, metrics = loop.advance(loop.init(), 150)

    params = state.algo.params["q" if name == "dqn" else "critic"]
    layer = params["actions" if name == "dqn" else "value"]
    values = np.asarray(layer["kernel"]) + np.asarray(layer["bias"])[:, None]
    exact = [10.0, *((1 - 0.9**k) / (1 - 0.9) for k in range(LENGTH, 0, -1))]
    np.testing.assert_allclose(exact, [10.0, 4.095, 3.439, 2.71, 1.9, 1.0], atol=1e-3)
    for row in values[:, :NUM_FEATURES]:
        np.testing.assert_allclose(row, exact, rtol=5e-3)
    # Every episode has returned 5, whichever way it stopped: one an update of each of 16.
    np.testing.assert_array_equal(metrics["episode/count"], 16.0)
    np.testing.assert_array_equal(metrics["episode/return_sum"], 16 * 5.0)
