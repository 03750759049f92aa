"""From a config to a run: checks it, then puts environment, algorithm and loop together."""

import contextlib
import importlib
import os
import pkgutil
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

import rljax.algos
from experiments.configs import defaults
from experiments.configs.defaults import Config
from rljax import envs
from rljax.data.replay import Replay, make_replay
from rljax.data.windows import n_step
from rljax.envs import host_transforms, transforms
from rljax.loops import off_policy, off_policy_host, on_policy, on_policy_host
from rljax.loops.loop import Loop
from rljax.loops.off_policy import example_of
from rljax.nets.actor_critic import check_choice
from rljax.types import Algo, Box, Env, EnvSpec, HostVectorEnv, OffPolicyAlgo

BACKENDS = ("jax", "gymnasium", "envpool")
RANGES = {  # of the numbers in a config; None is allowed where the config had it at first
    "[1, inf)": (
        *("num_seeds", "unroll_length", "noise_hold", "env.num_envs", "log_interval"),
        *("eval_interval", "eval_episodes", "checkpoint_interval", "keep_checkpoints"),
        *("algo.epochs", "algo.minibatches", "algo.value_iterations"),
        *("algo.cg_iterations", "algo.max_backtracks"),
    ),
    "[1, 1e12]": ("total_steps",),  # checkpoints are named by 12 digits
    "[0, inf)": (
        *("num_devices", "num_workers", "optimizer.learning_rate", "algo.value_learning_rate"),
        *("algo.entropy_coef", "algo.value_coef", "algo.kl_coef", "algo.damping"),
    ),
    "(0, inf)": (
        *("optimizer.eps", "optimizer.max_grad_norm", "algo.clip", "algo.clip_high"),
        *("algo.value_clip", "algo.target_kl", "algo.kl_stop_factor", "algo.max_kl"),
    ),
    "(1, inf)": ("algo.dual_clip",),
    "[0, 1]": ("algo.discount", "algo.lambda_"),
    "(0, 1)": ("algo.backtrack_ratio",),
    "(-inf, inf)": ("net.log_std_init", "solved_return"),
}


MakeAlgo = Callable[[EnvSpec], Any]  # -> Algo or OffPolicyAlgo


class Run(NamedTuple):
    loop: Loop
    algo: Algo | OffPolicyAlgo
    num_updates: int


