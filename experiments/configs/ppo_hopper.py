"""PPO on Gymnasium's Hopper-v5 (needs the `mujoco` extra).

python -m experiments.run --config=experiments/configs/ppo_hopper.py --workdir=runs/ppo_hopper
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.mujoco_ppo("Hopper-v5")
    return defaults.quick_mujoco(config) if defaults.check_variant(variant) else config
