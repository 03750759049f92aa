"""What the TPU kernels share: blocks of rows, vectors cut into blocks, products, block sizes.

Vectors [N] travel as [blocks, 1, rows], so that a block of any number of rows is a legal one. A
kernel that wants them down the rows of a tile turns them once per block (`down`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
LOWEST = -3e38  # finite, and below every logit: a running maximum begins here
MIB = 2**20


class Blocks(NamedTuple):
    """Block sizes of a kernel; `strip` columns at a time pass from the matrix unit to the rest."""

    rows: int
    vocabulary: int
    strip: int


class Rows(NamedTuple):
    """Which blocks of rows are visited: those without a row of the mask come last, unvisited."""

    order: Array  # int32 [blocks]
    whole: Array  # int32 [blocks]: 1 where every row counts, by number of the block
    count: Any  # int, or int32 [] where there is a mask: at least 1
    valid: Array  # float32 [blocks, rows]: 1 where the row counts
    num: int  # N


def split_rows(num: int, size: int, mask: Array | None) -> Rows:
    blocks = pl.cdiv(num, size)
    valid = jnp.ones(num, jnp.bool_) if mask is None else mask
    valid = jnp.pad(valid, (0, blocks * size - num)).reshape(blocks, size)
    order, count = jnp.arange(blocks, dtype=jnp.int32), blocks
    if mask is not None:
        active = jnp.any(valid, axis=1)
        order = jnp.argsort(~active, stable=True).astype(jnp.int32)
        count = jnp.maximum(jnp.sum(active, dtype=jnp.int32), 1)
    whole = jnp.all(valid, axis=1).astype(jnp.int32)
    return Rows(order, whole, count, valid.astype(jnp.float32), num)


def cut(vector: Array, rows: Rows) -> Array:
    """[N] -> [blocks, 1, rows], with zeros after the last row."""
    blocks, size = rows.valid.shape
    return jnp.pad(vector, (0, blocks * size - rows.num)).reshape(blocks, 1, size)


def join(blocks: Array, rows: Rows, mask: Array | None) -> Array:
    """[blocks, 1, rows] -> [N]; 0 where the mask is 0, also in blocks that nobody wrote."""
    vector = blocks.reshape(-1)[: rows.num]
    return vector if mask is None else jnp.where(mask, vector, 0.0)


def down(row: Array) -> Array:
    """[1, rows] -> [rows, 128]: every lane of a row holds its number."""
    return jnp.broadcast_to(row, (LANES, row.shape[1])).T


def product(x: Array, y: Array, x_axis: int, y_axis: int) -> Array:
    """The product of two tiles over an axis of each, accumulated in float32."""
    dtype = jnp.promote_types(x.dtype, y.dtype)
    return lax.dot_general(
        x.astype(dtype),
        y.astype(dtype),
        (((x_axis,), (y_axis,)), ((), ())),
        precision=lax.Precision.HIGHEST if dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def vmem_bytes() -> int:
    """On-chip memory of the TPU at hand; elsewhere that of the smallest."""
    try:
        return pltpu.get_tpu_info().vmem_capacity_bytes
    except ValueError:  # not a TPU: a kernel is interpreted
        return 16 * MIB


def compiler_params() -> pltpu.CompilerParams:
    """The first axis of the grid may be shared by cores; the second carries sums."""
    return pltpu.CompilerParams(
        dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem_bytes() * 3 // 4
    )


def round_up(number: int, multiple: int) -> int:
    return pl.cdiv(number, multiple) * multiple


def fit(wanted: Blocks, smallest: Blocks, shape: tuple[int, int], cost: Any) -> Blocks:
    """The wanted blocks, no larger than the problem, halved until `cost` in bytes fits.

    shape is (N, V). The larger of rows and vocabulary is halved first, so that tiles stay square.
    """
    rows = min(wanted.rows, round_up(shape[0], smallest.rows))
    vocabulary = min(wanted.vocabulary, round_up(shape[1], smallest.vocabulary))
    while True:
        blocks = Blocks(rows, vocabulary, min(wanted.strip, vocabulary))
        can_rows, can_vocabulary = rows > smallest.rows, vocabulary > smallest.vocabulary
        if cost(blocks) <= vmem_bytes() * 7 // 8 or not (can_rows or can_vocabulary):
            return blocks
        if can_vocabulary and (vocabulary >= rows or not can_rows):
            vocabulary = max(round_up(vocabulary // 2, LANES), smallest.vocabulary)
        else:
            rows = max(round_up(rows // 2, smallest.rows), smallest.rows)


def strips(blocks: Blocks) -> list[tuple[int, int]]:
    """(first, size) of the strips of a block of the vocabulary."""
    return [
        (first, min(blocks.strip, blocks.vocabulary - first))
        for first in range(0, blocks.vocabulary, blocks.strip)
    ]


def if_edge(is_edge: Any, body: Any) -> None:
    """Runs body(edge=...): a copy without masks inside, and one with them at the edges."""
    if is_edge is False:
        body(edge=False)
    else:
        jax.lax.cond(is_edge, lambda: body(edge=True), lambda: body(edge=False))
