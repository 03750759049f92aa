"""TRPO on MountainCarContinuous-v0.

python -m experiments.run --config=experiments/configs/trpo_mountain_car_continuous.py \\
    --workdir=runs/trpo_mountain_car_continuous
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("MountainCarContinuous-v0")
    config.algo = defaults.trpo()
    config.algo.discount = 0.9999
    config.normalize_observations = True
    config.env.normalize_rewards = True
    config.noise_hold = 16  # a car that is pushed to and fro at random never leaves the valley
    config.algo.value_iterations = 20
    config.optimizer.learning_rate = 1e-3  # of the value network
    config.env.num_envs = 8
    config.unroll_length = 32
    config.total_steps = 50_000
    return defaults.quick(config) if defaults.check_variant(variant) else config
