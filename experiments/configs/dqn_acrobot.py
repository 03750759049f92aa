"""DQN on Acrobot-v1.

python -m experiments.run --config=experiments/configs/dqn_acrobot.py --workdir=runs/dqn_acrobot
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.off_policy("Acrobot-v1", defaults.dqn())
    config.algo.n_step = 3
    config.algo.target_rate = 0.005
    config.algo.target_period = 1
    config.net.hidden_sizes = (128, 128)
    config.optimizer.anneal = True
    config.replay.batch_size = 128
    config.total_steps = 100_000
    config.replay.capacity = 100_000
    return defaults.quick_off_policy(config) if defaults.check_variant(variant) else config
