"""What the searches for block sizes have in common."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax


def one_by_one(
    blocks: Any, candidates: Mapping[str, Sequence[Any]], time_of: Callable[[Any, str], float]
) -> Any:
    """The fastest candidate for each field of `blocks`, one field after the other.

    `time_of(blocks, field)` is the time of what depends on the field.
    """
    for field, tries in candidates.items():
        trials = [blocks._replace(**{field: each}) for each in tries]
        blocks = min(trials, key=lambda trial: time_of(trial, field))
    return blocks


def seconds(function: Callable[..., Any], *arguments: Any, repeats: int = 5) -> float:
    """The median of a few runs, after one that compiles."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def seconds_or_never(function: Callable[..., Any], *arguments: Any) -> float:
    """The median of three runs; infinite where the blocks do not fit the chip."""
    try:
        return seconds(function, *arguments, repeats=3)
    except Exception as problem:
        if not any(word in str(problem).lower() for word in ("memory", "resource")):
            raise
        return float("inf")
