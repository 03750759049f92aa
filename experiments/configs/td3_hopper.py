"""TD3 on Gymnasium's Hopper-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/td3_hopper.py --workdir=runs/td3_hopper
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.mujoco_off_policy("Hopper-v5", defaults.td3())
    return defaults.quick_off_policy(config) if defaults.check_variant(variant) else config
