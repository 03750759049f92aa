"""Gymnasium's environments as `rljax.types.HostVectorEnv`.

Gymnasium resets an environment that has ended in one of three ways. Each leaves the last
observation of the episode and the first of the next one in different places:

    mode        the last observation           the first of the next episode
    SAME_STEP   infos["final_obs"]             the observation of the same call
    NEXT_STEP   the observation of that call   that of the next call, which takes no step
    DISABLED    the observation of that call   what `reset` returns; we call it at once

Here they look alike: `next_observation` is the last one, `observation` the one to act on, and
`mask` is False for the call that NEXT_STEP spends on the reset.
"""

import difflib
import functools
import importlib
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rljax.envs.mujoco import quiet_models
from rljax.envs.snapshot import Snapshot
from rljax.envs.workers import WorkerVectorEnv
from rljax.types import Box, Discrete, EnvSpec, HostVectorEnv, PyTree, Transition

MODES = {mode.name.lower(): mode for mode in AutoresetMode}
OF_SINGLE = (SyncVectorEnv, AsyncVectorEnv, WorkerVectorEnv)  # made of single environments


def make_host(
    name: str,
    num_envs: int,
    *,
    autoreset_mode: str = "same_step",
    workers: int = 0,
    **options: Any,
) -> HostVectorEnv:
    """B copies of the Gymnasium environment `name`, each under a `Snapshot`.

    Args:
      name: an id registered with Gymnasium, or "module:id" to import the module first.
      num_envs: B, at least 1.
      autoreset_mode: "same_step", "next_step" or "disabled"; the episodes are the same in each.
      workers: processes that step a share of the environments each, beside this one; at most
        B - 1 are started, and only in the mode "same_step". They change no result. A script that
        starts them needs its `if __name__ == "__main__":`.
      options: passed to `gymnasium.make`, `max_episode_steps` among others.

    Raises:
      ValueError: unknown name (near matches are listed), mode or option; a package is missing;
        spaces that `adapt` does not take.

    >>> envs = make_host("Pendulum-v1", 2)
    >>> envs.reset(0).shape, envs.spec.max_episode_steps
    ((2, 3), 200)
    >>> envs.step(np.zeros((2, 1))).episode_length
    array([1, 1], dtype=int32)
    """
    if autoreset_mode not in MODES:
        raise ValueError(f"autoreset_mode is {autoreset_mode!r}, allowed are {', '.join(MODES)}")
    if workers < 0 or (workers and autoreset_mode != "same_step"):
        raise ValueError(
            f"workers is {workers} with autoreset_mode={autoreset_mode!r}, allowed are 0 and, "
            "with 'same_step', more"
        )
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}, it must be at least 1")
    check_name(name)
    make_one = functools.partial(_make_one, name, options)
    makers = [make_one] * num_envs
    try:
        if autoreset_mode == "same_step":
            vector_env = WorkerVectorEnv(makers, min(workers, num_envs - 1))
        else:
            vector_env = SyncVectorEnv(makers, autoreset_mode=MODES[autoreset_mode])
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if "mujoco" in reason.lower():
            reason = 'it needs MuJoCo: pip install "rljax[mujoco]"'
        raise ValueError(f"{name} cannot be made: {reason}") from error
    try:
        return adapt(vector_env, name=name)
    except ValueError:
        vector_env.close()
        raise


