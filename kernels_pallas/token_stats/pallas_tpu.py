"""Token statistics of given logits on a TPU: each logit is read once, and once more backward.

Bytes NV·b forward, 2NV·b backward, b of the logits' dtype; about ten operations per logit.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels_pallas.records import ShardStats, Static
from kernels_pallas.tpu import mosaic, mosaic_gradient, mosaic_online
from kernels_pallas.tpu.mosaic import LANES, LOG2E, Blocks


def choose_blocks(shape: tuple[int, int], static: Static) -> Blocks:
    if static.config is not None:
        return static.config

    def cost(blocks: Blocks) -> int:  # read, written, and each twice
        return blocks.rows * (16 * blocks.vocabulary + 4 * (8 * LANES + 4 * blocks.strip))

    least = Blocks(32, LANES, LANES)
    return mosaic.fit(Blocks(256, 2048, 512), least, shape, cost) or least


def read_strip(logits_ref: Any, first: int, width: int, limit: Any) -> Array:
    """[rows, width] float32; -inf from column `limit` of the block on, None: all exist."""
    logits = logits_ref[:, pl.ds(first, width)].astype(jnp.float32)
    if limit is None:
        return logits
    columns = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    return jnp.where(columns < limit - first, logits, -jnp.inf)


def forward(logits: Array, tokens: Array, inverse_temperature: Array, static: Static) -> ShardStats:
    num, size = logits.shape
    blocks = choose_blocks((num, size), static)
    rows = mosaic.split_rows(num, blocks.rows, None)
    tokens = jnp.where((tokens >= 0) & (tokens < size), tokens, -1)
    vector = pl.BlockSpec((1, 1, blocks.rows), lambda i, j: (i, 0, 0))
    names = ("peak", "log_sum", "chosen") + (("entropy",) if static.entropy else ())
    per_lane = pltpu.VMEM((blocks.rows, LANES), jnp.float32)
    out = mosaic.call(
        functools.partial(_forward_kernel, size=size, blocks=blocks),
        {name: jax.ShapeDtypeStruct((rows.count, 1, blocks.rows), jnp.float32) for name in names},
        static.interpret,
        name="token_stats_forward",
        grid=(rows.count, pl.cdiv(size, blocks.vocabulary)),
        in_specs=[
            pl.BlockSpec(memory_space=pltpu.SMEM),
            vector,
            pl.BlockSpec((blocks.rows, blocks.vocabulary), lambda i, j: (i, j)),
        ],
        out_specs={name: vector for name in names},
        scratch_shapes=[
            {name: per_lane for name in mosaic_online.names(static.entropy)},
            pltpu.VMEM((blocks.rows, LANES), jnp.int32),
        ],
    )(inverse_temperature.reshape(1), mosaic.cut(tokens, rows), logits)
    fields = {name: mosaic.join(each, rows, None) for name, each in out.items()}
    return ShardStats(**{"entropy": None, **fields})


def _forward_kernel(
    scale_ref: Any,
    tokens_ref: Any,
    logits_ref: Any,
    out: dict[str, Any],
    carried: dict[str, Any],
    places_ref: Any,
    *,
    size: int,
    blocks: Blocks,
) -> None:
    mosaic_online.visit_block(
        functools.partial(read_strip, logits_ref),
        *(tokens_ref[0], scale_ref[0], carried, places_ref, out),
        *(size, blocks),
    )


def backward(
    logits: Array,
    tokens: Array,
    inverse_temperature: Array,
    peak: Array,
    log_sum: Array,
    a: Array,
    b: Array | None,
    c: Array,
    static: Static,
) -> Array:
    """The gradient of the logits, [N, V]."""
    num, size = logits.shape
    blocks = choose_blocks((num, size), static)
    rows = mosaic.split_rows(num, blocks.rows, None)
    tokens = jnp.where((tokens >= 0) & (tokens < size), tokens, -1)
    scales = (inverse_temperature, inverse_temperature)
    tile = pl.BlockSpec((blocks.rows, blocks.vocabulary), lambda i, j: (i, j))
    columns = pltpu.VMEM((blocks.rows, LANES), jnp.float32)
    return mosaic.call(
        functools.partial(_backward_kernel, blocks=blocks),
        jax.ShapeDtypeStruct(logits.shape, logits.dtype),
        static.interpret,
        name="token_stats_backward",
        grid=(rows.count, pl.cdiv(size, blocks.vocabulary)),
        in_specs=[
            pl.BlockSpec(memory_space=pltpu.SMEM),
            pl.BlockSpec((1, 1, blocks.rows), lambda i, j: (i, 0, 0)),
            pl.BlockSpec((1, 8, blocks.rows), lambda i, j: (i, 0, 0)),
            tile,
        ],
        out_specs=tile,
        scratch_shapes=[
            {name: columns for name in mosaic_gradient.names(b is not None)},
            pltpu.VMEM((blocks.rows, LANES), jnp.int32),
        ],
    )(
        (inverse_temperature * LOG2E).reshape(1),
        mosaic.cut(tokens, rows),
        mosaic_gradient.pack(peak, log_sum, (a, b, c), scales, rows),
        logits,
    )


def _backward_kernel(
    scale_ref: Any,
    tokens_ref: Any,
    vectors_ref: Any,
    logits_ref: Any,
    out_ref: Any,
    columns: dict[str, Any],
    places_ref: Any,
    *,
    blocks: Blocks,
) -> None:
    """Each logit by itself: what lies beyond the ends is never written."""
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _begin() -> None:
        mosaic_gradient.columns_of(vectors_ref, tokens_ref, columns, places_ref)

    fields = {name: ref[...] for name, ref in columns.items()}
    places = places_ref[...] - j * blocks.vocabulary
    for first, width in mosaic.strips(blocks):
        strip = read_strip(logits_ref, first, width, None)
        gradient = mosaic_gradient.tiles_of_gradient(
            strip, fields, places - first, scale_ref[0], softcap=False, edge=False
        )
        out_ref[:, pl.ds(first, width)] = gradient.astype(out_ref.dtype)
