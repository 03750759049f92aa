"""What the TPU kernels share: blocks of rows, vectors cut into blocks, products, block sizes.

Vectors [N] travel as [blocks, 1, rows], so that a block of any number of rows is a legal one. A
kernel that wants them down the rows of a tile turns them once per block (`down`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels_pallas import settings
from kernels_pallas.blocks import vary_like

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


class Config(NamedTuple):
    """Block sizes of the three kernels of a linear layer; None where nothing fits on the chip."""

    forward: Any  # Blocks
    d_hidden: Any
    d_unembedding: Any


class Visits(NamedTuple):
    """Which blocks of rows a masked kernel sees: those without a row of the mask come last.

    Known when the kernel runs, so it costs a table that the grid reads ahead. Without a mask there
    is none.
    """

    order: Any  # int32 [blocks]
    whole: Any  # int32 [blocks]: 1 where every row counts, by number of the block


class Rows(NamedTuple):
    num: int  # N
    visits: Visits | None  # None: every block, one after the other
    count: Any  # of visited blocks; int, or int32 [] where there is a mask: at least 1
    valid: Array  # float32 [blocks, rows]: 1 where the row counts


def split_rows(num: int, size: int, mask: Array | None) -> Rows:
    blocks = pl.cdiv(num, size)
    valid = jnp.ones(num, jnp.bool_) if mask is None else mask
    valid = jnp.pad(valid, (0, blocks * size - num)).reshape(blocks, size)
    if mask is None:
        return Rows(num, None, blocks, valid.astype(jnp.float32))
    active = jnp.any(valid, axis=1)
    order = jnp.argsort(~active, stable=True).astype(jnp.int32)
    count = jnp.maximum(jnp.sum(active, dtype=jnp.int32), 1)
    whole = jnp.all(valid, axis=1).astype(jnp.int32)
    return Rows(num, Visits(order, whole), count, valid.astype(jnp.float32))


def visited(i: Any, visits: Visits | None) -> Any:
    """The number of the block of rows that is visited as the i-th."""
    return i if visits is None else visits.order[i]


def is_edge(i: Any, j: Any, visits: Visits | None, shape: tuple[int, int], blocks: Blocks) -> Any:
    """Whether a tile of [N, V] has rows or columns to leave out; False where none has."""
    num, size = shape
    edge = False
    if size % blocks.vocabulary:
        edge = j == size // blocks.vocabulary
    if visits is not None:
        return edge | (visits.whole[visits.order[i]] == 0)
    return edge | (i == num // blocks.rows) if num % blocks.rows else edge


def cut(vector: Array, rows: Rows) -> Array:
    """[N] -> [blocks, 1, rows], with zeros after the last row."""
    blocks, size = rows.valid.shape
    return jnp.pad(vector, (0, blocks * size - rows.num)).reshape(blocks, 1, size)


def join(blocks: Array, rows: Rows, mask: Array | None) -> Array:
    """[blocks, 1, rows] -> [N]; 0 where the mask is 0, also in blocks that nobody wrote."""
    vector = blocks.reshape(-1)[: rows.num]
    return vector if mask is None else jnp.where(mask, vector, 0.0)


def oriented(matrix: Array, transposed: bool) -> tuple[Array, bool]:
    """The matrix as XLA lays it out: along the axis that is whole registers long, if one is not.

    There a transposition is free, and without it XLA would copy the whole matrix for the kernel.
    """
    if matrix.shape[1] % LANES and not matrix.shape[0] % LANES:
        return matrix.T, not transposed
    return matrix, transposed


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
    """Of the TPU at hand; elsewhere, where kernels are interpreted, that of the larger ones."""
    try:
        return pltpu.get_tpu_info().vmem_capacity_bytes
    except ValueError:  # not a TPU
        return 128 * MIB


def wide_matrix_unit() -> bool:
    """Chips that multiply so fast that blocks of 512 rows would wait for memory."""
    try:
        return pltpu.get_tpu_info().mxu_column_size > 128
    except ValueError:
        return False


def settings_key(kernel: str, dtype: Any) -> str:
    """Under which `autotune` keeps what it measures on this chip."""
    try:
        chip = str(pltpu.get_tpu_info().chip_version)
    except ValueError:
        chip = "interpreted"
    return f"{kernel}/{chip}/{jnp.dtype(dtype)}"


def wanted(kernel: str, dtype: Any, heuristic: Config) -> Config:
    """What was measured on this chip, else the heuristic. `fit` makes smaller what does not fit."""
    if found := settings.measured().get(settings_key(kernel, dtype)):
        return Config(*(Blocks(*each) for each in found))
    return heuristic


def compiler_params(shared: bool = True) -> pltpu.CompilerParams:
    """The first axis of the grid may be shared by cores; the second carries sums."""
    return pltpu.CompilerParams(
        dimension_semantics=("parallel" if shared else "arbitrary", "arbitrary"),
        vmem_limit_bytes=vmem_bytes() // 2,
    )


def call(kernel: Callable[..., None], out: Any, interpret: Any, **options: Any) -> Any:
    """pallas_call, also in `shard_map`: results vary over the mesh axes that some input does."""

    def run(*operands: Any) -> Any:
        operands = vary_like(operands, operands)
        axes = jax.typeof(jax.tree.leaves(operands)[0]).manual_axis_type
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, manual_axis_type=axes), out
        )
        grid = options["grid"] if "grid" in options else options["grid_spec"].grid
        # The interpreter cannot share an axis whose length is data.
        shared = isinstance(grid[0], int) or not interpret
        return pl.pallas_call(
            kernel,
            out_shape=shapes,
            compiler_params=compiler_params(shared),
            interpret=interpret,
            **options,
        )(*operands)

    return run


def round_up(number: int, multiple: int) -> int:
    return pl.cdiv(number, multiple) * multiple


def fit(wanted: Blocks, smallest: Blocks, shape: tuple[int, int], cost: Any) -> Blocks | None:
    """The wanted blocks, no larger than the problem, halved until `cost` in bytes fits.

    shape is (N, V). The larger of rows and vocabulary is halved first, so that tiles stay square.
    None if not even the smallest fit.
    """
    rows = min(wanted.rows, round_up(shape[0], smallest.rows))
    vocabulary = min(wanted.vocabulary, round_up(shape[1], smallest.vocabulary))
    while True:
        blocks = Blocks(rows, vocabulary, min(wanted.strip, vocabulary))
        if cost(blocks) <= vmem_bytes() * 0.45:  # the compiler doubles what it is allowed
            return blocks
        can_rows, can_vocabulary = rows > smallest.rows, vocabulary > smallest.vocabulary
        if can_vocabulary and (vocabulary >= rows or not can_rows):
            vocabulary = max(round_up(vocabulary // 2, LANES), smallest.vocabulary)
        elif can_rows:
            rows = max(round_up(rows // 2, smallest.rows), smallest.rows)
        else:
            return None


def strips(blocks: Blocks) -> list[tuple[int, int]]:
    """(first, size) of the strips of a block of the vocabulary."""
    return [
        (first, min(blocks.strip, blocks.vocabulary - first))
        for first in range(0, blocks.vocabulary, blocks.strip)
    ]


def if_edge(edge: Any, body: Any) -> None:
    """Runs body(edge=...): a copy without masks inside, and one with them at the edges."""
    if edge is False:
        body(edge=False)
    else:
        jax.lax.cond(edge, lambda: body(edge=True), lambda: body(edge=False))
