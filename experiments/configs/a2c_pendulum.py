"""A2C on Pendulum-v1.

python -m experiments.run --config=experiments/configs/a2c_pendulum.py --workdir=runs/a2c_pendulum
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("Pendulum-v1")
    config.algo = defaults.a2c()
    config.algo.discount = 0.9
    config.eval_episodes = 128  # the start decides much: about ±90 per episode
    config.algo.lambda_ = 0.9
    config.optimizer = defaults.annealed(2e-3, name="rmsprop")
    config.normalize_observations = True
    config.env.normalize_rewards = True
    config.env.num_envs = 8
    config.unroll_length = 8
    config.total_steps = 1_000_000
    config.log_interval = 100
    config.eval_interval = config.checkpoint_interval = 2000
    return defaults.quick(config) if defaults.check_variant(variant) else config
