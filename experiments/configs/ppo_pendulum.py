"""PPO on Pendulum-v1.

python -m experiments.run --config=experiments/configs/ppo_pendulum.py --workdir=runs/ppo_pendulum
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("Pendulum-v1")
    config.algo = defaults.ppo()
    config.algo.discount = 0.9
    config.eval_episodes = 128  # the start decides much: about ±90 per episode
    config.env.normalize_rewards = True
    config.noise_hold = 4
    config.algo.epochs = 10
    config.algo.minibatches = 8
    config.optimizer = defaults.annealed(1e-3)
    config.env.num_envs = 4
    config.unroll_length = 200
    config.total_steps = 100_000
    return defaults.quick(config) if defaults.check_variant(variant) else config
