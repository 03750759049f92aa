"""PPO on Acrobot-v1.

python -m experiments.run --config=experiments/configs/ppo_acrobot.py --workdir=runs/ppo_acrobot
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("Acrobot-v1")
    config.algo = defaults.ppo()
    config.optimizer = defaults.annealed(1e-3)
    config.normalize_observations = True
    config.env.num_envs = 16
    config.unroll_length = 128
    config.total_steps = 1_000_000
    return defaults.quick(config) if defaults.check_variant(variant) else config
