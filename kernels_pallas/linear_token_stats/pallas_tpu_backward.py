"""Gradients on a TPU: one kernel for the hidden states, one for the unembedding.

Both form the logits once more, z = h · W, and from them dz = p (a + b log p) + 1[v = token] c.
`d_hidden` sums dz · Wᵀ over the vocabulary, `d_unembedding` sums hᵀ · dz over rows; each sum stays
on the chip in float32 until it is whole. dz is rounded to the dtype of what it multiplies.

Flops 8NDV, of which 2NDV make the logits a second time: no [N, V] is ever stored.
Source of the gradient of the entropy, dH/dz_v = -p_v (log p_v + H): by hand from H = L - Σ p z.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels_pallas import mosaic, mosaic_gradient
from kernels_pallas.linear_token_stats.pallas_tpu_tile import (
    Problem,
    Vocabulary,
    Weights,
    choose_blocks,
    raw_logits,
    strip_of,
    weights_of,
)
from kernels_pallas.mosaic import LANES, LOG2E, Blocks, Rows
from kernels_pallas.records import Static


def backward(
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    mask: Array | None,
    bias: Array | None,
    inverse_temperature: Array,
    peak: Array,
    log_sum: Array,
    a: Array,
    b: Array | None,
    c: Array,
    static: Static,
) -> tuple[Array, Array, Array | None]:
    """Gradients of hidden, unembedding and bias; see `differentiate.py` for shapes."""
    size = unembedding.shape[0 if static.transposed else 1]
    problem = Problem(hidden.shape[0], hidden.shape[1], size, hidden.dtype, bias is not None)
    config = choose_blocks(problem, static)
    scale = inverse_temperature * (static.softcap or 1.0)
    inside = (tokens >= 0) & (tokens < size)
    tokens = jnp.where(inside, tokens, -1)
    scales = (scale, inverse_temperature)

    def operands(rows: Rows) -> tuple[Array, Array, Array]:
        packed = mosaic_gradient.pack(peak, log_sum, (a, b, c), scales, rows)
        return (scale * LOG2E).reshape(1), mosaic.cut(tokens, rows), packed

    shared = (hidden, unembedding, bias, mask, static)
    d_hidden = _d_hidden(*shared, config.d_hidden, operands)
    return d_hidden, *_d_unembedding(*shared, config.d_unembedding, operands)


def _is_edge(block: Any, whole: Any, j: Any, size: int, num: int, masked: bool, blocks: Blocks):
    """Whether a block has rows or columns to leave out; False where none has."""
    is_edge = False
    if size % blocks.vocabulary:
        is_edge = j == size // blocks.vocabulary
    if masked or num % blocks.rows:
        is_edge = is_edge | (whole[block] == 0)
    return is_edge


def _d_hidden(
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
    tile = pl.BlockSpec((blocks.rows, width), lambda i, j, order, whole: (order[i], 0))
    # Blocks of masked rows are not visited: their zeros are there before.
    zeros = None if mask is None else jnp.zeros_like(hidden)
    columns = pltpu.VMEM((blocks.rows, LANES), jnp.float32)
    edge = functools.partial(_is_edge, size=size, num=num, masked=mask is not None, blocks=blocks)
    return pl.pallas_call(
        functools.partial(_d_hidden_kernel, size=size, blocks=blocks, static=static, is_edge=edge),
        name="linear_token_stats_d_hidden",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(rows.count, pl.cdiv(size, blocks.vocabulary)),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                pl.BlockSpec((1, 1, blocks.rows), lambda i, j, order, whole: (order[i], 0, 0)),
                pl.BlockSpec((1, 8, blocks.rows), lambda i, j, order, whole: (order[i], 0, 0)),
                tile,
                weights.specs,
                None if zeros is None else pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=tile,
            scratch_shapes=[
                pltpu.VMEM((blocks.rows, width), jnp.float32),
                pltpu.VMEM((blocks.rows, blocks.vocabulary), unembedding.dtype),
                {name: columns for name in mosaic_gradient.names(static.entropy)},
                pltpu.VMEM((blocks.rows, LANES), jnp.int32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(hidden.shape, hidden.dtype),
        input_output_aliases={} if zeros is None else {7 + (bias is not None): 0},
        compiler_params=mosaic.compiler_params(),
        interpret=static.interpret,
    )(rows.order, rows.whole, *operands(rows), hidden, weights.arrays, zeros)


def _d_hidden_kernel(
    order: Any,
    whole: Any,
    scale_ref: Any,
    tokens_ref: Any,
    vectors_ref: Any,
    hidden_ref: Any,
    weights: Weights,
    zeros: Any,
    out_ref: Any,
    sum_ref: Any,
    d_logits_ref: Any,
    columns: dict[str, Any],
    places_ref: Any,
    *,
    size: int,
    blocks: Blocks,
    static: Static,
    is_edge: Any,
) -> None:
    i, j = pl.program_id(0), pl.program_id(1)

    @pl.when(j == 0)
    def _begin() -> None:
        sum_ref[...] = jnp.zeros(sum_ref.shape, jnp.float32)
        mosaic_gradient.columns_of(vectors_ref, tokens_ref, columns, places_ref)

    def visit(edge: bool) -> None:
        rows = hidden_ref[...]
        limit = size - j * blocks.vocabulary if edge else None
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

    mosaic.if_edge(is_edge(order[i], whole, j), visit)

    @pl.when(j == pl.num_programs(1) - 1)
    def _finish() -> None:
        out_ref[...] = sum_ref[...].astype(out_ref.dtype)


def _d_unembedding(
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
    edge = functools.partial(_is_edge, size=size, num=num, masked=mask is not None, blocks=blocks)
    shape = weights.specs.unembedding.block_shape
    out_specs = {"unembedding": weights.specs.unembedding}
    out_shapes = {"unembedding": jax.ShapeDtypeStruct(unembedding.shape, unembedding.dtype)}
    sums = {"unembedding": pltpu.VMEM(shape, jnp.float32)}
    if bias is not None:
        out_specs["bias"] = weights.specs.bias
        out_shapes["bias"] = jax.ShapeDtypeStruct((1, size), jnp.float32)
        sums["bias"] = pltpu.VMEM((8, blocks.vocabulary), jnp.float32)
    out = pl.pallas_call(
        functools.partial(
            _d_unembedding_kernel, size=size, blocks=blocks, static=static, is_edge=edge
        ),
        name="linear_token_stats_d_unembedding",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(pl.cdiv(size, blocks.vocabulary), rows.count),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                pl.BlockSpec((1, 1, blocks.rows), lambda j, i, order, whole: (order[i], 0, 0)),
                pl.BlockSpec((1, 8, blocks.rows), lambda j, i, order, whole: (order[i], 0, 0)),
                pl.BlockSpec((blocks.rows, width), lambda j, i, order, whole: (order[i], 0)),
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
        out_shape=out_shapes,
        compiler_params=mosaic.compiler_params(),
        interpret=static.interpret,
    )(rows.order, rows.whole, *operands(rows), hidden, weights.arrays)
    return out["unembedding"], None if bias is None else out["bias"].reshape(size)


def _d_unembedding_kernel(
    order: Any,
    whole: Any,
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
    size: int,
    blocks: Blocks,
    static: Static,
    is_edge: Any,
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
        for first, width in mosaic.strips(blocks):
            strip = Vocabulary(first, width, size - j * blocks.vocabulary if edge else None)
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

    mosaic.if_edge(is_edge(order[i], whole, j), visit)

    @pl.when(i == pl.num_programs(1) - 1)
    def _finish() -> None:
        out["unembedding"][...] = sums["unembedding"][...].astype(out["unembedding"].dtype)
        if "bias" in sums:
            out["bias"][...] = jnp.sum(sums["bias"][...], axis=0, keepdims=True)
