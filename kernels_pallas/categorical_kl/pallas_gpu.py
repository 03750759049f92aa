"""The divergence of given logits on NVIDIA cards, in the Triton form of Pallas.

forward reads both logits once (2·N·V elements) and writes [N]; backward reads them once more and
writes both gradients.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels_pallas.gpu import triton as tr
from kernels_pallas.gpu.blocks import blocks_of, splits_for
from kernels_pallas.gpu.cards import current
from kernels_pallas.gpu.divergence import RunningKL, combine_kl, kl_gradients
from kernels_pallas.records import KLStatic, KLStats


def _tile(logits: Any, rows: tr.Side, columns: tr.Side) -> Array:
    z = tr.tile(logits, rows, columns).astype(jnp.float32)
    return z if columns.exists is None else jnp.where(columns.exists[None, :], z, -jnp.inf)


def forward(logits_p: Array, logits_q: Array, static: KLStatic) -> KLStats:
    """KL(p‖q) of each row of [N, V]."""
    num_rows, vocabulary = logits_p.shape
    blocks = blocks_of(static.config, "categorical_kl", str(logits_p.dtype))
    tiles = blocks.forward
    row_blocks, vocab_blocks = pl.cdiv(num_rows, tiles.rows), pl.cdiv(vocabulary, tiles.columns)
    splits = blocks.splits or splits_for(row_blocks, vocab_blocks, current())
    splits = min(splits, vocab_blocks)

    def kernel(logits_p, logits_q, *outs):
        i, part = pl.program_id(0), pl.program_id(1)
        rows = tr.Side.of(i * tiles.rows, tiles.rows, num_rows)

        def visit(j: Any, running: RunningKL) -> RunningKL:
            columns = tr.Side.of(j * tiles.columns, tiles.columns, vocabulary)
            return running.add(_tile(logits_p, rows, columns), _tile(logits_q, rows, columns))

        start, stop = part * vocab_blocks // splits, (part + 1) * vocab_blocks // splits
        running = lax.fori_loop(start, stop, visit, RunningKL.empty(tiles.rows))
        for out, value in zip(outs, running):
            tr.store_vector(out, part, rows.first, value)

    outputs = tr.call(
        kernel,
        grid=(row_blocks, splits),
        out=(tr.float32(splits, num_rows),) * 5,
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=static.interpret,
        name="categorical_kl_forward",
    )(logits_p, logits_q)
    return combine_kl(RunningKL(*outputs))


def backward(
    logits_p: Array, logits_q: Array, stats: KLStats, cotangent: Array, static: KLStatic
) -> tuple[Array | None, Array | None]:
    """Gradients of the logits of `static.sides` from the cotangent [N]."""
    num_rows, vocabulary = logits_p.shape
    tiles = blocks_of(static.config, "categorical_kl", str(logits_p.dtype)).gradient

    def kernel(logits_p, logits_q, *refs):
        vectors, outs = refs[:6], refs[6:]  # statistics and cotangent; one or two gradients
        rows = tr.Side.of(pl.program_id(1) * tiles.rows, tiles.rows, num_rows)
        columns = tr.Side.of(pl.program_id(0) * tiles.columns, tiles.columns, vocabulary)
        *stats, g = (tr.vector(ref, rows.first, tiles.rows, num_rows)[:, None] for ref in vectors)
        z_p, z_q = _tile(logits_p, rows, columns), _tile(logits_q, rows, columns)
        for out, value in zip(outs, static.wanted(kl_gradients(z_p, z_q, tuple(stats), g))):
            tr.store_tile(out, rows, columns, value)

    moving = static.wanted((logits_p, logits_q))
    gradients = tr.call(
        kernel,
        grid=(pl.cdiv(vocabulary, tiles.columns), pl.cdiv(num_rows, tiles.rows)),
        out=tuple(jax.ShapeDtypeStruct(z.shape, z.dtype) for z in moving),
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=static.interpret,
        name="categorical_kl_backward",
    )(logits_p, logits_q, *stats, cotangent)
    return static.paired(gradients)
