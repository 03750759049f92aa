"""The statistics block by block in plain XLA: the small mode, right on CPUs and anywhere else.

Logits exist for one block of rows and one of the vocabulary at a time, and the backward pass
computes them again: 2NDV flops forward, 6NDV backward, and memory for a few blocks only.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from kernels_pallas.blocks import (
    RowBlock,
    as_bits,
    of_bits,
    order_rows,
    over_rows,
    over_vocabulary,
    read,
    vary_like,
    write,
)
from kernels_pallas.linear_token_stats.tile import columns, logits_of, logits_slope, matmul, turned
from kernels_pallas.online import begin, d_logits, finish, update
from kernels_pallas.records import Blocks, ShardStats, Static

FORWARD, BACKWARD = Blocks(1024, 1024), Blocks(1024, 512)


def forward(
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    mask: Array | None,
    bias: Array | None,
    inverse_temperature: Array,
    static: Static,
) -> ShardStats:
    """`ShardStats` of rows [N] over this shard of the vocabulary."""
    num_rows, num_tokens = len(hidden), unembedding.shape[0 if static.transposed else 1]
    blocks = static.config or FORWARD
    order = order_rows(mask)
    if mask is not None:
        hidden = jnp.where(mask[:, None], hidden, 0)
    hidden, tokens = order.sort(hidden), order.sort(tokens)

    def visit(block: RowBlock, results: ShardStats) -> ShardStats:
        rows, chosen = block.of(hidden), block.of(tokens)

        def step(first: Any, size: int, state: Any) -> Any:
            weights, offset = columns(unembedding, bias, first, size, static)
            logits = logits_of(rows, weights, offset, inverse_temperature, static)
            return update(state, logits, chosen - first)

        state = vary_like(begin(block.size, static.entropy), hidden, unembedding, tokens, bias)
        stats = finish(over_vocabulary(num_tokens, blocks.vocabulary, step, state))
        return jax.tree.map(block.put, results, stats)

    zeros = jnp.zeros(num_rows, jnp.float32)
    results = ShardStats(zeros, zeros, zeros, zeros if static.entropy else None)
    results = vary_like(results, hidden, unembedding, tokens, bias)
    results = over_rows(num_rows, blocks.rows, order.count, visit, results)
    if mask is None:
        return results
    return jax.tree.map(lambda x: jnp.where(mask, order.unsort(x), 0.0), results)


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
    """Gradients of hidden, unembedding and bias.

    dz_v = p_v (a + b log p_v) + 1[v = token] c, log p_v = z_v - peak - log_sum.
    """
    num_rows, width = hidden.shape
    num_tokens = unembedding.shape[0 if static.transposed else 1]
    blocks = static.config or BACKWARD
    order = order_rows(mask)
    if mask is not None:
        hidden = jnp.where(mask[:, None], hidden, 0)
    given = jax.tree.map(order.sort, (hidden, tokens, peak, log_sum, a, b, c))
    hidden = given[0]
    flipped = hidden.T  # a product over the leading axis of both is slow on CPUs

    def step(first: Any, size: int, carry: Any) -> Any:
        d_hidden, d_unembedding, d_bias = carry
        weights, offset = columns(unembedding, bias, first, size, static)

        def visit(block: RowBlock, carry: Any) -> Any:
            d_hidden, d_weights, d_offset = carry
            rows, chosen, *of_rows = jax.tree.map(block.of, given)
            logits = logits_of(rows, weights, offset, inverse_temperature, static)
            slope = logits_slope(logits, inverse_temperature, static)
            dz = d_logits(logits, chosen - first, *of_rows)
            # The last block may have rows that the one before has had.
            dz = jnp.where(block.fresh[:, None], dz * slope, 0.0)
            if d_offset is not None:
                d_offset += jnp.sum(dz, axis=0)
            dz = dz.astype(rows.dtype)
            d_rows = block.of(d_hidden) + matmul(dz, weights, (1, 0 if static.transposed else 1))
            d_weights += matmul(read(flipped, block.first, block.size, 1), dz, (1, 0))
            return block.put(d_hidden, d_rows), d_weights, d_offset

        zeros = (
            jnp.zeros((width, size), jnp.float32),
            None if bias is None else jnp.zeros(size, jnp.float32),
        )
        inner = (d_hidden, *vary_like(zeros, hidden, unembedding, a, bias))
        d_hidden, d_weights, d_offset = over_rows(num_rows, blocks.rows, order.count, visit, inner)
        d_weights = turned(d_weights) if static.transposed else d_weights
        part = as_bits(d_weights.astype(unembedding.dtype))
        d_unembedding = write(d_unembedding, part, first, 0 if static.transposed else 1)
        return d_hidden, d_unembedding, None if bias is None else write(d_bias, d_offset, first, 0)

    zeros = (
        jnp.zeros(hidden.shape, jnp.float32),
        as_bits(jnp.zeros_like(unembedding)),
        None if bias is None else jnp.zeros(num_tokens, jnp.float32),
    )
    zeros = vary_like(zeros, hidden, unembedding, a, bias)
    d_hidden, d_unembedding, d_bias = over_vocabulary(num_tokens, blocks.vocabulary, step, zeros)
    d_unembedding = of_bits(d_unembedding, unembedding.dtype)
    return order.unsort(d_hidden.astype(hidden.dtype)), d_unembedding, d_bias
