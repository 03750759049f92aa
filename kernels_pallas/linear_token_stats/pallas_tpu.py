"""The statistics on a TPU: one pass over the vocabulary for each block of rows.

A block of rows [rows, D] meets the unembedding block by block, and each block strip by strip in
straight-line code, so that the matrix unit works on the next strip while the vector unit takes the
softmax of this one. Running maximum, sum, moment and chosen logit are kept per lane, [rows, 128]:
lane l sees the tokens l, l + 128, ... The lanes meet once, after the last block.

Logits stay as the product leaves them (after bias and tanh): u with z = scale · u, scale > 0.

Flops 2NDV; bytes read ND + DV · ceil(N / rows); written 16 N.
Backward pass: `pallas_tpu_backward.py`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels_pallas.linear_token_stats.pallas_tpu_backward import backward
from kernels_pallas.linear_token_stats.pallas_tpu_tile import (
    Problem,
    Vocabulary,
    Weights,
    choose_blocks,
    raw_logits,
    weights_of,
)
from kernels_pallas.records import ShardStats, Static
from kernels_pallas.tpu import mosaic, mosaic_online
from kernels_pallas.tpu.mosaic import LANES, MIB, Blocks, Visits

__all__ = ["backward", "forward", "unsupported"]


def unsupported(*, dtype: Any, shape: tuple[int, int, int]) -> str | None:
    num, width, size = shape
    if None in choose_blocks(Problem(num, width, size, dtype)):
        memory = mosaic.vmem_bytes() // MIB
        return f"sums of {width} columns need more than the {memory} MiB on the chip"
    return None


def forward(
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    mask: Array | None,
    bias: Array | None,
    inverse_temperature: Array,
    static: Static,
) -> ShardStats:
    """Statistics of one shard; see `differentiate.py` for shapes."""
    num, width = hidden.shape
    unembedding, transposed = mosaic.oriented(unembedding, static.transposed)
    static = static._replace(transposed=transposed)
    size = unembedding.shape[0 if static.transposed else 1]
    problem = Problem(num, width, size, hidden.dtype)
    blocks = choose_blocks(problem, static.config).forward
    rows = mosaic.split_rows(num, blocks.rows, mask)
    scale = inverse_temperature * (static.softcap or 1.0)
    inside = (tokens >= 0) & (tokens < size)
    vector = pl.BlockSpec(
        (1, 1, blocks.rows), lambda i, j, visits: (mosaic.visited(i, visits), 0, 0)
    )
    weights = weights_of(unembedding, bias, blocks, static, lambda i, j: j)
    names = ("peak", "log_sum", "chosen") + (("entropy",) if static.entropy else ())
    per_lane = pltpu.VMEM((blocks.rows, LANES), jnp.float32)
    out = mosaic.call(
        functools.partial(_kernel, size=size, blocks=blocks, static=static),
        {
            name: jax.ShapeDtypeStruct((rows.valid.shape[0], 1, blocks.rows), jnp.float32)
            for name in names
        },
        static.interpret,
        name="linear_token_stats_forward",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows.count, pl.cdiv(size, blocks.vocabulary)),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                vector,
                pl.BlockSpec(
                    (blocks.rows, width), lambda i, j, visits: (mosaic.visited(i, visits), 0)
                ),
                weights.specs,
            ],
            out_specs={name: vector for name in names},
            scratch_shapes=[
                {name: per_lane for name in mosaic_online.names(static.entropy)},
                pltpu.VMEM((blocks.rows, LANES), jnp.int32),
            ],
        ),
    )(
        rows.visits,
        scale.reshape(1),
        mosaic.cut(jnp.where(inside, tokens, -1), rows),
        hidden,
        weights.arrays,
    )
    fields = {name: mosaic.join(each, rows, mask) for name, each in out.items()}
    return ShardStats(**{"entropy": None, **fields})


def _kernel(
    visits: Visits | None,
    scale_ref: Any,
    tokens_ref: Any,
    hidden_ref: Any,
    weights: Weights,
    out: dict[str, Any],
    carried: dict[str, Any],
    places_ref: Any,
    *,
    size: int,
    blocks: Blocks,
    static: Static,
) -> None:
    def logits_of(first: int, width: int, limit: Any) -> Array:
        return raw_logits(hidden_ref[...], weights, Vocabulary(first, width, limit), static)

    mosaic_online.visit_block(
        logits_of,
        *(tokens_ref[0], scale_ref[0], carried, places_ref, out),
        *(size, blocks),
    )
