"""KL(p‖q) of two models, block by block in plain XLA.

2NV(D_p + D_q) flops forward and 6NV(D_p + D_q) backward, which computes the logits again; with q
held fixed, 2NV(3D_p + D_q).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from kernels_pallas.blocks import (
    RowBlock,
    as_bits,
    of_bits,
    over_rows,
    over_vocabulary,
    read,
    vary_like,
    write,
)
from kernels_pallas.divergence import begin_kl, d_divergence, finish_kl, update_kl
from kernels_pallas.linear_kl.reference import Pair
from kernels_pallas.linear_token_stats.tile import matmul, turned
from kernels_pallas.records import Blocks, KLStatic, KLStats

BLOCKS = Blocks(1024, 512)


def _axes(static: KLStatic) -> tuple[int, int]:
    """Which axis of each unembedding is the vocabulary."""
    return 0 if static.transposed_p else 1, 0 if static.transposed_q else 1


def _weights(pairs: tuple[Pair, Pair], axes: tuple[int, int], first: Any, size: int) -> Any:
    return [read(pair[1], first, size, axis) for pair, axis in zip(pairs, axes)]


def forward(of_p: Pair, of_q: Pair, static: KLStatic) -> KLStats:
    pairs, axes, blocks = (of_p, of_q), _axes(static), static.config or BLOCKS
    num_rows, num_tokens = len(of_p[0]), of_p[1].shape[axes[0]]

    def visit(block: RowBlock, results: KLStats) -> KLStats:
        rows = [block.of(hidden) for hidden, _ in pairs]

        def step(first: Any, size: int, state: Any) -> Any:
            weights = _weights(pairs, axes, first, size)
            z_p, z_q = (matmul(x, w, (1, 1 - axis)) for x, w, axis in zip(rows, weights, axes))
            return update_kl(state, z_p, z_q)

        state = vary_like(begin_kl(block.size), pairs)
        stats = finish_kl(over_vocabulary(num_tokens, blocks.vocabulary, step, state))
        return jax.tree.map(block.put, results, stats)

    results = vary_like(KLStats(*[jnp.zeros(num_rows, jnp.float32)] * 5), pairs)
    return over_rows(num_rows, blocks.rows, None, visit, results)


def backward(of_p: Pair, of_q: Pair, stats: KLStats, g: Array, static: KLStatic) -> Any:
    """((d_hidden_p, d_unembedding_p), (d_hidden_q, d_unembedding_q)); None for a fixed side."""
    pairs, axes, blocks = (of_p, of_q), _axes(static), static.config or BLOCKS
    num_rows, num_tokens = len(of_p[0]), of_p[1].shape[axes[0]]
    moving, moving_axes = static.wanted(pairs), static.wanted(axes)
    flipped = [hidden.T for hidden, _ in moving]  # the leading axis of both is slow on CPUs

    def step(first: Any, size: int, carry: Any) -> Any:
        d_hiddens, d_unembeddings = carry
        weights = _weights(pairs, axes, first, size)

        def visit(block: RowBlock, carry: Any) -> Any:
            d_hiddens, d_weights = carry
            rows = [block.of(hidden) for hidden, _ in pairs]
            z_p, z_q = (matmul(x, w, (1, 1 - axis)) for x, w, axis in zip(rows, weights, axes))
            of_rows, of_g = jax.tree.map(block.of, stats), block.of(g)
            both = d_divergence(z_p, z_q, of_rows, jnp.where(block.fresh, of_g, 0.0))
            dz = [x.astype(hidden.dtype) for x, (hidden, _) in zip(static.wanted(both), moving)]
            parts = zip(dz, static.wanted(weights), moving_axes)
            d_rows = [matmul(x, w, (1, axis)) for x, w, axis in parts]
            columns = (read(x, block.first, block.size, 1) for x in flipped)
            return (
                [block.put(x, block.of(x) + y) for x, y in zip(d_hiddens, d_rows)],
                [x + matmul(y, z, (1, 0)) for x, y, z in zip(d_weights, columns, dz)],
            )

        zeros = [jnp.zeros((hidden.shape[1], size), jnp.float32) for hidden, _ in moving]
        carry = d_hiddens, vary_like(zeros, pairs, g)
        d_hiddens, d_weights = over_rows(num_rows, blocks.rows, None, visit, carry)
        d_weights = (x if axis else turned(x) for x, axis in zip(d_weights, moving_axes))
        parts = [as_bits(x.astype(hidden.dtype)) for x, (hidden, _) in zip(d_weights, moving)]
        return d_hiddens, [
            write(x, y, first, axis) for x, y, axis in zip(d_unembeddings, parts, moving_axes)
        ]

    zeros = (
        [jnp.zeros(hidden.shape, jnp.float32) for hidden, _ in moving],
        [as_bits(jnp.zeros_like(unembedding)) for _, unembedding in moving],
    )
    zeros = vary_like(zeros, pairs, g)
    d_hiddens, d_unembeddings = over_vocabulary(num_tokens, blocks.vocabulary, step, zeros)
    return static.paired(
        (x.astype(hidden.dtype), of_bits(y, hidden.dtype))
        for x, y, (hidden, _) in zip(d_hiddens, d_unembeddings, moving)
    )
