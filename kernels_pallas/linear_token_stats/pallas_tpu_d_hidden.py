"""The gradient of the hidden states on a TPU: dz · Wᵀ, summed over the vocabulary."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels_pallas.linear_token_stats.pallas_tpu_tile import (
    Vocabulary,
    Weights,
    raw_logits,
    strip_of,
    weights_of,
)
from kernels_pallas.records import Static
from kernels_pallas.tpu import mosaic, mosaic_gradient
from kernels_pallas.tpu.mosaic import LANES, Blocks, Visits


def d_hidden(
    hidden: Array,
    unembedding: Array,
    bias: Array | None,
    mask: Array | None,
    static: Static,
    blocks: Blocks,
    operands: Any,
) -> Array:
    num, width = hidden.shape
    size = unembedding.shape[0 if static.transposed else 1]
    rows = mosaic.split_rows(num, blocks.rows, mask)
    weights = weights_of(unembedding, bias, blocks, static, lambda i, j: j)
    tile = pl.BlockSpec((blocks.rows, width), lambda i, j, visits: (mosaic.visited(i, visits), 0))
    columns = pltpu.VMEM((blocks.rows, LANES), jnp.float32)
    # Nobody visits blocks of masked rows: there the result is what it begins with. (Interpreters
    # cannot begin with an array whose last block is short.)
    in_place = mask is not None and not (static.interpret and num % blocks.rows)
    begin = jnp.zeros_like(hidden) if in_place else None
    inputs = (rows.visits, *operands(rows), hidden, weights.arrays, begin)
    out = mosaic.call(
        functools.partial(_kernel, shape=(num, size), blocks=blocks, static=static),
        jax.ShapeDtypeStruct(hidden.shape, hidden.dtype),
        static.interpret,
        name="linear_token_stats_d_hidden",
        input_output_aliases={} if begin is None else {len(jax.tree.leaves(inputs)) - 1: 0},
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows.count, pl.cdiv(size, blocks.vocabulary)),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                pl.BlockSpec(
                    (1, 1, blocks.rows), lambda i, j, visits: (mosaic.visited(i, visits), 0, 0)
                ),
                pl.BlockSpec(
                    (1, 8, blocks.rows), lambda i, j, visits: (mosaic.visited(i, visits), 0, 0)
                ),
                tile,
                weights.specs,
                None if begin is None else pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=tile,
            scratch_shapes=[
                pltpu.VMEM((blocks.rows, width), jnp.float32),
                pltpu.VMEM((blocks.rows, blocks.vocabulary), unembedding.dtype),
                {name: columns for name in mosaic_gradient.names(static.entropy)},
                pltpu.VMEM((blocks.rows, LANES), jnp.int32),
            ],
        ),
    )(*inputs)
    return out if mask is None or in_place else jnp.where(mask[:, None], out, jnp.zeros_like(out))


def _kernel(
    visits: Visits | None,
    scale_ref: Any,
    tokens_ref: Any,
    vectors_ref: Any,
    hidden_ref: Any,
    weights: Weights,
    begin_ref: Any,  # not read: the result in its place
    out_ref: Any,
    sum_ref: Any,
    d_logits_ref: Any,
    columns: dict[str, Any],
    places_ref: Any,
    *,
    shape: tuple[int, int],
    blocks: Blocks,
    static: Static,
) -> None:
    i, j = pl.program_id(0), pl.program_id(1)

    @pl.when(j == 0)
    def _begin() -> None:
        sum_ref[...] = jnp.zeros(sum_ref.shape, jnp.float32)
        mosaic_gradient.columns_of(vectors_ref, tokens_ref, columns, places_ref)

    def visit(edge: bool) -> None:
        rows = hidden_ref[...]
        limit = shape[1] - j * blocks.vocabulary if edge else None
        places = places_ref[...] - j * blocks.vocabulary
        fields = {name: ref[...] for name, ref in columns.items()}
        for first, width in mosaic.strips(blocks):
            strip = Vocabulary(first, width, limit)
            logits = raw_logits(rows, weights, strip, static)
            gradient = mosaic_gradient.tiles_of_gradient(
                logits, fields, places - first, scale_ref[0], static.softcap is not None, edge
            )
            d_logits_ref[:, pl.ds(first, width)] = gradient.astype(d_logits_ref.dtype)
        block = strip_of(weights, Vocabulary(0, blocks.vocabulary, limit), static, clean=True)
        axis = 0 if static.transposed else 1
        sum_ref[...] += mosaic.product(d_logits_ref[...], block, 1, axis)

    mosaic.if_edge(mosaic.is_edge(i, j, visits, shape, blocks), visit)

    @pl.when(j == pl.num_programs(1) - 1)
    def _finish() -> None:
        out_ref[...] = sum_ref[...].astype(out_ref.dtype)
