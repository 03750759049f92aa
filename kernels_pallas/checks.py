"""What every kernel does with its arguments first, at trace time: errors of one line."""

import math
from importlib import import_module
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.sharding import AxisType, get_abstract_mesh
from jax.typing import ArrayLike

DTYPES = ("float32", "bfloat16")
CONFIGS = {  # by name: what the others need is not imported for one of them
    "xla": ("records", "Blocks"),
    "pallas_tpu": ("tpu.mosaic", "Config"),
    "pallas_gpu": ("gpu.blocks", "GpuBlocks"),
}


def as_array(name: str, values: ArrayLike) -> Array:
    """As a JAX array of real numbers."""
    try:
        array = jnp.asarray(values)
    except (TypeError, ValueError, OverflowError):
        kind = type(values).__name__
        raise ValueError(f"{name} must be an array of numbers, got {kind}") from None
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"{name} must be real, got {array.dtype}")
    return array


def require_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")


def require_dtype(name: str, array: Array, dtype: Any) -> None:
    """That of the array it meets; a silent conversion would be a copy of a large array."""
    if array.dtype != dtype:
        raise ValueError(f"{name} must be {dtype} like the others, got {array.dtype}")


def require_matrix(name: str, array: ArrayLike, axes: str) -> Array:
    """The array: two axes, of which only the first may be empty, and a known dtype."""
    array = as_array(name, array)
    if array.ndim != 2:
        raise ValueError(f"{name} must be {axes}, got shape {array.shape}")
    if array.shape[1] == 0:
        raise ValueError(f"{name} must be {axes} with at least one column, got {array.shape}")
    if array.dtype.name not in DTYPES:
        raise ValueError(f"{name} must be {' or '.join(DTYPES)}, got {array.dtype}")
    return array


def require_tokens(tokens: ArrayLike, num_rows: int) -> Array:
    """As int32; what does not fit becomes a number that is outside of any vocabulary as well."""
    if not isinstance(tokens, Array):  # JAX would wrap 2**32 to 0 without a word
        tokens = np.asarray(tokens)
    require_shape("tokens", tokens, (num_rows,))
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(f"tokens must be integers, got {tokens.dtype}")
    if tokens.dtype.itemsize >= 4 and tokens.dtype != jnp.int32:
        smallest, largest = max(jnp.iinfo(tokens.dtype).min, -1), jnp.iinfo(jnp.int32).max
        tokens = tokens.clip(smallest, largest)
    return jnp.asarray(tokens, jnp.int32)


def require_mask(mask: ArrayLike, num_rows: int) -> Array:
    mask = as_array("mask", mask)
    require_shape("mask", mask, (num_rows,))
    return mask != 0


def require_bias(bias: ArrayLike, num_tokens: int) -> Array:
    bias = as_array("bias", bias)
    require_shape("bias", bias, (num_tokens,))
    return bias.astype(jnp.float32)


def require_positive(name: str, number: Any) -> Array:
    """As float32 []. Above 0 is demanded of numbers that are known when the program is traced."""
    array = as_array(name, number)
    require_shape(name, array, ())
    if not isinstance(number, Tracer) and not float(number) > 0:
        raise ValueError(f"{name} must be above 0, got {number}")
    return array.astype(jnp.float32)


def require_softcap(softcap: Any) -> float | None:
    """As a Python number: the program that is compiled depends on it."""
    if softcap is None:
        return None
    try:
        number = float(softcap)
    except (TypeError, ValueError):
        kind = type(softcap).__name__
        raise ValueError(f"softcap must be a number and not traced, got {kind}") from None
    if not number > 0:
        raise ValueError(f"softcap must be above 0, got {softcap}")
    if number == math.inf:
        raise ValueError(f"softcap must be finite (None is none), got {softcap}")
    return number


def require_axis(vocab_axis: Any) -> None:
    if vocab_axis is None:
        return
    try:
        known = isinstance(vocab_axis, str) and lax.axis_size(vocab_axis) > 0
    except NameError:
        known = False
    if not known:
        manual = tuple(get_abstract_mesh().manual_axes)
        raise ValueError(
            f"vocab_axis must be an axis of a shard_map around the call, one of {manual}, "
            f"got {vocab_axis!r}"
        )


def require_local(**arrays: Array | None) -> None:
    """Blocks cannot be cut out of arrays whose type says that they lie on several devices."""
    for name, array in arrays.items():
        if array is None:
            continue
        sharding = jax.typeof(array).sharding
        elsewhere = AxisType.Explicit in sharding.mesh.axis_types and get_abstract_mesh().empty
        if elsewhere or any(axis is not None for axis in sharding.spec):
            raise ValueError(
                f"{name} must be on one device, or inside a shard_map its part of it, "
                f"got {sharding.spec} of explicit mesh axes {sharding.mesh.axis_names}"
            )


def require_config(implementation: str, config: Any) -> None:
    """Block sizes of the type that the implementation takes. The reference ignores them."""
    if config is None or implementation not in CONFIGS:
        return
    module, name = CONFIGS[implementation]
    if not isinstance(config, getattr(import_module(f"{__package__}.{module}"), name)):
        kind = type(config).__name__
        raise ValueError(f"config of {implementation!r} must be {name}, got {kind}")
    sizes = config if name == "Blocks" else ()
    if not all(isinstance(size, Integral) and int(size) > 0 for size in sizes):
        raise ValueError(f"config must have whole numbers above 0, got {config}")


def require_pair(
    hidden: ArrayLike, unembedding: ArrayLike, suffix: str = ""
) -> tuple[Array, Array, bool]:
    """hidden [N, D], unembedding in its own layout, and whether that is [V, D]."""
    hidden = require_matrix(f"hidden{suffix}", hidden, "[N, D]")
    unembedding = as_array(f"unembedding{suffix}", unembedding)
    width = hidden.shape[1]
    if unembedding.ndim != 2 or width not in unembedding.shape:
        raise ValueError(
            f"unembedding{suffix} must be [D, V] or [V, D] with D = {width}, "
            f"got {unembedding.shape}"
        )
    if 0 in unembedding.shape:
        raise ValueError(f"unembedding{suffix} must not be empty, got {unembedding.shape}")
    require_dtype(f"unembedding{suffix}", unembedding, hidden.dtype)
    return hidden, unembedding, unembedding.shape[0] != width
