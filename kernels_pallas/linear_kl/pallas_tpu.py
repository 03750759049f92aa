"""KL(p‖q) of two models on a TPU, without the logits of either.

Blocks of rows of both hidden states meet both unembeddings block by block; see
`linear_token_stats/pallas_tpu.py` for the way through the vocabulary.

Flops 2NV(D_p + D_q) forward, 8NV(D_p + D_q) backward: one kernel sums dz · Wᵀ over the vocabulary,
one sums hᵀ · dz over rows, and each forms the logits once more. With q held fixed 4NV(2D_p + D_q).
Where the sums of both sides do not fit on the chip, one side is made after the other, for
12NV(D_p + D_q).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels_pallas.linear_kl.pallas_tpu_tile import (
    Sides,
    choose_blocks,
    clean,
    config_of,
    logits_of,
    strip_of,
)
from kernels_pallas.records import KLStatic, KLStats
from kernels_pallas.tpu import mosaic, mosaic_divergence
from kernels_pallas.tpu.mosaic import LANES, MIB, Blocks

Pair = tuple[Array, Array]


def unsupported(*, dtype: Any, shape: tuple[int, int, int, int]) -> str | None:
    if any(None in choose_blocks(shape, dtype, sides=side) for side in "pq"):
        width, memory = shape[1] + shape[2], mosaic.vmem_bytes() // MIB
        return f"sums of {width} columns need more than the {memory} MiB on the chip"
    return None


def _sides(of_p: Pair, of_q: Pair, static: KLStatic, blocks: Blocks, rows_first: bool) -> Sides:
    """Arrays and blocks; the grid is (rows, vocabulary), or the other way round."""
    transposed = (static.transposed_p, static.transposed_q)

    def row(*at: Any) -> Any:
        return at[0 if rows_first else 1]

    def column(*at: Any) -> Any:
        return at[1 if rows_first else 0]

    hidden: list[Any] = []
    weights: list[Any] = []
    for (states, _), flipped in zip((of_p, of_q), transposed):
        width = states.shape[1]
        hidden.append(pl.BlockSpec((blocks.rows, width), lambda *at: (row(*at), 0)))
        shape = (blocks.vocabulary, width) if flipped else (width, blocks.vocabulary)
        if flipped:
            weights.append(pl.BlockSpec(shape, lambda *at: (column(*at), 0)))
        else:
            weights.append(pl.BlockSpec(shape, lambda *at: (0, column(*at))))
    size = of_p[1].shape[0 if static.transposed_p else 1]
    grid = (pl.cdiv(len(of_p[0]), blocks.rows), pl.cdiv(size, blocks.vocabulary))
    grid = grid if rows_first else (grid[1], grid[0])
    return Sides(transposed, hidden, weights, size, grid, row, column)


def _oriented(of_p: Pair, of_q: Pair, static: KLStatic) -> tuple[Pair, Pair, KLStatic]:
    w_p, transposed_p = mosaic.oriented(of_p[1], static.transposed_p)
    w_q, transposed_q = mosaic.oriented(of_q[1], static.transposed_q)
    static = static._replace(transposed_p=transposed_p, transposed_q=transposed_q)
    return (of_p[0], w_p), (of_q[0], w_q), static


def forward(of_p: Pair, of_q: Pair, static: KLStatic) -> KLStats:
    of_p, of_q, static = _oriented(of_p, of_q, static)
    blocks = config_of(of_p, of_q, static).forward
    sides = _sides(of_p, of_q, static, blocks, rows_first=True)
    rows = mosaic.split_rows(len(of_p[0]), blocks.rows, None)
    vector = pl.BlockSpec((1, 1, blocks.rows), lambda i, j: (i, 0, 0))
    per_lane = pltpu.VMEM((blocks.rows, LANES), jnp.float32)
    out = mosaic.call(
        functools.partial(_forward_kernel, sides=sides, blocks=blocks),
        {
            name: jax.ShapeDtypeStruct((rows.count, 1, blocks.rows), jnp.float32)
            for name in mosaic_divergence.FIELDS
        },
        static.interpret,
        name="linear_kl_forward",
        grid=sides.grid,
        in_specs=[sides.hidden, sides.weights],
        out_specs={name: vector for name in mosaic_divergence.FIELDS},
        scratch_shapes=[{name: per_lane for name in mosaic_divergence.CARRIED}],
    )([of_p[0], of_q[0]], [of_p[1], of_q[1]])
    return KLStats(**{name: mosaic.join(each, rows, None) for name, each in out.items()})


def _forward_kernel(
    hidden: Any, weights: Any, out: Any, carried: Any, *, sides: Sides, blocks: Blocks
) -> None:
    j, last = pl.program_id(1), pl.num_programs(1) - 1

    @pl.when(j == 0)
    def _begin() -> None:
        mosaic_divergence.begin(carried)

    def visit(edge: bool) -> None:
        state = {name: ref[...] for name, ref in carried.items()}
        limit = sides.size - j * blocks.vocabulary if edge else None
        rows = [ref[...] for ref in hidden]
        for first, width in mosaic.strips(blocks):
            both = logits_of(rows, weights, sides.transposed, first, width, limit)
            state = mosaic_divergence.update(state, *both)
        for name, ref in carried.items():
            ref[...] = state[name]

    mosaic.if_edge(j == last if sides.size % blocks.vocabulary else False, visit)

    @pl.when(j == last)
    def _finish() -> None:
        mosaic_divergence.join_lanes({name: ref[...] for name, ref in carried.items()}, out)


def backward(of_p: Pair, of_q: Pair, stats: KLStats, g: Array, static: KLStatic) -> Any:
    """((d_hidden_p, d_unembedding_p), (d_hidden_q, d_unembedding_q)); None for a fixed side."""
    if static.sides == "pq" and None in config_of(of_p, of_q, static):
        apart = (static._replace(sides=side) for side in "pq")
        return tuple(backward(of_p, of_q, stats, g, x)[i] for i, x in enumerate(apart))
    shapes = of_p[1].shape, of_q[1].shape
    of_p, of_q, static = _oriented(of_p, of_q, static)
    config = config_of(of_p, of_q, static)
    hidden, weights = [of_p[0], of_q[0]], [of_p[1], of_q[1]]
    results = []
    for rows_first, blocks in ((True, config.d_hidden), (False, config.d_unembedding)):
        sides = _sides(of_p, of_q, static, blocks, rows_first)
        rows = mosaic.split_rows(len(of_p[0]), blocks.rows, None)
        packed = pl.BlockSpec((1, 8, blocks.rows), lambda *at, row=sides.row: (row(*at), 0, 0))
        specs, arrays = (sides.hidden, hidden) if rows_first else (sides.weights, weights)
        specs, arrays = static.wanted(specs), static.wanted(arrays)
        column = pltpu.VMEM((blocks.rows, LANES), jnp.float32)
        d_logits = pltpu.VMEM((blocks.rows, blocks.vocabulary), of_p[0].dtype)
        edge = len(of_p[0]) % blocks.rows, sides.size % blocks.vocabulary
        results.append(
            mosaic.call(
                functools.partial(
                    _backward_kernel,
                    sides=sides,
                    blocks=blocks,
                    static=static,
                    rows_first=rows_first,
                    ragged=edge,
                ),
                {
                    side: jax.ShapeDtypeStruct(x.shape, x.dtype)
                    for side, x in zip(static.sides, arrays)
                },
                static.interpret,
                name="linear_kl_d_hidden" if rows_first else "linear_kl_d_unembedding",
                grid=sides.grid,
                in_specs=[packed, sides.hidden, sides.weights],
                out_specs=dict(zip(static.sides, specs)),
                scratch_shapes=[
                    [pltpu.VMEM(spec.block_shape, jnp.float32) for spec in specs],
                    [d_logits for _ in specs] if rows_first else [],
                    {name: column for name in (*mosaic_divergence.PACKED, "valid")},
                ],
            )(mosaic_divergence.pack(stats, g, rows), hidden, weights)
        )
    d_hidden, d_unembedding = (each.values() for each in results)
    matrices = [
        x if x.shape == shape else x.T for x, shape in zip(d_unembedding, static.wanted(shapes))
    ]
    return static.paired(zip(d_hidden, matrices))


def _backward_kernel(
    vectors_ref: Any,
    hidden: Any,
    weights: Any,
    out: Any,
    sums: Any,
    d_logits: Any,
    columns: Any,
    *,
    sides: Sides,
    blocks: Blocks,
    static: KLStatic,
    rows_first: bool,
    ragged: tuple[int, int],
) -> None:
    outer, inner = pl.program_id(0), pl.program_id(1)
    i, j = (outer, inner) if rows_first else (inner, outer)
    last_row, last_column = (
        sides.row(pl.num_programs(0) - 1, pl.num_programs(1) - 1),
        sides.column(pl.num_programs(0) - 1, pl.num_programs(1) - 1),
    )

    @pl.when(inner == 0)
    def _begin() -> None:
        for ref in sums:
            ref[...] = jnp.zeros(ref.shape, jnp.float32)

    mosaic_divergence.columns_of(vectors_ref, columns)

    def visit(edge: bool) -> None:
        fields = {name: ref[...] for name, ref in columns.items()}
        rows = [ref[...] for ref in hidden]
        limit = sides.size - j * blocks.vocabulary if edge else None
        if edge:  # 0 · NaN would carry a row that does not exist into the sum
            rows = [clean(x, fields["valid"][:, :1] > 0) for x in rows]
        moving = static.wanted(zip(rows, weights, sides.transposed))
        for first, width in mosaic.strips(blocks):
            both = logits_of(rows, weights, sides.transposed, first, width, limit)
            both = mosaic_divergence.gradients(both[0], both[1], fields, edge)
            for side, (dz, (x, _, flipped)) in enumerate(zip(static.wanted(both), moving)):
                dz, strip = dz.astype(x.dtype), pl.ds(first, width)
                if rows_first:
                    d_logits[side][:, strip] = dz
                elif flipped:
                    sums[side][strip, :] += mosaic.product(dz, x, 0, 0)
                else:
                    sums[side][:, strip] += mosaic.product(x, dz, 0, 0)
        if rows_first:  # one long product: each of its strips would pass through all of the sum
            for dz, (_, ref, flipped), total in zip(d_logits, moving, sums):
                block = strip_of(ref, flipped, 0, blocks.vocabulary, limit)
                total[...] += mosaic.product(dz[...], block, 1, 0 if flipped else 1)

    is_edge = (i == last_row) if ragged[0] else False
    if ragged[1]:
        is_edge = is_edge | (j == last_column)
    mosaic.if_edge(is_edge, visit)

    @pl.when(inner == pl.num_programs(1) - 1)
    def _finish() -> None:
        for ref, total in zip(out.values(), sums):
            ref[...] = total[...].astype(ref.dtype)
