"""Vanilla policy gradient on Gymnasium's HalfCheetah-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/vpg_halfcheetah.py \\
    --workdir=runs/vpg_halfcheetah
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.mujoco_vpg("HalfCheetah-v5")
    return defaults.quick_mujoco(config) if defaults.check_variant(variant) else config
