"""Whether a config can be run, as far as that can be said without environment and algorithm."""

from typing import Any

from ml_collections import ConfigDict

from experiments.configs import defaults
from experiments.configs.defaults import Config
from rljax.nets.actor_critic import check_choice

BACKENDS = ("jax", "gymnasium", "envpool")
RANGES = {  # of the numbers in a config; None is allowed where the config had it at first
    "[1, inf)": (
        *("num_seeds", "unroll_length", "noise_hold", "env.num_envs", "log_interval"),
        *("eval_interval", "eval_episodes", "checkpoint_interval", "keep_checkpoints"),
        *("algo.epochs", "algo.minibatches", "algo.value_iterations"),
        *("algo.cg_iterations", "algo.max_backtracks"),
        *("replay.capacity", "replay.batch_size", "replay.warmup_steps"),
        *("algo.n_step", "algo.target_period", "algo.epsilon_steps", "algo.policy_delay"),
    ),
    "[1, 1e12]": ("total_steps",),  # checkpoints are named by 12 digits
    "[0, inf)": (
        *("num_devices", "num_workers", "optimizer.learning_rate", "algo.value_learning_rate"),
        *("algo.entropy_coef", "algo.value_coef", "algo.kl_coef", "algo.damping"),
        *("algo.noise_scale", "algo.target_noise", "algo.target_noise_clip"),
    ),
    "(0, inf)": (
        *("optimizer.eps", "optimizer.max_grad_norm", "algo.clip", "algo.clip_high"),
        *("algo.value_clip", "algo.target_kl", "algo.kl_stop_factor", "algo.max_kl"),
        *("replay.updates_per_step", "algo.huber_delta"),
        *("algo.temperature", "algo.init_temperature"),
    ),
    "(1, inf)": ("algo.dual_clip",),
    "[0, 1]": (
        *("algo.discount", "algo.lambda_", "algo.target_rate"),
        *("algo.epsilon_start", "algo.epsilon_end"),
    ),
    "(0, 1)": ("algo.backtrack_ratio",),
    "[2, inf)": ("algo.num_atoms",),
    "(-inf, inf)": (
        *("net.log_std_init", "solved_return"),
        *("algo.target_entropy", "algo.value_min", "algo.value_max"),
    ),
}


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
    if "replay" in config and (config.normalize_observations or config.env.normalize_rewards):
        raise ValueError(
            "config.normalize_observations and config.env.normalize_rewards must be False for "
            f"{config.algo.name}: what its replay holds would mean something else every step"
        )
    if "replay" in config:
        check_capacity(config)
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


def check_capacity(config: Config) -> None:
    """Raises unless the replay holds a batch, the warm-up, and the steps of one update."""
    capacity, at_once = config.replay.capacity, config.env.num_envs * config.unroll_length
    for name, size in {
        "config.replay.batch_size": config.replay.batch_size,
        "config.replay.warmup_steps": config.replay.warmup_steps,
        "config.env.num_envs x config.unroll_length": at_once,
    }.items():
        if size > capacity:
            raise ValueError(
                f"config.replay.capacity is {capacity}: it must be at least {name}, {size}"
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
