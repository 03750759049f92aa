"""The statistics of given logits on NVIDIA cards, in the Triton form of Pallas.

forward reads the logits once (N·V elements) and writes [N]; backward reads them once more and
writes their gradient. Both are bound by memory.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels_pallas.gpu import triton as tr
from kernels_pallas.gpu.blocks import blocks_of, splits_for
from kernels_pallas.gpu.cards import current
from kernels_pallas.gpu.softmax import Running, combine, log_probs
from kernels_pallas.records import ShardStats, Static


def _scaled(logits: Any, rows: tr.Side, columns: tr.Side, inverse_temperature: Any) -> Array:
    """A tile of z, -inf where there is no column."""
    z = tr.tile(logits, rows, columns).astype(jnp.float32) * inverse_temperature
    return z if columns.exists is None else jnp.where(columns.exists[None, :], z, -jnp.inf)


def forward(logits: Array, tokens: Array, inverse_temperature: Array, static: Static) -> ShardStats:
    """logits [N, V], tokens int [N]."""
    num_rows, vocabulary = logits.shape
    blocks = blocks_of(static.config, "token_stats", str(logits.dtype))
    tiles = blocks.forward
    row_blocks, vocab_blocks = pl.cdiv(num_rows, tiles.rows), pl.cdiv(vocabulary, tiles.columns)
    splits = blocks.splits or splits_for(row_blocks, vocab_blocks, current())
    splits = min(splits, vocab_blocks)

    def kernel(logits, tokens, scale, peak, total, weighted, chosen):
        i, part = pl.program_id(0), pl.program_id(1)
        rows = tr.Side.of(i * tiles.rows, tiles.rows, num_rows)
        token = tr.vector(tokens, rows.first, tiles.rows, num_rows, other=-1)
        token = jnp.where(token < vocabulary, token, -1)
        inverse_temperature = scale[0]

        def visit(j: Any, running: Running) -> Running:
            columns = tr.Side.of(j * tiles.columns, tiles.columns, vocabulary)
            z = _scaled(logits, rows, columns, inverse_temperature)
            at = tr.indices(columns.first, tiles.columns)[None, :] == token[:, None]
            return running.add(z, at, static.entropy)

        start, stop = part * vocab_blocks // splits, (part + 1) * vocab_blocks // splits
        running = lax.fori_loop(start, stop, visit, Running.empty(tiles.rows))
        for out, value in zip((peak, total, weighted, chosen), running):
            tr.store_vector(out, part, rows.first, value)

    outputs = tr.call(
        kernel,
        grid=(row_blocks, splits),
        out=(tr.float32(splits, num_rows),) * 4,
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=static.interpret,
        name="token_stats_forward",
    )(logits, tokens.astype(jnp.int32), inverse_temperature.reshape(1).astype(jnp.float32))
    return combine(Running(*outputs), None, static.entropy)


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
    """dz_v = p_v (a + b log p_v) + 1[v = token] c, through the temperature."""
    num_rows, vocabulary = logits.shape
    tiles = blocks_of(static.config, "token_stats", str(logits.dtype)).gradient

    def kernel(logits, tokens, scale, *refs):
        *coefficients, d_logits = refs
        rows = tr.Side.of(pl.program_id(1) * tiles.rows, tiles.rows, num_rows)
        columns = tr.Side.of(pl.program_id(0) * tiles.columns, tiles.columns, vocabulary)
        token = tr.vector(tokens, rows.first, tiles.rows, num_rows, other=-1)
        peak, log_sum, a, b, c = (
            tr.vector(ref, rows.first, tiles.rows, num_rows)[:, None] for ref in coefficients
        )
        log_p = log_probs(_scaled(logits, rows, columns, scale[0]), peak, log_sum)
        is_token = tr.indices(columns.first, tiles.columns)[None, :] == token[:, None]
        d_z = tr.exp(log_p) * (a + b * log_p) + jnp.where(is_token, c, 0.0)
        tr.store_tile(d_logits, rows, columns, d_z * scale[0])

    return tr.call(
        kernel,
        grid=(pl.cdiv(vocabulary, tiles.columns), pl.cdiv(num_rows, tiles.rows)),
        out=jax.ShapeDtypeStruct(logits.shape, logits.dtype),
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=static.interpret,
        name="token_stats_backward",
    )(
        logits, tokens.astype(jnp.int32), inverse_temperature.reshape(1).astype(jnp.float32),
        peak, tr.finite(log_sum), a, jnp.zeros_like(a) if b is None else b, c,
    )  # fmt: skip
