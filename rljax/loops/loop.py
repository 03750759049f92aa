"""What every loop gives to the program that drives it, and what the loops share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Key, PyTree

ENV, ALGO, EVAL = 0, 1, 2  # streams of the run's key


class RunState(NamedTuple):
    """All there is of a run. With host environments `env` is empty: they keep it themselves."""

    algo: PyTree
    env: PyTree
    observation: Any  # [B, ...] to act on next; NumPy's for host environments
    key: Key  # never changes; update u draws from fold_in(key, u)
    step: Any  # int32 []: updates done


class Loop(NamedTuple):
    """A run as functions; `experiments/run.py` drives it and sees no difference between the kinds.

    With S = `num_seeds` > 1 whole runs go side by side: every leaf of the state gets a leading
    axis S. `advance` does the given number of updates, 1 ... max_updates, and donates the state;
    its metrics are [n, S], one row per update. Those of `evaluate` are [S]. `save` gives the
    pytree that a checkpoint holds, `load` the state back from it, `template` its structure,
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


def seed_keys(seed: int, num_seeds: int) -> Key:
    """One key, or [S] keys, of seed, seed + 1, ..."""
    keys = jax.vmap(jax.random.key)(jnp.arange(seed, seed + num_seeds, dtype=jnp.uint32))
    return keys if num_seeds > 1 else keys[0]


def check_updates(num_updates: int, max_updates: int) -> None:
    if not 1 <= num_updates <= max_updates:
        raise ValueError(f"num_updates is {num_updates}: it must be in 1 ... {max_updates}")