def build(config: Config) -> Run:
    """Everything that a run needs; nothing is compiled yet.

    The number of updates is `total_steps` over the steps of one update, rounded up.

    Raises:
      ValueError: if the config does not make a run; the message names the field and what is
        allowed.
    """
    makers = find_algos()
    check_choice("config.algo.name", config.get("algo", {}).get("name"), tuple(makers))
    check(config)
    steps_per_update = config.env.num_envs * config.unroll_length
    learned = config.total_steps - warmup_steps(config)
    num_updates = -(-learned // steps_per_update)
    if num_updates >= 2**31:
        raise ValueError(
            f"config.total_steps is {config.total_steps}: it must be below 2^31 updates of "
            f"{steps_per_update} steps"
        )
    make_algo = partial(makers[config.algo.name], config, num_updates=num_updates)
    settings: dict[str, Any] = dict(
        num_envs=config.env.num_envs,
        unroll_length=config.unroll_length,
        max_updates=min(config.log_interval, num_updates),
        eval_episodes=config.eval_episodes,
        seed=config.seed,
        num_seeds=config.num_seeds,
    )
    build_loop = build_off_policy if "replay" in config else build_on_policy
    return Run(*build_loop(config, make_algo, settings), num_updates)


def build_on_policy(config: Config, make_algo: MakeAlgo, settings: dict[str, Any]):
    settings["noise_hold"] = config.noise_hold
    if config.env.backend == "jax":
        env = make_jax_env(config)
        if config.env.normalize_rewards:
            settings["transform"] = partial(
                transforms.normalize_rewards, discount=config.algo.discount
            )
        algo = make_algo(env.spec)
        offer_cpu_devices(config.num_devices)
        return on_policy.jax_loop(env, algo, num_devices=config.num_devices, **settings), algo

    make_env = make_host_env(config)
    if config.env.normalize_rewards:
        settings["transform"] = partial(
            host_transforms.normalize_rewards,
            discount=config.algo.discount,
            num_groups=config.num_seeds,
        )
    algo = make_algo(spec_of(make_env))
    return on_policy_host.host_loop(make_env, algo, **settings), algo


def build_off_policy(config: Config, make_algo: MakeAlgo, settings: dict[str, Any]):
    settings |= {
        "gradient_steps": gradient_steps(config),
        "batch_size": config.replay.batch_size,
        "warmup_steps": config.replay.warmup_steps,
        "noise_hold": config.noise_hold,
        "save_replay": config.replay.checkpoint,
    }

    def make_parts(spec: EnvSpec) -> tuple[OffPolicyAlgo, Replay]:
        replay = make_replay(
            example_of(spec),
            capacity=config.replay.capacity,
            num_envs=config.env.num_envs,
            window=n_step(config.algo.n_step, discount=config.algo.discount),
        )
        return make_algo(spec), replay

    if config.env.backend == "jax":
        env = make_jax_env(config)
        algo, replay = make_parts(env.spec)
        offer_cpu_devices(config.num_devices)
        loop = off_policy.jax_loop(env, algo, replay, num_devices=config.num_devices, **settings)
        return loop, algo
    make_env = make_host_env(config)
    algo, replay = make_parts(spec_of(make_env))
    return off_policy_host.host_loop(make_env, algo, replay, **settings), algo


def warmup_steps(config: Config) -> int:
    """Environment steps before the first update: whole steps of all environments."""
    if "replay" not in config:
        return 0
    num_envs = config.env.num_envs
    steps = -(-config.replay.warmup_steps // num_envs) * num_envs
    if steps >= config.total_steps:
        raise ValueError(
            f"config.total_steps is {config.total_steps}: it must be above the {steps} steps of "
            "config.replay.warmup_steps"
        )
    return steps


def gradient_steps(config: Config) -> int:
    """Of one update."""
    steps = config.env.num_envs * config.unroll_length
    number = config.replay.updates_per_step * steps
    if number < 1 or abs(number - round(number)) > 1e-6 * number:
        raise ValueError(
            f"config.replay.updates_per_step is {config.replay.updates_per_step}: times the "
            f"{steps} steps of an update (config.env.num_envs x config.unroll_length) it must be "
            f"a whole number, at least 1, and is {number:g}"
        )
    return round(number)


def spec_of(make_env: Callable[[int], HostVectorEnv]) -> EnvSpec:
    env = make_env(1)
    env.close()
    return env.spec


def offer_cpu_devices(num_devices: int) -> None:
    """Lets the CPU be so many devices, unless JAX has started or the environment says how many."""
    if num_devices > 1 and "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", num_devices)


def make_jax_env(config: Config) -> Env:
    """The pure-JAX environment of a config as its policy sees it."""
    env = envs.make(config.env.name)
    if config.env.actions == "clip":
        return transforms.clip_actions(env)
    return transforms.scale_actions(env) if scales_actions(config, env.spec) else env


def make_host_env(config: Config) -> Callable[[int], HostVectorEnv]:
    """The same for host environments, by their number; packages of other backends may be absent."""
    if config.env.backend == "envpool":
        from rljax.envs.envpool import make_envpool

        make = partial(make_envpool, config.env.name)
    else:
        from rljax.envs.gymnasium import make_host

        make = partial(
            make_host,
            config.env.name,
            autoreset_mode=config.env.autoreset_mode,
            workers=config.num_workers,
        )
    return lambda num_envs: transform_host(config, make(num_envs))


def transform_host(config: Config, env: HostVectorEnv) -> HostVectorEnv:
    """What a policy needs between itself and host environments, which clip by themselves."""
    return host_transforms.scale_actions(env) if scales_actions(config, env.spec) else env


def scales_actions(config: Config, spec: EnvSpec) -> bool:
    return config.env.actions == "scale" and isinstance(spec.action_space, Box)


def find_algos() -> dict[str, Callable[..., Algo]]:
    """The modules of rljax.algos that make an algorithm, by name."""
    names = [module.name for module in pkgutil.iter_modules(rljax.algos.__path__)]
    modules = {name: importlib.import_module(f"rljax.algos.{name}") for name in names}
    return {name: module.make for name, module in modules.items() if hasattr(module, "make")}


def check(config: Config) -> None:
    """What can be said of a config without looking at the environment or the algorithm."""
    expected = defaults.run("")
    expected.algo = getattr(defaults, config.algo.name, lambda: config.algo)()
    if config.algo.name in defaults.OFF_POLICY:
        expected.replay = defaults.replay()
    check_fields("config", config, expected)
    for allowed, fields in RANGES.items():
        for field in fields:
            check_range(f"config.{field}", get(config, field), allowed)
    check_choice("config.env.backend", config.env.backend, BACKENDS)
    check_choice("config.env.actions", config.env.actions, ("clip", "scale", "none"))
    if config.env.backend != "jax" and config.env.actions == "none":
        raise ValueError(
            f"config.env.actions is 'none': with config.env.backend {config.env.backend!r}, which "
            "always clips, allowed are clip, scale"
        )
    if config.env.backend != "jax" and config.num_devices > 1:
        raise ValueError(
            f"config.num_devices is {config.num_devices}: with config.env.backend "
            f"{config.env.backend!r} it must be 1"
        )
    for field in ("eval_interval", "checkpoint_interval"):
        if config[field] % config.log_interval:
            raise ValueError(
                f"config.{field} is {config[field]}: it must be a multiple of config.log_interval, "
                f"{config.log_interval}"
            )
    if not 0 <= config.seed < 2**32 - config.num_seeds:
        raise ValueError(f"config.seed is {config.seed}: it must be in 0 ... 2^32 - 1 - num_seeds")
    batch = config.env.num_envs * config.unroll_length
    minibatches = config.algo.get("minibatches", 1)
    if batch % minibatches:
        raise ValueError(
            f"a batch of {batch} (config.env.num_envs {config.env.num_envs} x config.unroll_length "
            f"{config.unroll_length}) is not divisible by config.algo.minibatches {minibatches}"
        )


def check_fields(where: str, config: Config, expected: Config) -> None:
    """Raises unless the fields have the names and types expected: a misspelt one does nothing."""
    for name in sorted({*config, *expected}):
        field = f"{where}.{name}"
        if name not in config:
            raise ValueError(f"{field} is missing")
        if name not in expected:
            raise ValueError(f"{field} is unknown; {where} has {', '.join(sorted(expected))}")
        value, like = config[name], expected[name]
        kind = (int, float) if isinstance(like, float) else type(like)
        if like is not None and not isinstance(value, kind):
            raise ValueError(f"{field} is {value!r}: it must be of type {type(like).__name__}")
        if isinstance(like, ConfigDict):
            check_fields(field, value, like)


def check_range(field: str, value: Any, allowed: str) -> None:
    """Raises unless `value` is None or a number in the interval, "[0, 1)" say; NaN is in none."""
    low, high = (float(bound) for bound in allowed[1:-1].split(","))
    if value is None:
        return
    inside = isinstance(value, int | float) and (
        low < value < high
        or (value == low and allowed[0] == "[")
        or (value == high and allowed[-1] == "]")
    )
    if not inside:
        raise ValueError(f"{field} is {value!r}: it must be in {allowed}")


def get(config: Config, field: str) -> Any:
    """The value of "algo.clip", say; None if there is no such field."""
    for name in field.split("."):
        config = config.get(name) if config else None
    return config
