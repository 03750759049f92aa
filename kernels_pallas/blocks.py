"""Walking over blocks of rows and of the vocabulary, the last of which may be short.

Blocks of the vocabulary are static in size: whole ones in a loop, then what is left. Blocks of rows
are all of one size: the last one begins early enough to be whole, and `fresh` says which of its
rows have not been in the block before. Arrays are read in place, never padded or copied.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax


def varying_axes(*arrays: Any) -> frozenset[str]:
    """The mesh axes over which some leaf varies, inside a `shard_map` that checks it."""
    types = [jax.typeof(x).manual_axis_type for x in jax.tree.leaves(arrays)]
    return frozenset().union(*(each.varying for each in types))


def vary_like(tree: Any, *arrays: Any) -> Any:
    """The tree, varying over all mesh axes over which any of the arrays varies.

    A loop in `shard_map` needs the type of its carry from the start.
    """
    return vary_over(tree, varying_axes(*arrays))


def vary_over(tree: Any, axes: frozenset[str]) -> Any:
    """The tree, varying over these mesh axes too."""

    def vary(x: Array) -> Array:
        missing = tuple(sorted(axes - varying_axes(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(vary, tree)


def for_slices(array: Array, first: Any) -> tuple[Array, Any]:
    """The same two, of which the array may be sliced at `first` in a loop.

    XLA on CPUs slices bfloat16 by way of float32, and would convert the whole array once, before
    the loop: a copy that may be as large as the logits. Waiting for `first` prevents it.
    """
    if array.dtype != jnp.bfloat16:
        return array, first
    return lax.optimization_barrier((array, jnp.asarray(first)))


def read(array: Array, first: Any, size: int, axis: int) -> Array:
    """Places first ... first + size - 1 of an axis."""
    array, first = for_slices(array, first)
    return lax.dynamic_slice_in_dim(array, first, size, axis=axis)


def write(array: Array, part: Array, first: Any, axis: int) -> Array:
    """The array with the part in these places."""
    return lax.dynamic_update_slice_in_dim(array, part, first, axis=axis)


def as_bits(array: Array) -> Array:
    """bfloat16 as uint16, anything else as it is.

    What a loop writes into: XLA on CPUs would copy all of a bfloat16 array for each slice of it.
    """
    return lax.bitcast_convert_type(array, jnp.uint16) if array.dtype == jnp.bfloat16 else array


def of_bits(bits: Array, dtype: Any) -> Array:
    return lax.bitcast_convert_type(bits, dtype) if dtype == jnp.bfloat16 else bits


def over_vocabulary(num: int, size: int, body: Callable[[Any, int, Any], Any], carry: Any) -> Any:
    """carry <- body(first, size, carry) for each block of [0, num); size is a Python int."""
    size = min(size, num)
    whole = num // size
    if whole == 1:
        carry = body(0, size, carry)
    else:
        carry = lax.fori_loop(0, whole, lambda i, carry: body(i * size, size, carry), carry)
    return body(whole * size, num % size, carry) if num % size else carry


class RowBlock(NamedTuple):
    first: Any  # the block has rows first ... first + size - 1
    size: int
    fresh: Array  # bool [size]: not part of the block before

    def of(self, array: Array) -> Array:
        return read(array, self.first, self.size, axis=0)

    def put(self, array: Array, rows: Array) -> Array:
        return write(array, rows, self.first, axis=0)


def over_rows(
    num: int, size: int, count: Array | None, body: Callable[[RowBlock, Any], Any], carry: Any
) -> Any:
    """carry <- body(block, carry) for each block of the first `count` (None: all) of num rows."""
    size = min(size, num)

    def visit(i: Any, carry: Any) -> Any:
        first = jnp.minimum(i * size, num - size)
        fresh = first + jnp.arange(size, dtype=jnp.int32) >= i * size
        return body(RowBlock(first, size, fresh), carry)

    if count is None and num <= size:
        return visit(0, carry)
    num_blocks = -(-num // size) if count is None else (count + size - 1) // size
    return lax.fori_loop(0, num_blocks, visit, carry)


class Order(NamedTuple):
    """Rows with the kept ones in front, so that whole blocks of masked rows cost nothing."""

    count: Array | None  # of kept rows; None: all
    order: Array | None
    inverse: Array | None

    def sort(self, array: Array) -> Array:
        return array if self.order is None else array[self.order]

    def unsort(self, array: Array) -> Array:
        return array if self.inverse is None else array[self.inverse]


def order_rows(mask: Array | None) -> Order:
    if mask is None:
        return Order(None, None, None)
    order = jnp.argsort(~mask, stable=True)
    return Order(jnp.sum(mask, dtype=jnp.int32), order, jnp.argsort(order))
