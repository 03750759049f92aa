"""PPO on CartPole-v1.

python -m experiments.run --config=experiments/configs/ppo_cartpole.py --workdir=runs/ppo_cartpole
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("CartPole-v1")
    config.algo = defaults.ppo()
    config.algo.entropy_coef = 0.01
    config.optimizer = defaults.annealed(2.5e-3)
    config.env.num_envs = 8
    config.unroll_length = 128
    config.total_steps = 500_000
    config.solved_return = 500.0
    return defaults.quick(config) if defaults.check_variant(variant) else config
