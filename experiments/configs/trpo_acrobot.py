"""TRPO on Acrobot-v1.

python -m experiments.run --config=experiments/configs/trpo_acrobot.py --workdir=runs/trpo_acrobot
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("Acrobot-v1")
    config.algo = defaults.trpo()
    config.algo.max_kl = 0.02
    config.algo.value_iterations = 20
    config.optimizer.learning_rate = 1e-3  # of the value network
    config.normalize_observations = True
    config.env.num_envs = 8
    config.unroll_length = 64
    config.total_steps = 100_000
    return defaults.quick(config) if defaults.check_variant(variant) else config
