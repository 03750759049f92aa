"""TRPO on CartPole-v1.

python -m experiments.run --config=experiments/configs/trpo_cartpole.py --workdir=runs/trpo_cartpole
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("CartPole-v1")
    config.algo = defaults.trpo()
    config.optimizer.learning_rate = 5e-3  # of the value network
    config.algo.value_iterations = 20
    config.env.num_envs = 16
    config.unroll_length = 128
    config.total_steps = 500_000
    config.solved_return = 500.0
    return defaults.quick(config) if defaults.check_variant(variant) else config
