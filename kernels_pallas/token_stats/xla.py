"""The statistics of given logits, block by block in plain XLA: no array [N, V] but the gradient."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels_pallas.blocks import (
    RowBlock,
    as_bits,
    for_slices,
    of_bits,
    over_rows,
    over_vocabulary,
    vary_like,
)
from kernels_pallas.online import begin, d_logits, finish, update
from kernels_pallas.records import Blocks, ShardStats, Static

BLOCKS = Blocks(512, 4096)


def tile(logits: Array, block: RowBlock, first: Any, size: int) -> Array:
    """[rows, size] float32 of the block's rows."""
    logits, first = for_slices(logits, first)
    return lax.dynamic_slice(logits, (block.first, first), (block.size, size)).astype(jnp.float32)


def put_tile(gradient: Array, block: RowBlock, first: Any, values: Array, dtype: Any) -> Array:
    """The gradient, as bits of its dtype, with these values in the block's rows."""
    bits = as_bits(values.astype(dtype))
    return lax.dynamic_update_slice(gradient, bits, (block.first, first))


def forward(logits: Array, tokens: Array, inverse_temperature: Array, static: Static) -> ShardStats:
    (num_rows, num_tokens), blocks = logits.shape, static.config or BLOCKS

    def visit(block: RowBlock, results: ShardStats) -> ShardStats:
        chosen = block.of(tokens)

        def step(first: Any, size: int, state: Any) -> Any:
            z = tile(logits, block, first, size) * inverse_temperature
            return update(state, z, chosen - first)

        state = vary_like(begin(block.size, static.entropy), logits, tokens)
        stats = finish(over_vocabulary(num_tokens, blocks.vocabulary, step, state))
        return jax.tree.map(block.put, results, stats)

    zeros = jnp.zeros(num_rows, jnp.float32)
    results = ShardStats(zeros, zeros, zeros, zeros if static.entropy else None)
    results = vary_like(results, logits, tokens)
    return over_rows(num_rows, blocks.rows, None, visit, results)


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
    (num_rows, num_tokens), blocks = logits.shape, static.config or BLOCKS
    given = (tokens, peak, log_sum, a, b, c)

    def visit(block: RowBlock, gradient: Array) -> Array:
        chosen, *of_rows = jax.tree.map(block.of, given)

        def step(first: Any, size: int, gradient: Array) -> Array:
            z = tile(logits, block, first, size) * inverse_temperature
            dz = d_logits(z, chosen - first, *of_rows) * inverse_temperature
            return put_tile(gradient, block, first, dz, logits.dtype)

        return over_vocabulary(num_tokens, blocks.vocabulary, step, gradient)

    zeros = vary_like(as_bits(jnp.zeros_like(logits)), logits, tokens, a)
    return of_bits(over_rows(num_rows, blocks.rows, None, visit, zeros), logits.dtype)
