"""PPO on Gymnasium's HalfCheetah-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/ppo_halfcheetah.py \\
    --workdir=runs/ppo_halfcheetah
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.mujoco_ppo("HalfCheetah-v5")
    return defaults.quick_mujoco(config) if defaults.check_variant(variant) else config
