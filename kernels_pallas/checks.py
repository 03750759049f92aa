"""What every kernel does with its arguments first, at trace time: errors of one line."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

DTYPES = ("float32", "bfloat16")


def require_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")


def require_dtype(name: str, array: Array, dtype: Any) -> None:
    """That of the array it meets; a silent conversion would be a copy of a large array."""
    if array.dtype != dtype:
        raise ValueError(f"{name} must be {dtype} like the others, got {array.dtype}")


def require_matrix(name: str, array: ArrayLike, axes: str) -> Array:
    """The array: two axes, of which only the first may be empty, and a known dtype."""
    array = jnp.asarray(array)
    if array.ndim != 2:
        raise ValueError(f"{name} must be {axes}, got shape {array.shape}")
    if array.shape[1] == 0:
        raise ValueError(f"{name} must be {axes} with at least one column, got {array.shape}")
    if array.dtype.name not in DTYPES:
        raise ValueError(f"{name} must be {' or '.join(DTYPES)}, got {array.dtype}")
    return array


def require_tokens(tokens: ArrayLike, num_rows: int) -> Array:
    tokens = jnp.asarray(tokens)
    require_shape("tokens", tokens, (num_rows,))
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(f"tokens must be integers, got {tokens.dtype}")
    return tokens.astype(jnp.int32)


def require_mask(mask: ArrayLike, num_rows: int) -> Array:
    mask = jnp.asarray(mask)
    require_shape("mask", mask, (num_rows,))
    return mask != 0


def require_positive(name: str, number: Any) -> None:
    """Only of numbers that are known when the program is traced."""
    if isinstance(number, int | float) and not number > 0:
        raise ValueError(f"{name} must be above 0, got {number}")


def require_temperature(temperature: ArrayLike) -> Array:
    require_positive("temperature", temperature)
    temperature = jnp.asarray(temperature, jnp.float32)
    require_shape("temperature", temperature, ())
    return temperature


def require_pair(
    hidden: ArrayLike, unembedding: ArrayLike, suffix: str = ""
) -> tuple[Array, Array, bool]:
    """hidden [N, D], unembedding in its own layout, and whether that is [V, D]."""
    hidden = require_matrix(f"hidden{suffix}", hidden, "[N, D]")
    unembedding = jnp.asarray(unembedding)
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
