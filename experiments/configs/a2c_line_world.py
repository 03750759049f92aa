"""The notes' tabular actor-critic on the five-state line world.

python -m experiments.run --config=experiments/configs/a2c_line_world.py
--workdir=runs/a2c_line_world
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.run("LineWorld-v0")
    config.algo = defaults.a2c()
    config.algo.discount = 0.9  # the notes'
    config.algo.lambda_ = 0.9
    config.algo.entropy_coef = 0.01
    config.net.name = "tabular"
    config.optimizer.name = "sgd"
    config.optimizer.learning_rate = 0.5
    config.env.num_envs = 16
    config.unroll_length = 25
    config.total_steps = 400_000
    config.eval_episodes = 1  # the world and the greedy policy are deterministic
    config.eval_interval = config.checkpoint_interval = 100
    config.solved_return = 985.0  # -5 once, then 10 for the other 99 steps
    return defaults.quick(config) if defaults.check_variant(variant) else config
