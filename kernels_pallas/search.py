"""What the searches for block sizes have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernels_pallas.gpu_check import seconds


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


def seconds_or_never(function: Callable[..., Any], *arguments: Any) -> float:
    """The median of three runs; infinite where the blocks do not fit the chip."""
    try:
        return seconds(function, *arguments, repeats=3)
    except Exception as problem:
        if not any(word in str(problem).lower() for word in ("memory", "resource")):
            raise
        return float("inf")
