"""Advantage actor-critic on CartPole-v1.

python -m experiments.run --config=experiments/configs/a2c_cartpole.py --workdir=runs/a2c_cartpole
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("CartPole-v1")
    config.algo = defaults.a2c()
    config.optimizer = defaults.annealed(7e-4, name="rmsprop")
    config.env.num_envs = 8
    config.unroll_length = 5
    config.total_steps = 500_000
    config.log_interval = 250
    config.eval_interval = config.checkpoint_interval = 1250
    config.solved_return = 500.0
    return defaults.quick(config) if defaults.check_variant(variant) else config
