"""From a config to a run: checks it, then puts environment, algorithm and loop together."""

import importlib
import math
import pkgutil
from functools import partial
from typing import NamedTuple

import rljax.algos
from experiments.configs.defaults import Config
from rljax import envs
from rljax.loops.loop import Loop
from rljax.loops.on_policy import jax_loop
from rljax.loops.on_policy_host import host_loop
from rljax.types import Algo, EnvSpec

BACKENDS = ("jax", "gymnasium")
POSITIVE = (
    "num_seeds",
    "total_steps",
    "unroll_length",
    "log_interval",
    "eval_interval",
    "eval_episodes",
    "checkpoint_interval",
    "keep_checkpoints",
    "env.num_envs",
)


class Run(NamedTuple):
    loop: Loop
    num_updates: int


def build(config: Config) -> Run:
    """Everything that a run needs; nothing is compiled yet.

    The number of updates is `total_steps` over the steps of one update, rounded up.

    Raises:
      ValueError: if the config does not make a run; the message names the field and what is
        allowed.
    """
    check(config)
    steps_per_update = config.env.num_envs * config.unroll_length
    num_updates = math.ceil(config.total_steps / steps_per_update)
    settings = dict(
        num_envs=config.env.num_envs,
        unroll_length=config.unroll_length,
        max_updates=min(config.log_interval, num_updates),
        eval_episodes=config.eval_episodes,
        seed=config.seed,
        num_seeds=config.num_seeds,
    )
    if config.env.backend == "jax":
        env = envs.make(config.env.name)
        algo = make_algo(config, env.spec, num_updates)
        return Run(jax_loop(env, algo, num_devices=config.num_devices, **settings), num_updates)

    from rljax.envs.gymnasium import make_host

    make_env = partial(make_host, config.env.name, autoreset_mode=config.env.autoreset_mode)
    env = make_env(1)
    algo = make_algo(config, env.spec, num_updates)
    env.close()
    return Run(host_loop(make_env, algo, **settings), num_updates)


def make_algo(config: Config, spec: EnvSpec, num_updates: int) -> Algo:
    name = config.algo.name
    modules = {
        module.name: importlib.import_module(f"rljax.algos.{module.name}")
        for module in pkgutil.iter_modules(rljax.algos.__path__)
    }
    makers = {key: module.make for key, module in modules.items() if hasattr(module, "make")}
    if name not in makers:
        raise ValueError(f"config.algo.name is {name!r}: allowed are {', '.join(makers)}")
    try:
        return makers[name](config, spec, num_updates=num_updates)
    except AttributeError as error:  # a field of another algorithm's config
        raise ValueError(f"config for {name}: missing field {error}") from error


def check(config: Config) -> None:
    """What can be said of a config without looking at the environment or the algorithm."""
    for field in POSITIVE:
        value = get(config, field)
        if value < 1:
            raise ValueError(f"config.{field} is {value}: it must be at least 1")
    for field in ("eval_interval", "checkpoint_interval"):
        if config[field] % config.log_interval:
            raise ValueError(
                f"config.{field} is {config[field]}: it must be a multiple of config.log_interval, "
                f"{config.log_interval}"
            )
    if not 0 <= config.seed < 2**32 - config.num_seeds:
        raise ValueError(f"config.seed is {config.seed}: it must be in 0 ... 2^32 - 1 - num_seeds")
    if config.env.backend not in BACKENDS:
        raise ValueError(
            f"config.env.backend is {config.env.backend!r}: allowed are {', '.join(BACKENDS)}"
        )
    for field in ("discount", "lambda_"):
        value = config.algo.get(field, 1.0)
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"config.algo.{field} is {value}: it must be in 0 ... 1")
    batch = config.env.num_envs * config.unroll_length
    minibatches = config.algo.get("minibatches", 1)
    if minibatches < 1 or batch % minibatches:
        raise ValueError(
            f"a batch of {batch} (config.env.num_envs {config.env.num_envs} x config.unroll_length "
            f"{config.unroll_length}) is not divisible by config.algo.minibatches {minibatches}"
        )


def get(config: Config, field: str):
    for name in field.split("."):
        config = config[name]
    return config
