"""PPO on MountainCar-v0.

python -m experiments.run --config=experiments/configs/ppo_mountain_car.py \\
    --workdir=runs/ppo_mountain_car
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("MountainCar-v0")
    config.algo = defaults.ppo()
    config.optimizer = defaults.annealed(1e-3)
    config.normalize_observations = True
    config.noise_hold = 16  # a car that is pushed to and fro at random never leaves the valley
    config.env.num_envs = 16
    config.unroll_length = 128
    config.total_steps = 1_000_000
    return defaults.quick(config) if defaults.check_variant(variant) else config
