"""What the loops around environments of the host share."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rljax.loops.evaluate import evaluate_host, summarize
from rljax.loops.loop import RunState
from rljax.types import HostVectorEnv

TRAIN, EVAL = 0, 1  # streams of the environments' seeds


def host_seeds(seeds: np.ndarray, step: int, stream: int, num_envs: int) -> list[int]:
    """One 63-bit seed for each of `num_envs` environments of each run, from the run's own seed."""
    words = [
        child.generate_state(1, np.uint64)[0]
        for seed in seeds
        for child in np.random.SeedSequence([seed, step, stream]).spawn(num_envs)
    ]
    return [int(word >> 1) for word in words]


def split_seeds(x: Any, num_seeds: int, axis: int = 0) -> Any:
    """[..., S·N, ...] to [..., S, N, ...]; one seed has no axis."""
    return x if num_seeds == 1 else x.reshape(*x.shape[:axis], num_seeds, -1, *x.shape[axis + 1 :])


def join_seeds(x: Any, num_seeds: int) -> np.ndarray:
    """[S, N, ...] to [S·N, ...], in NumPy."""
    x = np.asarray(x)
    return x if num_seeds == 1 else x.reshape(-1, *x.shape[2:])


def make_evaluate(
    env: HostVectorEnv, act_greedy: Callable[[Any, Any], Any], *, seeds: np.ndarray, episodes: int
) -> Callable[[RunState], dict[str, np.ndarray]]:
    """`Loop.evaluate`, in `env` with S·episodes environments."""

    def evaluate(state: RunState) -> dict[str, np.ndarray]:
        def act(observation: np.ndarray) -> np.ndarray:
            actions = act_greedy(state.algo, split_seeds(observation, len(seeds)))
            return join_seeds(actions, len(seeds))

        env_seeds = host_seeds(seeds, int(state.step), EVAL, episodes)
        returns, lengths = evaluate_host(env_seeds, env, act)
        shape = (len(seeds), episodes)
        return summarize(returns.reshape(shape), lengths.reshape(shape))

    return evaluate
