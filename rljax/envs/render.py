"""Environments that can be looked at while they are played, one at a time and without a screen.

A pure-JAX environment that equals one of Gymnasium's is drawn by that one, into which its state is
put before each picture; the line world is drawn here.
"""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from PIL import Image, ImageDraw

from rljax.envs.gymnasium import adapt, check_name
from rljax.envs.line_world import NUM_POSITIONS, REWARDS
from rljax.envs.mujoco import quiet_models
from rljax.types import Array, Box, Env, HostVectorEnv, PyTree

Picture = np.ndarray  # uint8 [height, width, 3]
# Where Gymnasium's environments of the same names keep what ours have in their state.
THEIR_STATE: dict[str, Callable[[Any], tuple[Array, ...]]] = {
    "Acrobot-v1": lambda state: tuple(state.physics),
    "CartPole-v1": lambda state: tuple(state.physics),
    "MountainCar-v0": lambda state: (state.position, state.velocity),
    "MountainCarContinuous-v0": lambda state: (state.position, state.velocity),
    "Pendulum-v1": lambda state: (state.angle, state.velocity),
}
CELL = 80  # pixels


class Stage(NamedTuple):
    """One environment and a view of it; actions and observations are batches of one."""

    reset: Callable[[int], np.ndarray]  # seed -> observation [1, ...]
    # actions [1] or [1, A] -> observation, reward, whether the episode has ended
    step: Callable[[np.ndarray], tuple[np.ndarray, float, bool]]
    picture: Callable[[], Picture]  # of where it stands, at the end of an episode too
    close: Callable[[], None]
    frame_rate: float  # pictures per second, one for each step, that look natural


def jax_stage(env: Env) -> Stage:
    """A pure-JAX environment to look at; its generator starts from the seed.

    Raises:
      ValueError: if it cannot be drawn, in one line that says what to install.

    >>> from rljax import envs
    >>> stage = jax_stage(envs.make("LineWorld-v0"))
    >>> stage.reset(0), stage.picture().shape
    (array([[0., 0., 1., 0., 0.]], dtype=float32), (120, 400, 3))
    """
    name, space = env.spec.name, env.spec.action_space
    if name == "LineWorld-v0":
        draw, close, frame_rate = draw_line_world, lambda: None, 4.0
    elif name in THEIR_STATE:
        theirs = make_theirs(name)
        frame_rate, close = theirs.metadata["render_fps"], theirs.close

        def draw(state: PyTree, share: Any) -> Picture:
            put(theirs, state, share)
            return theirs.unwrapped.render()
    else:
        allowed = ", ".join(sorted({*THEIR_STATE, "LineWorld-v0"}))
        raise ValueError(f"{name} cannot be drawn: allowed are {allowed}")
    reset_jit, step_jit = jax.jit(env.reset), jax.jit(env.step)
    now: dict[str, Any] = {}

    def reset(seed: int) -> np.ndarray:
        reset_key, now["key"] = jax.random.split(jax.random.key(seed))
        now["state"], observation = reset_jit(reset_key)
        now["share"] = None
        return np.asarray(observation)[None]

    def step(actions: np.ndarray) -> tuple[np.ndarray, float, bool]:
        step_key, now["key"] = jax.random.split(now["key"])
        action = np.asarray(actions)[0]
        now["share"] = action / space.high if isinstance(space, Box) else None
        now["state"], after = step_jit(step_key, now["state"], action)
        ended = bool(after.terminated) or bool(after.truncated)
        return np.asarray(after.observation)[None], float(after.reward), ended

    return Stage(reset, step, lambda: draw(now["state"], now["share"]), close, float(frame_rate))


def gymnasium_stage(
    name: str, transform: Callable[[HostVectorEnv], HostVectorEnv] = lambda envs: envs
) -> Stage:
    """Gymnasium's environment `name` to look at; actions are clipped as in training.

    Args:
      name: an id registered with Gymnasium.
      transform: what the policy needs between itself and the environment.

    Raises:
      ValueError: if it cannot be drawn, in one line that says what to install.

    >>> stage = gymnasium_stage("Pendulum-v1")
    >>> stage.reset(0).shape, stage.picture().shape
    ((1, 3), (500, 500, 3))
    """
    # NEXT_STEP: after the last step of an episode its end can still be seen.
    vector_env = SyncVectorEnv([lambda: make_theirs(name)], autoreset_mode=AutoresetMode.NEXT_STEP)
    envs = transform(adapt(vector_env, name=name))

    def step(actions: np.ndarray) -> tuple[np.ndarray, float, bool]:
        after = envs.step(actions)
        ended = bool(after.terminated[0]) or bool(after.truncated[0])
        return np.asarray(after.observation), float(after.reward[0]), ended

    theirs: Any = vector_env.envs[0]
    return Stage(
        reset=envs.reset,
        step=step,
        picture=theirs.render,
        close=envs.close,
        frame_rate=float(theirs.metadata.get("render_fps") or 30),
    )


def make_theirs(name: str) -> Any:
    """Gymnasium's environment with pictures, the first of which has been tried."""
    if sys.platform == "linux" and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
    check_name(name)
    # Everything may be raised here: there is a window system, a driver and a C library below.
    try:
        with quiet_models(name), warnings.catch_warnings(action="ignore"):
            env = gymnasium.make(name, render_mode="rgb_array", disable_env_checker=True)
            env.reset(seed=0)
            picture = env.render()
    except Exception as error:
        is_physics = str(gymnasium.spec(name).entry_point).startswith("gymnasium.envs.mujoco")
        advice = (
            'pip install "rljax[mujoco]" and a GL library, libegl1 say (MUJOCO_GL=egl) or '
            "libosmesa6 (MUJOCO_GL=osmesa)"
            if is_physics
            else 'pip install "rljax[play]"'
        )
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{name} cannot be drawn: {advice} ({reason})") from error
    if not (isinstance(picture, np.ndarray) and picture.ndim == 3):
        raise ValueError(f"{name} cannot be drawn: its render_mode 'rgb_array' gives no picture")
    return env


def put(theirs: Any, state: PyTree, share: np.ndarray | None = None) -> None:
    """Puts the state of our environment into Gymnasium's.

    `share` is the action that led to it, where 1 is the upper bound: the pendulum shows it.
    """
    inner = theirs.unwrapped
    inner.state = np.array(THEIR_STATE[inner.spec.id](state), np.float64)
    if hasattr(inner, "last_u"):
        inner.last_u = None if share is None else np.clip(share, -1, 1)[0] * inner.max_torque


def draw_line_world(state: Any, share: None = None) -> Picture:
    """Five cells with their rewards, red to green, and a disc at the position."""
    del share
    image = Image.new("RGB", (NUM_POSITIONS * CELL, CELL * 3 // 2), "white")
    pen = ImageDraw.Draw(image)
    for i, reward in enumerate(REWARDS):
        left, top = i * CELL, CELL // 2
        colour = "#8fbc8f" if reward > 0 else "#e9967a" if reward < -1 else "#dcdcdc"
        pen.rectangle((left, top, left + CELL - 1, top + CELL - 1), fill=colour, outline="black")
        pen.text((left + CELL / 2, CELL / 4), f"{reward:+g}", fill="black", anchor="mm")
    x, y, radius = (int(state.index) + 0.5) * CELL, CELL, CELL / 4
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill="#4169e1", outline="black")
    return np.asarray(image)
