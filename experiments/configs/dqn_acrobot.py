"""DQN on Acrobot-v1.

python -m experiments.run --config=experiments/configs/dqn_acrobot.py --workdir=runs/dqn_acrobot
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.off_policy("Acrobot-v1", defaults.dqn())
    config.total_steps = 100_000
    config.replay.capacity = 100_000
    return defaults.quick_off_policy(config) if defaults.check_variant(variant) else config
