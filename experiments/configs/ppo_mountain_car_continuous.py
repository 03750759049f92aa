"""PPO on MountainCarContinuous-v0.

python -m experiments.run --config=experiments/configs/ppo_mountain_car_continuous.py \\
    --workdir=runs/ppo_mountain_car_continuous
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("MountainCarContinuous-v0")
    config.algo = defaults.ppo()
    config.algo.discount = 0.9999
    config.normalize_observations = True
    config.env.normalize_rewards = True
    config.noise_hold = 16  # a car that is pushed to and fro at random never leaves the valley
    config.algo.epochs = 10
    config.algo.minibatches = 8
    config.optimizer = defaults.annealed(1e-3)
    config.env.num_envs = 8
    config.unroll_length = 64
    config.total_steps = 20_000
    return defaults.quick(config) if defaults.check_variant(variant) else config
