"""What the tests of algorithms and loops share: small configs, small worlds, rollouts at will."""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments.configs import defaults
from rljax import envs
from rljax.loops.loop import Loop
from rljax.loops.on_policy import jax_loop
from rljax.types import Algo, Box, Discrete, Env, EnvSpec, Rollout

ONE_STATE = EnvSpec("OneState-v0", (1,), np.float32, Discrete(2), 1)
REACH = EnvSpec("Reach-v0", (3,), np.float32, Box(-np.ones(2, "f"), np.ones(2, "f")), 5)
CHOOSE = EnvSpec("Choose-v0", (3,), np.float32, Discrete(4), 5)


def small_config(algo: str, env: str = "LineWorld-v0", changes: dict[str, Any] | None = None):
    """The defaults of `algo`, small: 8 environments, short unrolls, tables or 8 hidden units.

    `changes` are fields by their dotted names, {"algo.epochs": 1}.
    """
    config: ConfigDict = defaults.run(env)
    config.algo = getattr(defaults, algo)()
    config.net.hidden_sizes = (8,)
    config.unroll_length = 16
    config.log_interval = 4
    config.eval_episodes = 4
    if env in ("LineWorld-v0", ONE_STATE.name):
        config.net.name = "tabular"
        config.optimizer.name = "sgd"
    config.update_from_flattened_dict(changes or {})
    return config


def make_algo(config: ConfigDict, spec: EnvSpec, *, num_updates: int) -> Algo:
    module = importlib.import_module(f"rljax.algos.{config.algo.name}")
    return module.make(config, spec, num_updates=num_updates)


def make_small(algo: str, spec: EnvSpec, changes: dict[str, Any] | None = None) -> Algo:
    """An algorithm without an environment, of ten updates; `act` and `update` are compiled."""
    made = make_algo(small_config(algo, spec.name, changes), spec, num_updates=10)
    return Algo(made.init, made.draw, *(jax.jit(function) for function in made[2:]))


def small_loop(config: ConfigDict, env: Env, *, num_updates: int = 100, **settings) -> Loop:
    """The loop that `config` asks for; `settings` are further arguments of `jax_loop`."""
    return jax_loop(
        env,
        make_algo(config, env.spec, num_updates=num_updates),
        num_envs=config.env.num_envs,
        unroll_length=config.unroll_length,
        max_updates=config.log_interval,
        eval_episodes=config.eval_episodes,
        **settings,
    )


ALGOS = ("vpg", "a2c", "trpo", "ppo")
# One configuration for each algorithm, shared by the learning tests and those of the loop.
LINE_WORLD = {
    "env.num_envs": 16,
    "unroll_length": 25,
    "log_interval": 50,
    "eval_episodes": 1,  # the world and the greedy policy are deterministic
    "algo.discount": 0.9,
    "algo.lambda_": 0.9,
    "optimizer.learning_rate": 0.5,
}
OWN = {
    "vpg": {"algo.entropy_coef": 0.01, "algo.value_iterations": 5},
    "a2c": {"algo.entropy_coef": 0.01},
    "trpo": {"algo.value_iterations": 5},
    "ppo": {},
}


def line_world_loop(algo: str, **settings) -> Loop:
    config = small_config(algo, "LineWorld-v0", {**LINE_WORLD, **OWN[algo]})
    return small_loop(config, envs.make("LineWorld-v0"), **settings)


@functools.cache
def shared_loop(algo: str) -> Loop:
    """The run on the line world that all tests share, compiled once."""
    return line_world_loop(algo)


def copied(tree):
    """Leaves of their own, to keep before a call that donates them."""
    return jax.tree.map(lambda x: x.copy(), tree)


def numbers(tree) -> list[np.ndarray]:
    """All leaves in NumPy, keys as their data."""
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(tree)
    ]


def assert_same_bits(a, b) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(numbers(a), numbers(b)):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def one_state_rollout(actions, rewards, behaviour_log_probs) -> Rollout:
    """[T=1, B]: every episode has one step, is in state 0 and ends there."""
    shape = (1, len(actions))

    def row(values, dtype):
        return jnp.asarray(np.broadcast_to(np.asarray(values, dtype), shape))

    return Rollout(
        observations=jnp.ones((*shape, 1)),
        actions=row(actions, np.int32),
        behaviour_log_probs=row(behaviour_log_probs, np.float32),
        rewards=row(rewards, np.float32),
        terminated=jnp.ones(shape, bool),
        truncated=jnp.zeros(shape, bool),
        next_observations=jnp.ones((*shape, 1)),
        episode_returns=row(rewards, np.float32),
        episode_lengths=jnp.ones(shape, jnp.int32),
        mask=jnp.ones(shape, bool),
    )


def random_rollout(rng, spec: EnvSpec, length: int, num_envs: int, *, centre=0.0, spread=1.0):
    """Observations around `centre`, every kind of end, and actions of no policy in particular."""
    shape = (length, num_envs)

    def normal(*axes):
        return rng.normal(size=(*shape, *axes)).astype(np.float32)

    if isinstance(spec.action_space, Discrete):
        actions = rng.integers(0, spec.action_space.num_actions, shape).astype(np.int32)
    else:
        actions = normal(len(spec.action_space.low))
    return Rollout(
        observations=centre + spread * normal(*spec.observation_shape),
        actions=actions,
        behaviour_log_probs=-1.5 + 0.2 * normal(),
        rewards=normal(),
        terminated=rng.random(shape) < 0.1,
        truncated=rng.random(shape) < 0.1,
        next_observations=centre + spread * normal(*spec.observation_shape),
        episode_returns=normal(),
        episode_lengths=rng.integers(1, 9, shape).astype(np.int32),
        mask=np.ones(shape, bool),
    )
