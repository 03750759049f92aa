"""SAC on Pendulum-v1.

python -m experiments.run --config=experiments/configs/sac_pendulum.py --workdir=runs/sac_pendulum
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.off_policy("Pendulum-v1", defaults.sac())
    config.eval_episodes = 128  # the start decides much: about ±90 per episode
    config.replay.capacity = 20_000
    config.total_steps = 20_000
    return defaults.quick_off_policy(config) if defaults.check_variant(variant) else config
