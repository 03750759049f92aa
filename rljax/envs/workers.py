"""A vector environment whose single environments are stepped in several processes.

Gymnasium's `SyncVectorEnv` uses one core, its `AsyncVectorEnv` one process for each environment,
and both gather the infos of every step. Here each process steps a share of the environments, this
one too; observations and actions stand in shared memory, and the infos are dropped. What an
environment does depends on its own seed alone, so the number of processes changes no result.
"""

import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

# Not "fork", which is unsafe once JAX has started its threads.
START_METHOD = "spawn" if sys.platform == "win32" else "forkserver"


class Shared(NamedTuple):
    """Buffers of B environments that all processes see."""

    observations: Any  # after the reset, where the episode has ended
    final_observations: Any  # before it
    rewards: Any
    terminated: Any
    truncated: Any
    actions: Any


class Share:
    """The environments of one process, rows `start`, `start` + 1 ... of the shared arrays."""

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env]], arrays: Shared, start: int):
        self.envs = [make() for make in makers]
        self.arrays = Shared(*(array[start : start + len(makers)] for array in arrays))

    def reset(self, seeds: Sequence[int | None]) -> None:
        for b, (env, seed) in enumerate(zip(self.envs, seeds, strict=True)):
            self.arrays.observations[b], _ = env.reset(seed=seed)

    def step(self) -> None:
        observations, final_observations, rewards, terminated, truncated, actions = self.arrays
        actions = actions.copy()  # an environment may keep what it was given
        for b, env in enumerate(self.envs):
            observation, rewards[b], terminated[b], truncated[b], _ = env.step(actions[b])
            if terminated[b] or truncated[b]:
                final_observations[b] = observation
                observation, _ = env.reset()
            observations[b] = observation

    def get(self, name: str) -> list[Any]:
        return [env.get_wrapper_attr(name) for env in self.envs]

    def set(self, name: str, values: Sequence[Any]) -> None:
        for env, value in zip(self.envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    def close(self) -> None:
        for env in self.envs:
            env.close()


class WorkerVectorEnv(VectorEnv):
    """B environments in SAME_STEP mode, shared out between this process and `workers` others.

    A worker ends with this process, however that ends, and does not hear of Ctrl-C. A script that
    starts workers needs its `if __name__ == "__main__":`, for they import it.

    Args:
      makers: B functions that make one environment each; with workers, ones that can be pickled.
      workers: further processes, 0 ... B - 1.

    Raises:
      RuntimeError: from any method, if an environment raises in a worker or a worker has ended.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012, Gymnasium's own form

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env]], workers: int = 0):
        self.num_envs = len(makers)
        bounds = np.linspace(0, self.num_envs, workers + 2).astype(int)
        shares = [makers[i:j] for i, j in itertools.pairwise(bounds)]
        probe = shares[0][0]()
        self.single_observation_space = probe.observation_space
        self.single_action_space = probe.action_space
        self.observation_space = batch_space(probe.observation_space, self.num_envs)
        self.action_space = batch_space(probe.action_space, self.num_envs)
        context: Any = multiprocessing.get_context(START_METHOD)
        observation, action = _kind(probe.observation_space), _kind(probe.action_space)
        reward, flag = (np.dtype(np.float64), ()), (np.dtype(np.bool_), ())
        kinds = Shared(observation, observation, reward, flag, flag, action)
        buffers = Shared(*(_buffer(context, self.num_envs, *kind) for kind in kinds))
        self._arrays = _view(buffers, kinds, self.num_envs)
        first = [lambda: probe, *shares[0][1:]]  # the probe is the first of this process's share
        self._here = Share(first, self._arrays, 0)
        self._bounds = bounds
        self._pipes, self._processes = [], []
        for start, share in zip(bounds[1:-1], shares[1:], strict=True):
            pipe, theirs = context.Pipe()
            args = (theirs, share, buffers, kinds, self.num_envs, int(start))
            process = context.Process(target=_work, args=args, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(pipe)
            self._processes.append(process)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None):
        seeds = list(seed) if isinstance(seed, Sequence) else [seed] * self.num_envs
        self._call("reset", [(part,) for part in self._split(seeds)])
        return self._arrays.observations.copy(), {}

    def step(self, actions: np.ndarray):
        """All fields are views of the shared arrays, good until the next step."""
        self._arrays.actions[...] = actions
        self._call("step", [()] * (1 + len(self._pipes)))
        arrays = self._arrays
        infos = {"final_obs": arrays.final_observations}
        return arrays.observations, arrays.rewards, arrays.terminated, arrays.truncated, infos

    def get_attr(self, name: str) -> tuple[Any, ...]:
        parts = self._call("get", [(name,)] * (1 + len(self._pipes)))
        return tuple(value for part in parts for value in part)

    def set_attr(self, name: str, values: Any) -> None:
        self._call("set", [(name, part) for part in self._split(values)])

    def close_extras(self, **kwargs: Any) -> None:
        self._here.close()
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()  # which ends the worker
            process.join()

    def _split(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        return [values[i:j] for i, j in itertools.pairwise(self._bounds)]

    def _call(self, method: str, arguments: Sequence[tuple]) -> list[Any]:
        """One method of all shares, each with its arguments; this process's runs meanwhile."""
        try:
            for pipe, theirs in zip(self._pipes, arguments[1:], strict=True):
                pipe.send((method, theirs))
            try:
                here = getattr(self._here, method)(*arguments[0])
            finally:  # an answer left in a pipe would be taken for that of the next call
                answers = [pipe.recv() for pipe in self._pipes]
        except (EOFError, ConnectionError) as error:
            raise RuntimeError("a worker process of the environments has ended") from error
        for error, _ in answers:
            if error:
                raise RuntimeError(f"an environment failed in a worker process: {error}")
        return [here, *(result for _, result in answers)]


def _work(pipe: Any, makers: Any, buffers: Shared, kinds: Shared, num_envs: int, start: int):
    """A worker: does what comes through the pipe until that is closed."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C is for the main process, which may want to finish a step and save
    try:
        share = Share(makers, _view(buffers, kinds, num_envs), start)
        while True:
            method, arguments = pipe.recv()
            try:
                pipe.send(("", getattr(share, method)(*arguments)))
            except Exception as error:
                pipe.send((f"{type(error).__name__}: {error}", None))
    except (EOFError, ConnectionError):
        return


def _kind(space: gymnasium.Space) -> tuple[np.dtype, tuple[int, ...]]:
    """Its dtype and shape; of spaces without them anything, `adapt` will refuse those."""
    return np.dtype(space.dtype), space.shape or ()


def _buffer(context: Any, num_envs: int, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    return context.RawArray("B", max(1, num_envs * int(np.prod(shape)) * dtype.itemsize))


def _view(buffers: Shared, kinds: Shared, num_envs: int) -> Shared:
    return Shared(
        *(
            np.frombuffer(buffer, dtype, num_envs * int(np.prod(shape))).reshape(num_envs, *shape)
            for buffer, (dtype, shape) in zip(buffers, kinds, strict=True)
        )
    )
