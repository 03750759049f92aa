"""TRPO on Gymnasium's Hopper-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/trpo_hopper.py --workdir=runs/trpo_hopper
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.mujoco_trpo("Hopper-v5")
    return defaults.quick_mujoco(config) if defaults.check_variant(variant) else config
