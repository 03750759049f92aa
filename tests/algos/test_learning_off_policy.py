"""Each off-policy algorithm learns: the line world, and a point that is to be brought to 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.types import Box, Env, EnvSpec, Step

from .small_off_policy import small_config, small_loop

LINE_WORLD = {
    "net.hidden_sizes": (),  # one number for each place and action, and one for each action
    "algo.discount": 0.9,
    "env.num_envs": 8,
    "unroll_length": 4,
    "replay.capacity": 8000,
    "replay.warmup_steps": 800,  # one episode of each
    "replay.batch_size": 64,
    "replay.updates_per_step": 0.25,  # 8 an update
    "log_interval": 300,
    "eval_episodes": 1,  # the world and the greedy policy are deterministic
}
Q_LEARNING = {"algo.target_period": 20, "algo.epsilon_steps": 6000}
OWN = {
    "dqn": {**Q_LEARNING, "optimizer.learning_rate": 0.5, "algo.huber_delta": None},
    # 10 apart: 13 atoms hold what the best policy is worth, 100, exactly.
    "c51": {
        **Q_LEARNING,
        "optimizer.learning_rate": 0.1,
        "algo.num_atoms": 13,
        "algo.value_min": -20.0,
        "algo.value_max": 100.0,
    },
    "sac": {"optimizer.learning_rate": 0.5, "algo.target_rate": 0.05, "algo.temperature": 1.0},
}


@pytest.mark.parametrize("name", OWN)
def test_line_world(name):
    """From a policy that stays at the left wall (-100) to -5 once and 99 times 10."""
    config = small_config(name, "LineWorld-v0", {**LINE_WORLD, **OWN[name]})
    loop = small_loop(config, envs.make("LineWorld-v0"))
    state = loop.init()
    chooses = "actor" if name == "sac" else "q"
    nothing = jax.tree.map(jnp.zeros_like, state.algo.params[chooses])
    params = {**state.algo.params, chooses: nothing}  # all are equal: the first action
    state = state._replace(algo=state.algo._replace(params=params))
    assert loop.evaluate(state)["eval/return_mean"] == -100.0
    state, metrics = loop.advance(state, 300)
    assert loop.evaluate(state)["eval/return_mean"] == 985.0
    assert all(np.isfinite(x).all() for x in metrics.values())


LENGTH = 16


def point() -> Env:
    """A point in [-1, 1] is moved by up to 0.25 a step; each costs its distance from 0."""

    def reset(key):
        place, time = jax.random.uniform(key, (1,), minval=-1.0), jnp.int32(0)
        return (place, time), place

    def step(key, state, action):
        place, time = jnp.clip(state[0] + 0.25 * jnp.clip(action, -1, 1), -1, 1), state[1] + 1
        return (place, time), Step(place, -jnp.abs(place[0]), jnp.bool_(False), time >= LENGTH)

    space = Box(-np.ones(1, "f"), np.ones(1, "f"))
    return Env(reset, step, EnvSpec("Point-v0", (1,), np.float32, space, LENGTH))


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_point(name):
    """From x the best way costs Σ max(|x| - 0.25 k, 0): 0.4375 in the mean over |x| in [0, 1].

    A policy that stays costs 16 |x|: 8 in the mean.
    """
    changes = {
        "net.hidden_sizes": (16, 16),
        "algo.discount": 0.9,
        "algo.target_rate": 0.05,
        "optimizer.learning_rate": 3e-3,
        "env.num_envs": 8,
        "unroll_length": 1,
        "replay.capacity": 8000,
        "replay.warmup_steps": 512,
        "replay.batch_size": 32,
        "replay.updates_per_step": 0.5,  # 4 an update
        "log_interval": 300,
        "eval_episodes": 64,
        **({"algo.init_temperature": 0.1} if name == "sac" else {}),
    }
    loop = small_loop(small_config(name, "Point-v0", changes), point())
    state = loop.init()
    assert loop.evaluate(state)["eval/return_mean"] < -4.0
    state, metrics = loop.advance(state, 300)
    assert loop.evaluate(state)["eval/return_mean"] > -1.6
    assert all(np.isfinite(x).all() for x in metrics.values())
