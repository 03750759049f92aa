"""The statistics on NVIDIA cards, in the Triton form of Pallas; Hopper and Blackwell have another.

forward    2NDV flops. A program owns a block of rows and walks over a part of the vocabulary with
           running maximum, sum and weighted sum; the parts are combined afterwards, so that few
           rows still fill the card. No logit leaves the chip.
backward   6NDV flops. Neither gradient fits on a multiprocessor ([rows, D] float32 is 2 MB at
           D = 4096), so the gradient of the logits exists for one chunk of the vocabulary at a
           time, in the type of the inputs: one kernel makes it, two multiply with it.
memory     That chunk is 64 MB, or 1024 columns where these are more (`gpu.blocks`), and the
           gradient of hidden is summed in float32: 2·64 MB at N = D = 4096, whatever V is, where
           the logits of V = 151936 are 2.5 GB in float32 and a naive program holds several such.
           Smaller chunks would read and write that sum more often.
float32    Each factor is a sum of two tf32 parts, and three of the four products are taken, on the
           matrix units. These cut what they add off (they do not round), but a block of the inner
           axis is summed from 0 and added to the rest by an ordinary float32 addition: with blocks
           of 32 errors stay below 1e-6 of Σ |h·w|, where one running sum on the matrix unit would
           reach 4e-6 at D = 4096 (both by simulation).

Rows with mask 0 are never read; blocks of them cost nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels_pallas.gpu import triton as tr
from kernels_pallas.gpu.blocks import GpuBlocks, blocks_of, chunk_columns, form_for, splits_for
from kernels_pallas.gpu.cards import current
from kernels_pallas.gpu.products import (
    multiply_hidden_gradient,
    multiply_unembedding_gradient,
)
from kernels_pallas.gpu.softmax import Running, combine, log_probs
from kernels_pallas.gpu.triton import finite
from kernels_pallas.records import ShardStats, Static


def _blocks(hidden: Array, static: Static) -> GpuBlocks:
    return blocks_of(static.config, "linear_token_stats", str(hidden.dtype))


def _mosaic(hidden: Array, unembedding: Array, blocks: GpuBlocks, static: Static) -> Any:
    """The Mosaic GPU kernels where they are to run, else None."""
    form = form_for(blocks, static.interpret)
    if form == "triton":
        return None
    from kernels_pallas.linear_token_stats.pallas_gpu_mosaic import kernels

    return kernels(form, hidden, unembedding, static.transposed)


def _squash(x: Array, bias: Array | None, inverse_temperature: Any, static: Static):
    """Logits from the product, and their derivative by the product."""
    if bias is not None:
        x = x + bias[None, :]
    if static.softcap is None:
        return x * inverse_temperature, inverse_temperature
    bent = jnp.tanh(x / static.softcap)
    slope = (1.0 - bent * bent) * inverse_temperature
    return static.softcap * bent * inverse_temperature, slope


def _bias(bias_ref: Any, first: Any, size: int, vocabulary: int) -> Array | None:
    return None if bias_ref is None else tr.vector(bias_ref, first, size, vocabulary)


def _rows(keep_ref: Any, first: Any, size: int, num_rows: int) -> tuple[tr.Side, Any]:
    """The rows of a program without the masked ones, and whether any is left."""
    if keep_ref is None:
        return tr.Side.of(first, size, num_rows), None
    keep = tr.vector(keep_ref, first, size, num_rows)
    return tr.Side(first, size, keep > 0), jnp.max(keep) > 0


def forward(
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    mask: Array | None,
    bias: Array | None,
    inverse_temperature: Array,
    static: Static,
) -> ShardStats:
    """hidden [N, D], unembedding [D, V] or [V, D], tokens int [N], mask bool [N], bias [V]."""
    num_rows, vocabulary = hidden.shape[0], unembedding.shape[0 if static.transposed else 1]
    blocks = _blocks(hidden, static)
    if mosaic := _mosaic(hidden, unembedding, blocks, static):
        operands = (hidden, unembedding, tokens, mask, bias, inverse_temperature)
        return combine(mosaic.forward(*operands, static, blocks.splits), mask, static.entropy)
    tiles = blocks.forward
    row_blocks, vocab_blocks = pl.cdiv(num_rows, tiles.rows), pl.cdiv(vocabulary, tiles.columns)
    splits = blocks.splits or splits_for(row_blocks, vocab_blocks, current())
    splits = min(splits, vocab_blocks)

    def kernel(hidden, unembedding, tokens, scale, keep, bias, peak, total, weighted, chosen):
        i, part = pl.program_id(0), pl.program_id(1)
        rows, active = _rows(keep, i * tiles.rows, tiles.rows, num_rows)
        token = tr.vector(tokens, i * tiles.rows, tiles.rows, num_rows, other=-1)
        token = jnp.where(token < vocabulary, token, -1)  # not a column that only fills a tile
        start, stop = part * vocab_blocks // splits, (part + 1) * vocab_blocks // splits
        stop = stop if active is None else jnp.where(active, stop, start)
        inverse_temperature = scale[0]

        def visit(j: Any, running: Running) -> Running:
            columns = tr.Side.of(j * tiles.columns, tiles.columns, vocabulary)
            x = tr.logits(
                hidden, unembedding, rows, columns, tiles.depth, static.interpret, static.transposed
            )
            z, _ = _squash(
                x,
                _bias(bias, columns.first, tiles.columns, vocabulary),
                inverse_temperature,
                static,
            )
            if columns.exists is not None:
                z = jnp.where(columns.exists[None, :], z, -jnp.inf)
            at = tr.indices(columns.first, tiles.columns)[None, :] == token[:, None]
            return running.add(z, at, static.entropy)

        running = lax.fori_loop(start, stop, visit, Running.empty(tiles.rows))
        for out, value in zip((peak, total, weighted, chosen), running):
            tr.store_vector(out, part, rows.first, value)

    outputs = tr.call(
        tr.with_optional(kernel, 4, (mask is not None, bias is not None)),
        grid=(row_blocks, splits),
        out=(tr.float32(splits, num_rows),) * 4,
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=static.interpret,
        name="linear_token_stats_forward",
    )(*_operands(hidden, unembedding, tokens, inverse_temperature, mask, bias))
    return combine(Running(*outputs), mask, static.entropy)


def _operands(hidden, unembedding, tokens, inverse_temperature, mask, bias) -> list[Array]:
    scale = jnp.reshape(inverse_temperature, (1,)).astype(jnp.float32)
    optional = [
        None if mask is None else mask.astype(jnp.int32),
        None if bias is None else bias.astype(jnp.float32),
    ]
    operands = [hidden, unembedding, tokens.astype(jnp.int32), scale, *optional]
    return [operand for operand in operands if operand is not None]


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
    """The gradients by dz_v = p_v (a + b log p_v) + 1[v = token] c, log p = z - peak - log_sum."""
    num_rows, vocabulary = hidden.shape[0], unembedding.shape[0 if static.transposed else 1]
    blocks = _blocks(hidden, static)
    gradient, multiple = _logits_gradient, blocks.gradient.columns
    if mosaic := _mosaic(hidden, unembedding, blocks, static):
        gradient, multiple = mosaic.gradient, mosaic.columns
    chunk = blocks.chunk or chunk_columns(num_rows, vocabulary, hidden.dtype.itemsize, multiple)
    b = jnp.zeros_like(a) if b is None else b
    log_sum = finite(log_sum)  # of rows without any finite logit, where a, b and c are 0

    def step(i: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        d_hidden, d_unembedding, d_bias = carry
        first = jnp.reshape(jnp.asarray(i * chunk, jnp.int32), (1,))
        d_logits, column_sums = gradient(
            hidden, unembedding, tokens, mask, bias, inverse_temperature,
            first, peak, log_sum, a, b, c, chunk, static,
        )  # fmt: skip
        d_hidden = multiply_hidden_gradient(
            d_logits, unembedding, mask, first, d_hidden,
            blocks.product, static.interpret, static.transposed,
        )  # fmt: skip
        d_unembedding = multiply_unembedding_gradient(
            d_logits, hidden, mask, first, d_unembedding,
            blocks.product, static.interpret, static.transposed,
        )  # fmt: skip
        if bias is not None:
            sums = jnp.sum(column_sums, axis=0)
            d_bias = lax.dynamic_update_slice(d_bias, sums, (i * chunk,))
        return d_hidden, d_unembedding, d_bias

    chunks = pl.cdiv(vocabulary, chunk)
    zeros = (
        jnp.zeros(hidden.shape, jnp.float32),
        jnp.zeros_like(unembedding),
        jnp.zeros(0 if bias is None else chunks * chunk, jnp.float32),
    )
    carry, _ = tr.varying_alike((zeros, (hidden, unembedding, tokens, bias, a)))
    if chunks == 1:
        d_hidden, d_unembedding, d_bias = step(0, carry)
    else:
        d_hidden, d_unembedding, d_bias = lax.fori_loop(0, chunks, step, carry)
    return (
        d_hidden.astype(hidden.dtype),
        d_unembedding,
        None if bias is None else d_bias[:vocabulary],
    )


def _logits_gradient(
    hidden, unembedding, tokens, mask, bias, inverse_temperature,
    first, peak, log_sum, a, b, c, chunk: int, static: Static,
) -> tuple[Array, Array]:  # fmt: skip
    """The gradient of `chunk` logits [N, chunk], and its sums over blocks of rows for the bias.

    Columns past the vocabulary are 0; blocks of masked rows are not written.
    """
    num_rows, vocabulary = hidden.shape[0], unembedding.shape[0 if static.transposed else 1]
    tiles = _blocks(hidden, static).gradient
    if static.softcap is not None:  # its slope is one more tile of registers
        tiles = tiles._replace(columns=max(16, tiles.columns // 2))
    row_blocks = pl.cdiv(num_rows, tiles.rows)

    def kernel(hidden, unembedding, tokens, scale, keep, bias, first, *refs):
        *coefficients, d_logits, sums = refs
        i, j = pl.program_id(0), pl.program_id(1)
        rows, active = _rows(keep, i * tiles.rows, tiles.rows, num_rows)
        at = first[0] + j * tiles.columns
        inside = tr.indices(at, tiles.columns) < vocabulary
        columns = tr.Side(at, tiles.columns, inside)
        local = tr.Side.of(j * tiles.columns, tiles.columns, chunk)

        def work():
            token = tr.vector(tokens, rows.first, tiles.rows, num_rows, other=-1)
            peak, log_sum, a, b, c = (
                tr.vector(ref, rows.first, tiles.rows, num_rows)[:, None] for ref in coefficients
            )
            x = tr.logits(
                hidden, unembedding, rows, columns, tiles.depth, static.interpret, static.transposed
            )
            z, slope = _squash(
                x, _bias(bias, columns.first, tiles.columns, vocabulary), scale[0], static
            )
            log_p = log_probs(z, peak, log_sum)
            is_token = tr.indices(columns.first, tiles.columns)[None, :] == token[:, None]
            d_z = tr.exp(log_p) * (a + b * log_p) + jnp.where(is_token, c, 0.0)
            exists = inside[None, :]
            if rows.exists is not None:
                exists = exists & rows.exists[:, None]
            d_z = jnp.where(exists, d_z * slope, 0.0)
            tr.store_tile(d_logits, tr.Side.of(rows.first, tiles.rows, num_rows), local, d_z)
            if bias is not None:
                tr.store_vector(sums, i, local.first, jnp.sum(d_z, axis=0))

        if active is None:
            return work()
        pl.when(active)(work)
        if bias is not None:

            @pl.when(jnp.logical_not(active))
            def _():
                zeros = jnp.zeros(tiles.columns, jnp.float32)
                tr.store_vector(sums, i, local.first, zeros)

    return tr.call(
        tr.with_optional(kernel, 4, (mask is not None, bias is not None)),
        grid=(row_blocks, pl.cdiv(chunk, tiles.columns)),
        out=(
            jax.ShapeDtypeStruct((num_rows, chunk), hidden.dtype),
            tr.float32(1 if bias is None else row_blocks, chunk),
        ),
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=static.interpret,
        name="linear_token_stats_logits_gradient",
    )(
        *_operands(hidden, unembedding, tokens, inverse_temperature, mask, bias),
        first, peak, log_sum, a, b, c,
    )  # fmt: skip
