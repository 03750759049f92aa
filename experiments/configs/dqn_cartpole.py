"""DQN on CartPole-v1.

python -m experiments.run --config=experiments/configs/dqn_cartpole.py \\
    --workdir=runs/dqn_cartpole
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.off_policy("CartPole-v1", defaults.dqn())
    config.algo.n_step = 3
    config.algo.target_rate = 0.005
    config.algo.target_period = 1
    config.algo.epsilon_steps = 5000
    config.net.hidden_sizes = (128, 128)
    config.optimizer.anneal = True
    config.replay.batch_size = 128
    config.total_steps = 50_000
    config.replay.capacity = 50_000
    return defaults.quick_off_policy(config) if defaults.check_variant(variant) else config
