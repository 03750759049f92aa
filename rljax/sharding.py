"""Meshes and partition rules as pure functions.

Environments and token batches are spread over the mesh axis `data`. Parameters are the same on all
devices, but for those of language models: they can be split over a second axis, `model`, and over
`data` too.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rljax.types import PyTree

DATA, MODEL = "data", "model"

# Where a transformer's parameters (rljax/nets/transformer.py) are split: each device of `model` has
# some KV heads with their queries, some columns of the MLP, some rows of the vocabulary. What lies
# along `data` is put together where it is used.
TRANSFORMER_RULES = (
    (r"embedding|unembedding", PartitionSpec(MODEL, DATA)),
    (r"layers/qkv", PartitionSpec(None, MODEL, None, None, DATA)),
    (r"layers/(gate|up)", PartitionSpec(None, MODEL, DATA)),
    (r"layers/(out|down)", PartitionSpec(None, DATA, MODEL)),
    (r"layers/(qkv|gate|up)_bias", PartitionSpec(None, MODEL)),
    (r".*", PartitionSpec()),
)


def make_mesh(
    num_devices: int = 0, *, model_devices: int = 1, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh of `num_devices` devices along `data`; 0 takes all there are.

    With `model_devices` above 1 so many of them lie along `model`, for each place along `data`.

    Raises:
      ValueError: if there are fewer devices than asked for, or they cannot be divided so.

    >>> make_mesh(1).shape["data"]
    1
    """
    devices = jax.devices() if devices is None else list(devices)
    if not 0 <= num_devices <= len(devices):
        raise ValueError(f"num_devices is {num_devices}: there are {len(devices)}, and 0 takes all")
    devices = devices[: num_devices or len(devices)]
    if model_devices < 1 or len(devices) % model_devices:
        raise ValueError(
            f"model_devices is {model_devices}: it must divide the {len(devices)} devices in use"
        )
    if model_devices == 1:
        return Mesh(np.asarray(devices), (DATA,), axis_types=(AxisType.Auto,))
    places = np.asarray(devices).reshape(-1, model_devices)
    return Mesh(places, (DATA, MODEL), axis_types=(AxisType.Auto, AxisType.Auto))


def param_sharding(
    mesh: Mesh,
    *,
    over_data: bool = False,
    rules: Sequence[tuple[str, PartitionSpec]] = TRANSFORMER_RULES,
) -> Callable[[str, tuple[int, ...]], NamedSharding]:
    """How each parameter lies on the mesh: what `load_language_model` takes as `sharding`.

    The first rule whose expression matches the whole path counts. An axis of the rule that the mesh
    does not have, or that does not divide the parameter evenly, leaves it whole there.

    Args:
      mesh: with `data` and perhaps `model`.
      over_data: whether `data` splits parameters too, which saves memory and costs a gathering.
      rules: (regular expression of paths such as "layers/qkv", PartitionSpec).

    Returns:
      A function (path, shape) -> NamedSharding.

    >>> tuple(param_sharding(make_mesh(1), over_data=True)("embedding", (11, 8)).spec)
    (None, 'data')
    """

    def place(path: str, shape: tuple[int, ...]) -> NamedSharding:
        spec = next(spec for pattern, spec in rules if re.fullmatch(pattern, path))
        axes = [
            name if fits(name, size) else None
            for name, size in zip((*spec, *[None] * (len(shape) - len(spec))), shape)
        ]
        return NamedSharding(mesh, PartitionSpec(*axes))

    def fits(name: Any, size: int) -> bool:
        names = name if isinstance(name, tuple) else (name,)
        return all(n in mesh.shape and (n != DATA or over_data) for n in names) and (
            size % math.prod(mesh.shape[n] for n in names) == 0
        )

    return place


def shard_params(params: PyTree, place: Callable[[str, tuple[int, ...]], NamedSharding]) -> PyTree:
    """Parameters, nested dicts of arrays, where `place` (of `param_sharding`) says.

    >>> placed = shard_params({"norm": np.ones(4)}, param_sharding(make_mesh(1)))
    >>> placed["norm"].sharding.is_fully_replicated
    True
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, x: jax.device_put(x, place("/".join(key.key for key in path), x.shape)),
        params,
    )


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
    devices = mesh.shape[DATA]
    if size % devices:
        raise ValueError(f"{name} is {size}: it must be divisible by the {devices} devices in use")
