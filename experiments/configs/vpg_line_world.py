"""Vanilla policy gradient on the five-state line world.

python -m experiments.run --config=experiments/configs/vpg_line_world.py \\
    --workdir=runs/vpg_line_world
"""

from experiments.configs import defaults
from experiments.configs.defaults import Config


def get_config(variant: str = "") -> Config:
    config = defaults.line_world(defaults.vpg())
    return defaults.quick(config) if defaults.check_variant(variant) else config
