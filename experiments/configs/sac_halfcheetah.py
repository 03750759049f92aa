"""SAC on Gymnasium's HalfCheetah-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/sac_halfcheetah.py \\
    --workdir=runs/sac_halfcheetah
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.mujoco_off_policy("HalfCheetah-v5", defaults.sac())
    return defaults.quick_off_policy(config) if defaults.check_variant(variant) else config
