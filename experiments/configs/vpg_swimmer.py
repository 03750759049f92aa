"""Vanilla policy gradient on Gymnasium's Swimmer-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/vpg_swimmer.py --workdir=runs/vpg_swimmer
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.mujoco_vpg("Swimmer-v5")
    config.algo.discount = 0.999  # a stroke pays off late
    return defaults.quick_mujoco(config) if defaults.check_variant(variant) else config
