"""The fields of a config by section; each config file starts here and changes what it needs.

An algorithm takes every setting that changes results from its config, so all of them stand here.
"""

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

# Config files take these from here, and `check.py` by their names.
from experiments.configs.algorithms import (  # noqa: F401
    a2c,
    c51,
    ddpg,
    dqn,
    ppo,
    sac,
    td3,
    trpo,
    vpg,
)

Config = Any  # a ConfigDict; type checkers do not know its fields


def run(env: str, *, backend: str = "jax") -> Config:
    """Fields of every run. Intervals count updates of unroll_length x env.num_envs steps."""
    config: Config = ConfigDict()
    config.seed = 0
    config.num_seeds = 1  # whole runs side by side, of seed, seed + 1, ...
    config.num_devices = 1  # one seed's environments, or the seeds, are split over them; 0: all
    config.num_workers = 0  # processes that step Gymnasium's environments beside the main one
    config.total_steps = 500_000  # environment steps of each seed
    config.unroll_length = 128
    config.noise_hold = 1  # steps for which the policy's noise is kept; more explores further
    config.log_interval = 10  # one row of metrics, the mean over so many updates
    config.eval_interval = 50  # a multiple of log_interval, like checkpoint_interval
    config.eval_episodes = 64
    config.checkpoint_interval = 50
    config.keep_checkpoints = 3
    config.normalize_observations = False
    config.solved_return = placeholder(float)  # drawn as a line in curves.png

    config.env = ConfigDict()
    config.env.name = env
    # "jax", "gymnasium" or "envpool", which resumes with fresh episodes, all else as it was.
    config.env.backend = backend
    config.env.num_envs = 8
    config.env.autoreset_mode = "same_step"  # of gymnasium: or "next_step"
    config.env.actions = "clip"  # real ones to their bounds; or "scale" from [-1, 1], "none"
    config.env.normalize_rewards = False  # by the running return's deviation; not in evaluation
    config.net = mlp()
    config.optimizer = adam()
    return config


def mlp() -> Config:
    net: Config = ConfigDict()
    net.name = "mlp"  # or "tabular"
    net.hidden_sizes = (64, 64)
    net.activation = "tanh"  # or "relu", "silu", "gelu"
    net.log_std = "parameter"  # of real actions: or "network"
    net.log_std_init = 0.0
    return net


def adam() -> Config:
    optimizer: Config = ConfigDict()
    optimizer.name = "adam"  # or "rmsprop", "sgd"
    optimizer.learning_rate = 3e-4
    optimizer.anneal = False  # linearly to 0 over the run
    optimizer.max_grad_norm = placeholder(float)
    optimizer.eps = 1e-8
    return optimizer


def annealed(learning_rate: float, *, name: str = "adam") -> Config:
    """The optimiser of the PPO and A2C configs: the rate falls to 0, gradients are bounded."""
    optimizer = adam()
    optimizer.name = name
    optimizer.learning_rate = learning_rate
    optimizer.anneal = True
    optimizer.max_grad_norm = 0.5
    optimizer.eps = 1e-5
    return optimizer


def line_world(algo: Config) -> Config:
    """A tabular run on the line world with the notes' discount."""
    config = run("LineWorld-v0")
    config.algo = algo
    config.algo.discount = 0.9
    config.algo.lambda_ = 0.9
    config.algo.entropy_coef = 0.01
    config.net.name = "tabular"
    config.optimizer.name = "sgd"
    config.optimizer.learning_rate = 0.5
    config.env.num_envs = 16
    config.unroll_length = 25
    config.total_steps = 400_000
    config.eval_episodes = 1  # the world and the greedy policy are deterministic
    config.eval_interval = config.checkpoint_interval = 100
    config.solved_return = 985.0  # -5 once, then 10 for the other 99 steps
    return config


