"""SAC on MountainCarContinuous-v0.

python -m experiments.run --config=experiments/configs/sac_mountain_car_continuous.py \\
    --workdir=runs/sac_mountain_car_continuous
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.off_policy("MountainCarContinuous-v0", defaults.sac())
    config.noise_hold = 16  # the car must be pushed for a while before anything happens
    config.replay.capacity = 50_000
    config.total_steps = 50_000
    return defaults.quick_off_policy(config) if defaults.check_variant(variant) else config
