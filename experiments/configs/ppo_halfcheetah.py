"""PPO on Gymnasium's HalfCheetah-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/ppo_halfcheetah.py \\
    --workdir=runs/ppo_halfcheetah
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("HalfCheetah-v5", backend="gymnasium")
    config.algo = defaults.ppo()
    config.algo.epochs = 10
    config.algo.minibatches = 32
    config.optimizer.learning_rate = 3e-4
    config.optimizer.anneal = True
    config.optimizer.eps = 1e-5
    config.normalize_observations = True
    config.env.num_envs = 8
    config.unroll_length = 256
    config.total_steps = 1_000_000
    config.log_interval = 1
    config.eval_interval = 50
    config.eval_episodes = 10
    config.checkpoint_interval = 25
    if defaults.check_variant(variant):
        config.unroll_length = 64
        config = defaults.quick(config)
        config.eval_episodes = 2
    return config
