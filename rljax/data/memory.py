"""How many bytes arrays take and how many there are, asked before anything is allocated."""

import math
import os
from pathlib import Path

import jax

from rljax.types import PyTree

GROUPS = Path("/sys/fs/cgroup")  # where Linux says what a container may use


def num_bytes(tree: PyTree) -> int:
    """The bytes of all leaves, from their shapes and dtypes alone.

    >>> num_bytes({"x": jax.ShapeDtypeStruct((10, 3), np.float32), "y": np.zeros(10, np.uint8)})
    130
    """
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def available_bytes() -> int | None:
    """Memory that the first device can still give; None where nobody knows.

    An accelerator is asked itself. On CPU it is what the system calls available, or what is left
    of the container's limit if that is less.
    """
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
    known = [_system_bytes(), _container_bytes()]
    return min((size for size in known if size is not None), default=None)


def check_memory(what: str, size: int, limit: int | None = None) -> None:
    """Raises a ValueError if `size` bytes are more than `limit`, or than there are if it is None.

    >>> check_memory("replay", 1000)
    """
    limit = available_bytes() if limit is None else limit
    if limit is not None and size > limit:
        raise ValueError(f"{what} needs {size:,} bytes of memory, and {limit:,} are available")


def _system_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if "MemAvailable:" in line)
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _container_bytes() -> int | None:
    try:
        limit = int((GROUPS / "memory.max").read_text())
        return max(limit - int((GROUPS / "memory.current").read_text()), 0)
    except (OSError, ValueError):  # no container, or "max": no limit
        return None
