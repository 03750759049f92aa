"""What only MuJoCo environments need. It imports `mujoco` late, so that others run without it."""

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

# MuJoCo computes these on the way, from the positions before its last substep, and `mj_setState`
# leaves them alone. Ant reads `xpos` and Humanoid `xipos` before the next step; the others are seen
# in observations.
DERIVED = (
    *("xpos", "xquat", "xipos", "site_xpos", "subtree_com", "cinert", "cvel", "cfrc_ext"),
    *("qfrc_actuator", "qfrc_constraint", "sensordata", "ten_length", "ten_velocity"),
)
LINKS = ("model", "data", "mujoco_renderer")  # the attributes that the functions here deal with


def is_mujoco(env: gymnasium.Env) -> bool:
    """Whether the innermost environment keeps its state in `model` and `data` of MuJoCo."""
    return type(getattr(env, "data", None)).__module__.startswith("mujoco")


def read_physics(env: Any) -> np.ndarray:
    """float64 [M]: the integration state of `env.data`, then the fields in `DERIVED`."""
    mujoco: Any = importlib.import_module("mujoco")
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.zeros(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, state, kind)
    return np.concatenate([state, *(getattr(env.data, name).ravel() for name in DERIVED)])


def write_physics(env: Any, saved: np.ndarray) -> None:
    """Puts back what `read_physics` returned."""
    mujoco: Any = importlib.import_module("mujoco")
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    fields = [getattr(env.data, name) for name in DERIVED]
    ends = np.cumsum([mujoco.mj_stateSize(env.model, kind), *(field.size for field in fields)])
    state, *derived = np.split(saved, ends[:-1])
    mujoco.mj_setState(env.model, env.data, state, kind)
    for field, values in zip(fields, derived, strict=True):
        field[...] = values.reshape(field.shape)


@contextlib.contextmanager
def quiet_models(name: str) -> Iterator[None]:
    """While it loads one of Gymnasium's models, drops MuJoCo's warnings about them.

    MuJoCo 4 finds some of them old-fashioned and says so on stderr and in MUJOCO_LOG.TXT in the
    working directory, once for every environment; the user can do nothing about it.
    """
    theirs = str(gymnasium.spec(name).entry_point).startswith("gymnasium.envs.mujoco")
    if not theirs or importlib.util.find_spec("mujoco") is None:
        yield
        return
    mujoco: Any = importlib.import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