def adapt(
    vector_env: gymnasium.vector.VectorEnv,
    *,
    name: str | None = None,
    max_episode_steps: int | None = None,
) -> HostVectorEnv:
    """Any Gymnasium vector environment as a `HostVectorEnv`.

    Observations become float32 (uint8 stays). Actions are cast to the dtype of the action space,
    those of a Box are clipped to its bounds. Returns of episodes are accumulated in float64 over
    the steps that were really taken.

    Args:
      vector_env: with Box observations, Discrete or one-dimensional float Box actions, and
        `metadata["autoreset_mode"]`.
      name: of the spec; by default the id that Gymnasium knows it by.
      max_episode_steps: after how many steps it truncates, where its own spec does not say.

    Returns:
      A `HostVectorEnv`. `snapshot` and `restore` need a SyncVectorEnv, AsyncVectorEnv or
      WorkerVectorEnv whose environments are under a `Snapshot`, and no vector wrappers; else they
      raise a ValueError.

    Raises:
      ValueError: other spaces, a missing mode, or no known `max_episode_steps`.

    >>> envs = adapt(gymnasium.make_vec("CartPole-v1", num_envs=3))
    >>> envs.reset(0).shape, envs.spec.action_space
    ((3, 4), Discrete(num_actions=2))
    """
    # Those that are not made of single environments have one spec, one generator and no get_attr.
    base: Any = vector_env.unwrapped
    of_single = isinstance(base, OF_SINGLE)
    theirs = base.get_attr("spec")[0] if of_single else vector_env.spec
    spec = _spec(
        vector_env,
        name or (theirs.id if theirs else type(base).__name__),
        max_episode_steps or (theirs.max_episode_steps if theirs else None),
    )
    mode = _mode(vector_env, spec.name)
    num_envs = vector_env.num_envs
    memory: dict[str, np.ndarray] = {}  # what the adaptor itself knows between two calls

    def observed(observation: Any) -> np.ndarray:
        return np.array(observation, spec.observation_dtype)

    def reset(seed: int | Sequence[int]) -> np.ndarray:
        seeds: Any = env_seeds(seed, num_envs) if isinstance(seed, int) else list(seed)
        observation, _ = vector_env.reset(seed=seeds if of_single else seeds[0])
        memory["observation"] = observed(observation)
        memory["episode_return"] = np.zeros(num_envs, np.float64)
        memory["episode_length"] = np.zeros(num_envs, np.int32)
        memory["reset_due"] = np.zeros(num_envs, np.bool_)
        return memory["observation"].copy()

    def step(actions: np.ndarray) -> Transition:
        actions = _to_env(vector_env.single_action_space, actions)
        raw, reward, terminated, truncated, infos = vector_env.step(actions)
        mask = ~memory["reset_due"]
        reward = np.where(mask, np.asarray(reward, np.float64), 0.0)
        terminated = np.asarray(terminated, np.bool_) & mask
        truncated = np.asarray(truncated, np.bool_) & mask
        ended = terminated | truncated
        episode_return = memory["episode_return"] + reward
        episode_length = memory["episode_length"] + mask.astype(np.int32)

        observation = observed(raw)
        next_observation = observation.copy()
        if mode is AutoresetMode.SAME_STEP:
            for b in np.flatnonzero(ended):
                next_observation[b] = infos["final_obs"][b]
        elif mode is AutoresetMode.DISABLED and ended.any():
            fresh, _ = vector_env.reset(options={"reset_mask": ended.copy()})
            observation[ended] = observed(fresh)[ended]

        memory["observation"] = observation.copy()
        memory["episode_return"] = np.where(ended, 0.0, episode_return)
        memory["episode_length"] = np.where(ended, np.int32(0), episode_length)
        memory["reset_due"] = ended & (mode is AutoresetMode.NEXT_STEP)
        arrays: Any = {  # NumPy's, where the record says JAX's
            "observation": observation,
            "next_observation": next_observation,
            "reward": reward.astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "episode_return": episode_return.astype(np.float32),
            "episode_length": episode_length,
            "mask": mask,
        }
        return Transition(**arrays)

    def snapshot() -> PyTree:
        _check_snapshots(vector_env, spec.name)
        trees = base.get_attr("snapshot")
        envs = {key: np.stack([tree[key] for tree in trees]) for key in trees[0]}
        return {"envs": envs, "adaptor": {key: value.copy() for key, value in memory.items()}}

    def restore(tree: PyTree) -> np.ndarray:
        reset(0)  # also clears the resets that the vector environment thinks are due
        _check_fits(tree, snapshot(), spec.name)
        envs = {key: np.asarray(value) for key, value in tree["envs"].items()}
        base.set_attr("snapshot", [{key: envs[key][b] for key in envs} for b in range(num_envs)])
        memory.update({key: np.array(value) for key, value in tree["adaptor"].items()})
        return memory["observation"].copy()

    return HostVectorEnv(reset, step, snapshot, restore, vector_env.close, spec, num_envs)


