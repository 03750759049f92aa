"""TRPO on Gymnasium's Swimmer-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/trpo_swimmer.py --workdir=runs/trpo_swimmer
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.mujoco_trpo("Swimmer-v5")
    config.algo.discount = 0.999  # a stroke pays off late
    return defaults.quick_mujoco(config) if defaults.check_variant(variant) else config
