"""KL(p‖q) of given logits on a TPU: each logit is read once, and once more backward.

Bytes 2NV·b forward, 4NV·b backward (3NV·b if one side is held fixed), b of the logits' dtype.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels_pallas.records import KLStatic, KLStats
from kernels_pallas.token_stats.pallas_tpu import read_strip
from kernels_pallas.tpu import mosaic, mosaic_divergence
from kernels_pallas.tpu.mosaic import LANES, Blocks


def choose_blocks(shape: tuple[int, int], static: KLStatic) -> Blocks:
    if static.config is not None:
        return static.config

    def cost(blocks: Blocks) -> int:  # two read, two written, each twice
        return blocks.rows * (32 * blocks.vocabulary + 4 * (14 * LANES + 8 * blocks.strip))

    least = Blocks(32, LANES, LANES)
    return mosaic.fit(Blocks(256, 1024, 256), least, shape, cost) or least


def forward(logits_p: Array, logits_q: Array, static: KLStatic) -> KLStats:
    num, size = logits_p.shape
    blocks = choose_blocks((num, size), static)
    rows = mosaic.split_rows(num, blocks.rows, None)
    vector = pl.BlockSpec((1, 1, blocks.rows), lambda i, j: (i, 0, 0))
    tile = pl.BlockSpec((blocks.rows, blocks.vocabulary), lambda i, j: (i, j))
    per_lane = pltpu.VMEM((blocks.rows, LANES), jnp.float32)
    out = mosaic.call(
        functools.partial(_forward_kernel, size=size, blocks=blocks),
        {
            name: jax.ShapeDtypeStruct((rows.count, 1, blocks.rows), jnp.float32)
            for name in mosaic_divergence.FIELDS
        },
        static.interpret,
        name="categorical_kl_forward",
        grid=(rows.count, pl.cdiv(size, blocks.vocabulary)),
        in_specs=[tile, tile],
        out_specs={name: vector for name in mosaic_divergence.FIELDS},
        scratch_shapes=[{name: per_lane for name in mosaic_divergence.CARRIED}],
    )(logits_p, logits_q)
    return KLStats(**{name: mosaic.join(each, rows, None) for name, each in out.items()})


def _forward_kernel(
    p_ref: Any,
    q_ref: Any,
    out: dict[str, Any],
    carried: dict[str, Any],
    *,
    size: int,
    blocks: Blocks,
) -> None:
    j, last = pl.program_id(1), pl.num_programs(1) - 1

    @pl.when(j == 0)
    def _begin() -> None:
        mosaic_divergence.begin(carried)

    def visit(edge: bool) -> None:
        state = {name: ref[...] for name, ref in carried.items()}
        limit = size - j * blocks.vocabulary if edge else None
        for first, width in mosaic.strips(blocks):
            both = [read_strip(ref, first, width, limit) for ref in (p_ref, q_ref)]
            state = mosaic_divergence.update(state, *both)
        for name, ref in carried.items():
            ref[...] = state[name]

    mosaic.if_edge(j == last if size % blocks.vocabulary else False, visit)

    @pl.when(j == last)
    def _finish() -> None:
        mosaic_divergence.join_lanes({name: ref[...] for name, ref in carried.items()}, out)


def backward(
    logits_p: Array, logits_q: Array, stats: KLStats, g: Array, static: KLStatic
) -> tuple[Array | None, Array | None]:
    """The gradients of the sides that are wanted, [N, V]."""
    num, size = logits_p.shape
    blocks = choose_blocks((num, size), static)
    rows = mosaic.split_rows(num, blocks.rows, None)
    tile = pl.BlockSpec((blocks.rows, blocks.vocabulary), lambda i, j: (i, j))
    columns = pltpu.VMEM((blocks.rows, LANES), jnp.float32)
    moving = list(zip(static.sides, static.wanted((logits_p, logits_q))))
    gradients = mosaic.call(
        functools.partial(_backward_kernel, blocks=blocks, static=static),
        {side: jax.ShapeDtypeStruct(x.shape, x.dtype) for side, x in moving},
        static.interpret,
        name="categorical_kl_backward",
        grid=(rows.count, pl.cdiv(size, blocks.vocabulary)),
        in_specs=[pl.BlockSpec((1, 8, blocks.rows), lambda i, j: (i, 0, 0)), tile, tile],
        out_specs={side: tile for side, _ in moving},
        scratch_shapes=[{name: columns for name in (*mosaic_divergence.PACKED, "valid")}],
    )(mosaic_divergence.pack(stats, g, rows), logits_p, logits_q)
    return static.paired(gradients.values())


def _backward_kernel(
    vectors_ref: Any,
    p_ref: Any,
    q_ref: Any,
    out: dict[str, Any],
    columns: dict[str, Any],
    *,
    blocks: Blocks,
    static: KLStatic,
) -> None:
    """Each pair of logits by itself: what lies beyond the ends is never written."""

    @pl.when(pl.program_id(1) == 0)
    def _begin() -> None:
        mosaic_divergence.columns_of(vectors_ref, columns)

    fields = {name: ref[...] for name, ref in columns.items()}
    for first, width in mosaic.strips(blocks):
        both = [read_strip(ref, first, width, None) for ref in (p_ref, q_ref)]
        both = mosaic_divergence.gradients(both[0], both[1], fields, edge=False)
        for ref, gradient in zip(out.values(), static.wanted(both)):
            ref[:, pl.ds(first, width)] = gradient.astype(ref.dtype)
