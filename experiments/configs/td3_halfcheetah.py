"""TD3 on Gymnasium's HalfCheetah-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/td3_halfcheetah.py \\
    --workdir=runs/td3_halfcheetah
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.mujoco_off_policy("HalfCheetah-v5", defaults.td3())
    return defaults.quick_off_policy(config) if defaults.check_variant(variant) else config
