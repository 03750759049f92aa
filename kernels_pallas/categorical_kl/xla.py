"""KL(p‖q) of given logits, block by block in plain XLA: no array [N, V] but the gradients."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from kernels_pallas.blocks import RowBlock, as_bits, of_bits, over_rows, over_vocabulary, vary_like
from kernels_pallas.divergence import begin_kl, d_divergence, finish_kl, update_kl
from kernels_pallas.records import Blocks, KLStatic, KLStats
from kernels_pallas.token_stats.xla import put_tile, tile

BLOCKS = Blocks(512, 2048)


def forward(logits_p: Array, logits_q: Array, static: KLStatic) -> KLStats:
    (num_rows, num_tokens), blocks = logits_p.shape, static.config or BLOCKS

    def visit(block: RowBlock, results: KLStats) -> KLStats:
        def step(first: Any, size: int, state: Any) -> Any:
            z_p, z_q = (tile(x, block, first, size) for x in (logits_p, logits_q))
            return update_kl(state, z_p, z_q)

        state = vary_like(begin_kl(block.size), logits_p, logits_q)
        stats = finish_kl(over_vocabulary(num_tokens, blocks.vocabulary, step, state))
        return jax.tree.map(block.put, results, stats)

    results = vary_like(KLStats(*[jnp.zeros(num_rows, jnp.float32)] * 5), logits_p, logits_q)
    return over_rows(num_rows, blocks.rows, None, visit, results)


def backward(
    logits_p: Array, logits_q: Array, stats: KLStats, g: Array, static: KLStatic
) -> tuple[Array | None, Array | None]:
    (num_rows, num_tokens), blocks = logits_p.shape, static.config or BLOCKS
    dtype = logits_p.dtype

    def visit(block: RowBlock, gradients: list[Array]) -> list[Array]:
        of_rows = jax.tree.map(block.of, (stats, g))

        def step(first: Any, size: int, gradients: list[Array]) -> list[Array]:
            z_p, z_q = (tile(x, block, first, size) for x in (logits_p, logits_q))
            dz = static.wanted(d_divergence(z_p, z_q, *of_rows))
            return [put_tile(x, block, first, y, dtype) for x, y in zip(gradients, dz)]

        return over_vocabulary(num_tokens, blocks.vocabulary, step, gradients)

    zeros = [as_bits(jnp.zeros_like(x)) for x in static.wanted((logits_p, logits_q))]
    zeros = vary_like(zeros, logits_p, logits_q, g)
    results = over_rows(num_rows, blocks.rows, None, visit, zeros)
    return static.paired(of_bits(x, dtype) for x in results)