def env_seeds(seed: int, num_envs: int) -> list[int]:
    """The seed of each environment, 63 bits, so that different (seed, b) do not meet in practice.

    >>> env_seeds(0, 3)[:2] == env_seeds(0, 2)
    True
    """
    children = np.random.SeedSequence(seed).spawn(num_envs)
    return [int(child.generate_state(1, np.uint64)[0] >> 1) for child in children]


def _make_one(name: str, options: dict[str, Any]) -> Snapshot:
    with quiet_models(name):
        return Snapshot(gymnasium.make(name, disable_env_checker=True, **options))


def check_name(name: str) -> None:
    """Raises unless Gymnasium has the environment, whose module is imported if it is named."""
    module, _, env_id = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"unknown environment {name!r}: {error}") from error
    if env_id not in gymnasium.registry:
        near = difflib.get_close_matches(env_id, gymnasium.registry, n=4)
        allowed = f"did you mean {', '.join(near)}?" if near else "allowed are Gymnasium's ids"
        raise ValueError(f"unknown environment {name!r}: {allowed}")


def _spec(vector_env: gymnasium.vector.VectorEnv, name: str, limit: int | None) -> EnvSpec:
    observations, actions = vector_env.single_observation_space, vector_env.single_action_space
    if not isinstance(observations, spaces.Box):
        kind = type(observations).__name__
        raise ValueError(f"{name}: observations are {kind}, allowed is Box (one array)")
    if isinstance(actions, spaces.Discrete):
        action_space = Discrete(int(actions.n))
    elif isinstance(actions, spaces.Box) and actions.dtype.kind == "f" and len(actions.shape) == 1:
        action_space = Box(actions.low.astype(np.float32), actions.high.astype(np.float32))
    else:
        raise ValueError(f"{name}: actions are {actions}, allowed are Discrete and float Box [A]")
    if not limit:
        raise ValueError(f"{name}: it has no time limit, give max_episode_steps")
    dtype = np.uint8 if observations.dtype == np.uint8 else np.float32
    return EnvSpec(name, observations.shape, dtype, action_space, int(limit))


def _mode(vector_env: gymnasium.vector.VectorEnv, name: str) -> AutoresetMode:
    mode = vector_env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        allowed = ", ".join(str(mode) for mode in AutoresetMode)
        raise ValueError(f"{name}: metadata['autoreset_mode'] is {mode!r}, allowed are {allowed}")
    base = vector_env.unwrapped
    private = isinstance(base, AsyncVectorEnv) and not base.shared_memory
    if mode is AutoresetMode.NEXT_STEP and private:
        # Its workers still do a due reset after an explicit one, which would cost a step.
        raise ValueError(f"{name}: AsyncVectorEnv in NEXT_STEP mode needs shared_memory=True")
    return mode


def _to_env(space: Any, actions: np.ndarray) -> np.ndarray:
    actions = np.asarray(actions).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return actions + space.start
    return np.clip(actions, space.low, space.high)


def _check_snapshots(vector_env: Any, name: str) -> None:
    # Every object has a `__module__`; asking for what is not there would end a worker process.
    if type(vector_env) not in OF_SINGLE or any(
        module != Snapshot.__module__ for module in vector_env.get_attr("__module__")
    ):
        raise ValueError(f"{name}: only environments made by make_host can be saved exactly")
    for problem in vector_env.get_attr("snapshot_problem"):
        if problem:
            raise ValueError(f"{name}: {problem}")


def _check_fits(tree: PyTree, like: PyTree, name: str) -> None:
    def kinds(tree: PyTree) -> dict[str, str]:
        leaves = {**tree["envs"], **tree["adaptor"]}.items()
        return {key: f"{np.asarray(x).dtype}{list(np.shape(x))}" for key, x in sorted(leaves)}

    if kinds(tree) != kinds(like):
        raise ValueError(f"{name}: the snapshot holds {kinds(tree)}, needed is {kinds(like)}")
    if (np.asarray(tree["envs"]["layout"]) != like["envs"]["layout"]).any():
        raise ValueError(f"{name}: the snapshot is of another environment or of other wrappers")
