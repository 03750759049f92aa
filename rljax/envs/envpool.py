"""EnvPool's environments as `rljax.types.HostVectorEnv`, stepped by threads in C++.

EnvPool reports an episode that terminates in its last allowed step as truncated only. So the time
limit is kept here, where both can be true; EnvPool's own is one step later and is never reached.

Where its dynamics differ from Gymnasium's they are left alone: Pendulum-v1 (seen in 1.2.5) moves
the angle by the velocity as it was before that is bounded to 8.

Its XLA interface is not used and must not be: it corrupts memory where actions are float64, as
those of MuJoCo's environments are. Every step is a call from the host.

EnvPool does not tell the state of its environments, so a run cannot be saved exactly. `snapshot`
holds only seeds and the number of steps; `restore` starts fresh episodes, of seeds made from both,
so that they are not those from the start again.
"""

import difflib
import importlib
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from rljax.envs.gymnasium import adapt, env_seeds
from rljax.types import HostVectorEnv, PyTree, Transition


def make_envpool(
    name: str,
    num_envs: int,
    *,
    num_threads: int | None = None,
    max_episode_steps: int | None = None,
    **options: Any,
) -> HostVectorEnv:
    """B copies of EnvPool's environment `name`.

    Of each environment's seed 31 bits are used; the numbers do not depend on `num_threads`.

    Args:
      name: one of `envpool.list_all_envs()`.
      num_envs: B, at least 1.
      num_threads: by default one for each core, at most B.
      max_episode_steps: after how many steps an episode is truncated; by default EnvPool's number.
      options: passed to `envpool.make`.

    Returns:
      A `HostVectorEnv` whose `restore` goes on with fresh episodes; its mask is all ones.

    Raises:
      ValueError: EnvPool is not installed; unknown name (near matches are listed) or option; spaces
        that `adapt` does not take.

    >>> envs = make_envpool("Pendulum-v1", 2)
    >>> envs.reset(0).shape, envs.spec.max_episode_steps
    ((2, 3), 200)
    """
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}, it must be at least 1")
    try:
        envpool: Any = importlib.import_module("envpool")
    except ImportError as error:
        raise ValueError(f'{name} needs EnvPool: pip install "rljax[envpool]"') from error
    known = envpool.list_all_envs()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=4)
        allowed = f"did you mean {', '.join(near)}?" if near else "see envpool.list_all_envs()"
        raise ValueError(f"unknown environment {name!r}: {allowed}")
    limit = max_episode_steps or int(envpool.make_spec(name).config.max_episode_steps)
    if limit < 1:
        raise ValueError(f"max_episode_steps is {limit}, it must be at least 1")
    options |= {
        "env_type": "gymnasium",
        "num_envs": num_envs,
        "num_threads": num_threads or min(num_envs, os.cpu_count() or 1),
        "max_episode_steps": limit + 1,
    }
    try:
        pool = _Pool(envpool, name, options, limit)
    except (AssertionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{name} cannot be made: {reason}") from error
    envs = adapt(pool, name=name, max_episode_steps=limit)
    memory: dict[str, np.ndarray] = {}

    def start(seeds: np.ndarray, steps: np.ndarray, episodes: list[int]) -> np.ndarray:
        memory.update(seeds=seeds, steps=steps)
        pool.seeds = [seed % 2**31 for seed in episodes]
        return envs.reset(0)

    def reset(seed: int | Sequence[int]) -> np.ndarray:
        seeds = env_seeds(seed, num_envs) if isinstance(seed, int) else list(seed)
        return start(np.array(seeds, np.int64), np.zeros((), np.int64), seeds)

    def step(actions: np.ndarray) -> Transition:
        memory["steps"] = memory["steps"] + 1
        return envs.step(actions)

    def snapshot() -> PyTree:
        return {key: np.array(value) for key, value in memory.items()}

    def restore(tree: PyTree) -> np.ndarray:
        seeds, steps = np.asarray(tree["seeds"]), np.asarray(tree["steps"])
        if seeds.shape != (num_envs,):
            raise ValueError(
                f"{name}: the snapshot is of {len(seeds)} environments, there are {num_envs}"
            )
        return start(seeds, steps, _mix(seeds, steps))

    return envs._replace(reset=reset, step=step, snapshot=snapshot, restore=restore, exact=False)


def _mix(seeds: np.ndarray, steps: np.ndarray) -> list[int]:
    """A seed for each environment, from its first one and the number of steps."""
    return [
        int(np.random.SeedSequence([int(seed), int(steps)]).generate_state(1, np.uint64)[0])
        for seed in seeds
    ]


class _Pool(VectorEnv):
    """What `adapt` takes: whole batches, the time limit, seeds of one's own for each environment.

    EnvPool fixes the seeds when a pool is made, and gives environment b the seed s + b where it is
    given one seed for all. So `reset` makes a new pool, with all of `seeds`; that takes
    milliseconds.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012, Gymnasium's own form

    def __init__(self, envpool: Any, name: str, options: dict[str, Any], limit: int):
        self._envpool, self._name, self._options, self._limit = envpool, name, options, limit
        self.num_envs = options["num_envs"]
        self.seeds = [*range(self.num_envs)]
        self._make()
        self.single_observation_space: Any = self._pool.observation_space
        self.single_action_space: Any = self._pool.action_space

    def _make(self) -> None:
        with warnings.catch_warnings(action="ignore"):  # that float32 is less than float64
            self._pool = self._envpool.make(self._name, seed=self.seeds, **self._options)
            _ = self._pool.observation_space, self._pool.action_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None):
        """Of all environments, or of those in `options["reset_mask"]`."""
        if options is None:
            del seed  # `self.seeds` holds them all
            self._pool.close()
            self._make()
            self._time = np.zeros(self.num_envs, np.int64)
            self._observation, info = self._pool.reset()
            return self._observation, info
        mask = options["reset_mask"]
        observation = np.array(self._observation)
        observation[mask], info = self._pool.reset(options={"reset_mask": mask})
        self._time[mask] = 0
        return observation, info

    def step(self, actions: np.ndarray):
        self._observation, reward, terminated, truncated, info = self._pool.step(actions)
        self._time += 1
        return self._observation, reward, terminated, truncated | (self._time >= self._limit), info

    def close(self, **kwargs: Any) -> None:
        self._pool.close()
