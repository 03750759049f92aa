"""What the Triton kernels share: masked tiles, products over a long axis, logits of a tile.

A program loops inside itself over what it needs; nothing is carried between programs. Sizes that
no block divides are masked at the load, so arrays are read in place, never padded or copied.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def indices(first: Any, size: int) -> Array:
    return first + jnp.arange(size, dtype=jnp.int32)


def vector(ref: Any, first: Any, size: int, length: int, other: float = 0) -> Array:
    """ref[first : first + size], with `other` from `length` on."""
    inside = indices(first, size) < length
    return plgpu.load(ref.at[pl.ds(first, size)], mask=inside, other=other)


def store_vector(ref: Any, line: Any, first: Any, value: Array) -> None:
    """ref[line, first : first + size] = value, as far as it exists."""
    inside = indices(first, value.shape[0]) < ref.shape[1]
    plgpu.store(ref.at[line, pl.ds(first, value.shape[0])], value, mask=inside)


class Side(NamedTuple):
    """One axis of a tile: where it begins, how long it is, and which of it exists."""

    first: Any
    size: int
    exists: Array | None = None  # bool [size]; None: all of it

    @classmethod
    def of(cls, first: Any, size: int, length: int) -> "Side":
        """The part of an axis of `length`; masked only if blocks of `size` do not divide it."""
        return cls(first, size, indices(first, size) < length if length % size else None)


def _exists(rows: Side, columns: Side) -> Array | None:
    row = None if rows.exists is None else rows.exists[:, None]
    column = None if columns.exists is None else columns.exists[None, :]
    if row is None or column is None:
        one = column if row is None else row
        return None if one is None else jnp.broadcast_to(one, (rows.size, columns.size))
    return row & column


def tile(ref: Any, rows: Side, columns: Side) -> Array:
    """The tile, with 0 where it does not exist: garbage there never reaches a product."""
    at = ref.at[pl.ds(rows.first, rows.size), pl.ds(columns.first, columns.size)]
    mask = _exists(rows, columns)
    return plgpu.load(at) if mask is None else plgpu.load(at, mask=mask, other=0)


def store_tile(ref: Any, rows: Side, columns: Side, value: Array) -> None:
    at = ref.at[pl.ds(rows.first, rows.size), pl.ds(columns.first, columns.size)]
    plgpu.store(at, value.astype(ref.dtype), mask=_exists(rows, columns))


def dot(x: Array, y: Array, axes: tuple[int, int], interpret: Any) -> Array:
    """The product over one axis of each, in float32.

    Three products of tf32 parts give float32 products to about 2^-22, on the matrix units, summed
    from 0: whoever adds the result to a longer sum does so in float32. No interpreter has them.
    """
    precision = None
    if x.dtype == jnp.float32:
        three = lax.DotAlgorithmPreset.TF32_TF32_F32_X3
        precision = lax.Precision.HIGHEST if interpret else three
    return lax.dot_general(
        x,
        y,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def sum_products(steps: Any, shape: tuple[int, int], product: Callable[[Any], Array]) -> Array:
    """Σ_k product(k) for k below `steps`."""
    return lax.fori_loop(0, steps, lambda k, sum: sum + product(k), jnp.zeros(shape, jnp.float32))


def logits(
    hidden_ref: Any,
    unembedding_ref: Any,
    rows: Side,
    columns: Side,
    depth: int,
    interpret: Any,
    transposed: bool,
) -> Array:
    """hidden · unembedding of one tile, float32, before bias, softcap and temperature."""
    width = hidden_ref.shape[1]

    def product(k: Any) -> Array:
        inner = Side.of(k * depth, depth, width)
        hidden = tile(hidden_ref, rows, inner)
        if transposed:
            return dot(hidden, tile(unembedding_ref, columns, inner), (1, 1), interpret)
        return dot(hidden, tile(unembedding_ref, inner, columns), (1, 0), interpret)

    return sum_products(pl.cdiv(width, depth), (rows.size, columns.size), product)


def finite(x: Array) -> Array:
    """0 in place of -inf: what is subtracted from logits in rows that have none."""
    return jnp.where(x == -jnp.inf, 0.0, x)


def column(vector: Array) -> Array:
    return vector[:, None]


def exp(x: Array) -> Array:
    return jnp.exp2(x * LOG2_E)


def varying_alike(tree: Any) -> Any:
    """All arrays vary over the mesh axes that any of them varies over; for use in `shard_map`."""

    def axes_of(x: Array) -> frozenset[str]:
        return frozenset(jax.typeof(x).manual_axis_type.varying)

    axes = frozenset().union(*map(axes_of, jax.tree.leaves(tree)))

    def vary(x: Array) -> Array:
        missing = tuple(sorted(axes - axes_of(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(vary, tree)


def call(
    kernel: Callable[..., None],
    *,
    grid: tuple[int, ...],
    out: Any,
    warps: int,
    stages: int,
    interpret: Any,
    name: str,
    aliases: dict[int, int] | None = None,
) -> Callable[..., Any]:
    """pallas_call on whole arrays; programs with neighbouring first indices run side by side."""

    def run(*operands: Array) -> Any:
        operands = varying_alike(operands)
        axes = jax.typeof(operands[0]).manual_axis_type
        return pl.pallas_call(
            kernel,
            grid=grid,
            out_shape=jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, manual_axis_type=axes), out
            ),
            input_output_aliases=aliases or {},
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
            interpret=bool(interpret),
            name=name,
        )(*operands)

    return run


def float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def with_optional(kernel: Callable[..., None], at: int, given: tuple[bool, ...]):
    """The kernel, with None for the optional operands from position `at` on that are not given."""

    def filled(*refs: Any) -> None:
        before, rest = refs[:at], list(refs[at:])
        optional = [rest.pop(0) if there else None for there in given]
        kernel(*before, *optional, *rest)

    return filled
