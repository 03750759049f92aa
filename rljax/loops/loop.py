"""What every loop gives to the program that drives it, and what the loops share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Key, PyTree


class RunState(NamedTuple):
    """All there is of a run. With host environments `env` is empty: they keep it themselves."""

    algo: PyTree
    env: PyTree
    observation: Any  # [B, ...] to act on next; NumPy's for host environments
    key: Key  # never changes; update u draws from `update_keys(key, u)`
    step: Any  # int32 []: updates done
    replay: PyTree = ()  # off-policy: what has been seen
    memory: PyTree = ()  # off-policy: what exploration carries from step to step


class Loop(NamedTuple):
    """A run as functions; `experiments/run.py` drives it and sees no difference between the kinds.

    With S = `num_seeds` > 1 whole runs go side by side: every leaf of the state gets a leading
    axis S. Host environments are stepped as one: there `observation` is [S·B, ...] and `step`
    stays a scalar. `advance` does the given number of updates, 1 ... max_updates, and donates the
    state; its metrics are [n, S], one row per update. Those of `evaluate` are [S]. `save` gives
    the pytree that a checkpoint holds, `load` the state back from it, `template` its structure,
    shapes, dtypes and shardings.
    """

    init: Callable[[], RunState]
    advance: Callable[[RunState, int], tuple[RunState, dict[str, np.ndarray]]]
    evaluate: Callable[[RunState], dict[str, np.ndarray]]
    save: Callable[[RunState], PyTree]
    load: Callable[[PyTree], RunState]
    template: PyTree
    metric_names: tuple[str, ...]
    steps_per_update: int  # environment steps of one seed
    first_step: int = 0  # those done by `init`


def seed_keys(seed: int, num_seeds: int) -> Key:
    """One key, or [S] keys, of seed, seed + 1, ..."""
    keys = jax.vmap(jax.random.key)(jnp.arange(seed, seed + num_seeds, dtype=jnp.uint32))
    return keys if num_seeds > 1 else keys[0]


def first_keys(key: Key) -> tuple[Key, Key, Key]:
    """From the key of a run's seed: for its environments, for its algorithm, and for its state."""
    env_key, algo_key, run_key = jax.random.split(key, 3)
    return env_key, algo_key, run_key


def update_keys(key: Key, step: Any) -> tuple[Key, Key, Key]:
    """For update `step` of a run: to act, to update, and for an evaluation just before it."""
    act_key, update_key, eval_key = jax.random.split(jax.random.fold_in(key, step), 3)
    return act_key, update_key, eval_key


def check_updates(num_updates: int, max_updates: int) -> None:
    if not 1 <= num_updates <= max_updates:
        raise ValueError(f"num_updates is {num_updates}: it must be in 1 ... {max_updates}")
