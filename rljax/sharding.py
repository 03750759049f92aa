"""Meshes and partition rules as pure functions.

There is one mesh axis for classic RL, `data`: environments (and token batches) are spread over it,
parameters are replicated.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rljax.types import PyTree

DATA = "data"


def make_mesh(num_devices: int = 0, *, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of `num_devices` devices along `data`; 0 takes all there are.

    Raises:
      ValueError: if there are fewer devices than asked for.

    >>> make_mesh(1).shape["data"]
    1
    """
    devices = jax.devices() if devices is None else list(devices)
    if not 0 <= num_devices <= len(devices):
        raise ValueError(f"num_devices is {num_devices}: there are {len(devices)}, and 0 takes all")
    devices = devices[: num_devices or len(devices)]
    return Mesh(np.asarray(devices), (DATA,), axis_types=(AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same value on every device."""
    return NamedSharding(mesh, PartitionSpec())


def along_data(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Axis number `axis` is split over `data`; the others are whole."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, DATA))


def like(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """`sharding` for every leaf of `tree`."""
    return jax.tree.map(lambda _: sharding, tree)


def check_divisible(name: str, size: int, mesh: Mesh) -> None:
    """Raises a ValueError unless `size` can be split evenly over the mesh."""
    if size % mesh.size:
        raise ValueError(
            f"{name} is {size}: it must be divisible by the {mesh.size} devices in use"
        )
