"""From a config to a run: environment, algorithm and loop put together."""

import contextlib
import importlib
import os
import pkgutil
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax

import rljax.algos
from experiments.check import check
from experiments.configs.defaults import Config
from rljax import envs
from rljax.data.memory import check_memory
from rljax.data.replay import Replay, make_replay
from rljax.data.windows import n_step
from rljax.envs import host_transforms, transforms
from rljax.loops import off_policy, off_policy_host, on_policy, on_policy_host
from rljax.loops.loop import Loop
from rljax.loops.off_policy import example_of
from rljax.nets.actor_critic import check_choice
from rljax.types import Algo, Box, Env, EnvSpec, HostVectorEnv, OffPolicyAlgo

MakeAlgo = Callable[[EnvSpec], Any]  # -> Algo or OffPolicyAlgo


class Run(NamedTuple):
    loop: Loop
    algo: Algo | OffPolicyAlgo
    num_updates: int
    replay_bytes: int  # of all seeds


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
    gradients = num_updates * (gradient_steps(config) if "replay" in config else 1)
    make_algo = partial(makers[config.algo.name], config, num_updates=gradients)
    settings: dict[str, Any] = dict(
        num_envs=config.env.num_envs,
        unroll_length=config.unroll_length,
        max_updates=min(config.log_interval, num_updates),
        eval_episodes=config.eval_episodes,
        seed=config.seed,
        num_seeds=config.num_seeds,
        noise_hold=config.noise_hold,
    )
    offer_cpu_devices(config.num_devices)  # first: whatever touches an array starts JAX
    build_loop = build_off_policy if "replay" in config else build_on_policy
    loop, algo, replay_bytes = build_loop(config, make_algo, settings)
    return Run(loop, algo, num_updates, replay_bytes)


def build_on_policy(config: Config, make_algo: MakeAlgo, settings: dict[str, Any]):
    if config.env.backend == "jax":
        env = make_jax_env(config)
        if config.env.normalize_rewards:
            settings["transform"] = partial(
                transforms.normalize_rewards, discount=config.algo.discount
            )
        algo = make_algo(env.spec)
        return on_policy.jax_loop(env, algo, num_devices=config.num_devices, **settings), algo, 0

    make_env = make_host_env(config)
    if config.env.normalize_rewards:
        settings["transform"] = partial(
            host_transforms.normalize_rewards,
            discount=config.algo.discount,
            num_groups=config.num_seeds,
        )
    algo = make_algo(spec_of(make_env))
    return on_policy_host.host_loop(make_env, algo, **settings), algo, 0


def build_off_policy(config: Config, make_algo: MakeAlgo, settings: dict[str, Any]):
    settings |= {
        "gradient_steps": gradient_steps(config),
        "batch_size": config.replay.batch_size,
        "warmup_steps": config.replay.warmup_steps,
        "save_replay": config.replay.checkpoint,
    }

    def make_parts(spec: EnvSpec) -> tuple[OffPolicyAlgo, Replay]:
        replay = make_replay(
            example_of(spec),
            capacity=config.replay.capacity,
            num_envs=config.env.num_envs,
            window=n_step(config.algo.n_step, discount=config.algo.discount),
        )
        needed = config.num_seeds * replay.num_bytes
        check_memory(f"config.replay.capacity is {config.replay.capacity}: it", needed)
        return make_algo(spec), replay

    if config.env.backend == "jax":
        env = make_jax_env(config)
        algo, replay = make_parts(env.spec)
        loop = off_policy.jax_loop(env, algo, replay, num_devices=config.num_devices, **settings)
    else:
        make_env = make_host_env(config)
        algo, replay = make_parts(spec_of(make_env))
        loop = off_policy_host.host_loop(make_env, algo, replay, **settings)
    return loop, algo, config.num_seeds * replay.num_bytes


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
