"""Vanilla policy gradient on CartPole-v1.

python -m experiments.run --config=experiments/configs/vpg_cartpole.py --workdir=runs/vpg_cartpole
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("CartPole-v1")
    config.algo = defaults.vpg()
    config.optimizer.learning_rate = 1e-2
    config.optimizer.anneal = True
    config.algo.value_learning_rate = 5e-3
    config.algo.value_iterations = 20
    config.env.num_envs = 16
    config.unroll_length = 128
    config.total_steps = 1_000_000
    config.solved_return = 500.0
    return defaults.quick(config) if defaults.check_variant(variant) else config
