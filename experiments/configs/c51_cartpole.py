"""C51 on CartPole-v1.

python -m experiments.run --config=experiments/configs/c51_cartpole.py \\
    --workdir=runs/c51_cartpole
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.off_policy("CartPole-v1", defaults.c51())
    config.algo.value_min, config.algo.value_max = 0.0, 100.0
    config.algo.target_period = 50
    config.algo.epsilon_steps = 50_000
    config.net.hidden_sizes = (128, 128)
    config.optimizer.learning_rate = 5e-4
    config.optimizer.anneal = True
    config.replay.batch_size = 128
    config.unroll_length = 10
    config.replay.updates_per_step = 0.1
    config.total_steps = 500_000
    config.replay.capacity = 50_000
    return defaults.quick_off_policy(config) if defaults.check_variant(variant) else config
