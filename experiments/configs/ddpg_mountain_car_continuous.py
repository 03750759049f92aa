"""DDPG on MountainCarContinuous-v0.

python -m experiments.run --config=experiments/configs/ddpg_mountain_car_continuous.py \\
    --workdir=runs/ddpg_mountain_car_continuous
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.off_policy("MountainCarContinuous-v0", defaults.ddpg())
    config.algo.noise = "ou"
    config.algo.noise_scale = 0.5
    config.replay.capacity = 300_000
    config.unroll_length = 4
    config.replay.updates_per_step = 0.25
    config.total_steps = 300_000
    return defaults.quick_off_policy(config) if defaults.check_variant(variant) else config
