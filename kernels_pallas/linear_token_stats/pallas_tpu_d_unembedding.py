"""The gradients of unembedding and bias on a TPU: hᵀ · dz and dz, summed over the rows."""

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
    weights_of,
)
from kernels_pallas.records import Static
from kernels_pallas.tpu import mosaic, mosaic_gradient
from kernels_pallas.tpu.mosaic import LANES, Blocks, Visits


def d_unembedding(
    hidden: Array,
    unembedding: Array,
    bias: Array | None,
    mask: Array | None,
    static: Static,
    blocks: Blocks,
    operands: Any,
) -> tuple[Array, Array | None]:
    num, width = hidden.shape
    size = unembedding.shape[0 if static.transposed else 1]
    rows = mosaic.split_rows(num, blocks.rows, mask)
    weights = weights_of(unembedding, bias, blocks, static, lambda j, i: j)
    shape = weights.specs.unembedding.block_shape
    out_specs = {"unembedding": weights.specs.unembedding}
    out_shapes = {"unembedding": jax.ShapeDtypeStruct(unembedding.shape, unembedding.dtype)}
    sums = {"unembedding": pltpu.VMEM(shape, jnp.float32)}
    if bias is not None:
        out_specs["bias"] = weights.specs.bias
        out_shapes["bias"] = jax.ShapeDtypeStruct((1, size), jnp.float32)
        sums["bias"] = pltpu.VMEM((8, blocks.vocabulary), jnp.float32)
    out = mosaic.call(
        functools.partial(_kernel, shape=(num, size), blocks=blocks, static=static),
        out_shapes,
        static.interpret,
        name="linear_token_stats_d_unembedding",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(size, blocks.vocabulary), rows.count),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                pl.BlockSpec(
                    (1, 1, blocks.rows), lambda j, i, visits: (mosaic.visited(i, visits), 0, 0)
                ),
                pl.BlockSpec(
                    (1, 8, blocks.rows), lambda j, i, visits: (mosaic.visited(i, visits), 0, 0)
                ),
                pl.BlockSpec(
                    (blocks.rows, width), lambda j, i, visits: (mosaic.visited(i, visits), 0)
                ),
                weights.specs,
            ],
            out_specs=out_specs,
            scratch_shapes=[
                sums,
                {
                    name: pltpu.VMEM((blocks.rows, LANES), jnp.float32)
                    for name in mosaic_gradient.names(static.entropy)
                },
                pltpu.VMEM((blocks.rows, LANES), jnp.int32),
            ],
        ),
    )(rows.visits, *operands(rows), hidden, weights.arrays)
    return out["unembedding"], None if bias is None else out["bias"].reshape(size)


def _kernel(
    visits: Visits | None,
    scale_ref: Any,
    tokens_ref: Any,
    vectors_ref: Any,
    hidden_ref: Any,
    weights: Weights,
    out: dict[str, Any],
    sums: dict[str, Any],
    columns: dict[str, Any],
    places_ref: Any,
    *,
    shape: tuple[int, int],
    blocks: Blocks,
    static: Static,
) -> None:
    j, i = pl.program_id(0), pl.program_id(1)

    @pl.when(i == 0)
    def _begin() -> None:
        for ref in sums.values():
            ref[...] = jnp.zeros(ref.shape, jnp.float32)

    mosaic_gradient.columns_of(vectors_ref, tokens_ref, columns, places_ref)

    def visit(edge: bool) -> None:
        rows = hidden_ref[...]
        fields = {name: ref[...] for name, ref in columns.items()}
        if edge:  # 0 · NaN would carry a row that does not count into the sum
            rows = jnp.where(fields["valid"][:, :1] > 0, rows, jnp.zeros_like(rows))
        places = places_ref[...] - j * blocks.vocabulary
        limit = shape[1] - j * blocks.vocabulary if edge else None
        for first, width in mosaic.strips(blocks):
            strip = Vocabulary(first, width, limit)
            logits = raw_logits(rows, weights, strip, static)
            gradient = mosaic_gradient.tiles_of_gradient(
                logits, fields, places - first, scale_ref[0], static.softcap is not None, edge
            )
            if "bias" in sums:
                folded = jnp.sum(gradient.reshape(-1, 8, width), axis=0)
                sums["bias"][:, pl.ds(first, width)] += folded
            gradient = gradient.astype(rows.dtype)
            if static.transposed:
                sums["unembedding"][pl.ds(first, width), :] += mosaic.product(gradient, rows, 0, 0)
            else:
                sums["unembedding"][:, pl.ds(first, width)] += mosaic.product(rows, gradient, 0, 0)

    mosaic.if_edge(mosaic.is_edge(i, j, visits, shape, blocks), visit)

    @pl.when(i == pl.num_programs(1) - 1)
    def _finish() -> None:
        out["unembedding"][...] = sums["unembedding"][...].astype(out["unembedding"].dtype)
        if "bias" in sums:
            out["bias"][...] = jnp.sum(sums["bias"][...], axis=0, keepdims=True)