def mujoco(env: str, algo: Config) -> Config:
    """1M steps of one of Gymnasium's MuJoCo environments, 2048 steps an update."""
    config = run(env, backend="gymnasium")
    config.algo = algo
    config.num_workers = 1
    config.normalize_observations = True
    config.net.log_std_init = -0.5
    config.env.num_envs = 32
    config.unroll_length = 64
    config.total_steps = 1_000_000
    config.log_interval = 1
    config.eval_interval = 50
    config.eval_episodes = 10
    config.checkpoint_interval = 25
    return config


def mujoco_ppo(env: str) -> Config:
    config = mujoco(env, ppo())
    config.env.normalize_rewards = True
    config.algo.epochs = 10
    config.algo.minibatches = 8
    config.optimizer = annealed(3e-4)
    return config


def mujoco_trpo(env: str) -> Config:
    config = mujoco(env, trpo())
    config.env.normalize_rewards = True
    config.algo.value_iterations = 40
    config.optimizer.learning_rate = 1e-3  # of the value network
    return config


def mujoco_vpg(env: str) -> Config:
    config = mujoco(env, vpg())
    config.env.normalize_rewards = True
    config.algo.value_iterations = 40
    config.optimizer.learning_rate = 3e-3
    return config


def quick_mujoco(config: Config) -> Config:
    config.env.num_envs = 8
    config.num_workers = 0
    config = quick(config)
    config.eval_episodes = 2
    return config


OFF_POLICY = ("dqn", "c51", "ddpg", "td3", "sac")


def off_policy(env: str, algo: Config, *, backend: str = "jax") -> Config:
    """Fields of a run that learns from a replay. Intervals count updates here too."""
    config = run(env, backend=backend)
    config.algo = algo
    config.replay = replay()
    config.env.num_envs = 1
    config.unroll_length = 1
    config.log_interval = 1000
    config.eval_interval = config.checkpoint_interval = 5000
    config.net.activation = "relu"
    config.optimizer.learning_rate = 1e-3
    return config


def mujoco_off_policy(env: str, algo: Config) -> Config:
    """1M steps of one of Gymnasium's MuJoCo environments, as Spinning Up's benchmark sets them."""
    config = off_policy(env, algo, backend="gymnasium")
    config.net.hidden_sizes = (256, 256)
    config.optimizer.learning_rate = 1e-3
    config.replay.batch_size = 100
    config.total_steps = 1_000_000
    config.replay.warmup_steps = 10_000
    config.eval_interval = 10_000
    config.checkpoint_interval = 50_000
    config.eval_episodes = 10
    return config


def replay() -> Config:
    config: Config = ConfigDict()
    config.capacity = 1_000_000  # transitions, of all environments of a seed
    config.batch_size = 256
    config.warmup_steps = 1000  # random environment steps before the first update
    config.updates_per_step = 1.0  # gradient steps for each environment step
    config.checkpoint = True  # False: smaller checkpoints; a resumed run warms up again
    return config


def check_variant(variant: str) -> bool:
    """Whether the config is to be `quick`: small enough to run in a few seconds."""
    if variant not in ("", "quick"):
        raise ValueError(f"unknown variant {variant!r}: allowed are none and 'quick'")
    return variant == "quick"


def quick(config: Config, *, updates: int = 4) -> Config:
    """Shrinks a run to a few updates that still pass through logging, evaluation and saving."""
    config.total_steps = updates * config.unroll_length * config.env.num_envs
    config.log_interval = 1
    config.eval_interval = 2
    config.checkpoint_interval = 2
    config.eval_episodes = 4
    return config


def quick_off_policy(config: Config) -> Config:
    config.net.hidden_sizes = (8, 8)
    config.replay.capacity = 1000
    config.replay.warmup_steps = 40
    config.replay.batch_size = 16
    config = quick(config)
    config.log_interval = 5
    config.eval_interval = config.checkpoint_interval = 10
    config.total_steps = 40 + 20 * config.unroll_length * config.env.num_envs
    return config
