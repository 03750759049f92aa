"""PPO on Gymnasium's Walker2d-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/ppo_walker2d.py --workdir=runs/ppo_walker2d
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.mujoco_ppo("Walker2d-v5")
    return defaults.quick_mujoco(config) if defaults.check_variant(variant) else config
