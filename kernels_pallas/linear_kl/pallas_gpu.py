"""The divergence of two models' tokens straight from hidden states, on NVIDIA cards.

In the Triton form of Pallas; in bfloat16 on Hopper and Blackwell in its Mosaic GPU form, but for
the products of the backward pass. Forward 2NV(Dp + Dq) flops, no logit leaves the chip; backward
6NV(Dp + Dq) flops, 2NV(3Dp + Dq) with q held fixed, with the gradients of the logits for one chunk
of the vocabulary at a time.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels_pallas.gpu import triton as tr
from kernels_pallas.gpu.blocks import (
    GpuBlocks,
    Tiles,
    blocks_of,
    chunk_columns,
    form_for,
    splits_for,
)
from kernels_pallas.gpu.cards import current
from kernels_pallas.gpu.divergence import RunningKL, combine_kl, kl_gradients
from kernels_pallas.gpu.products import multiply_hidden_gradient, multiply_unembedding_gradient
from kernels_pallas.records import KLStatic, KLStats

Pair = tuple[Array, Array]  # hidden [N, D], unembedding [D, V] or [V, D]


def _blocks(pair: Pair, static: KLStatic) -> GpuBlocks:
    return blocks_of(static.config, "linear_kl", str(pair[0].dtype))


def _mosaic(pair_p: Pair, pair_q: Pair, static: KLStatic) -> Any:
    """The Mosaic GPU kernels where they are to run, else None."""
    form = form_for(_blocks(pair_p, static), static.interpret)
    if form == "triton":
        return None
    from kernels_pallas.linear_kl.pallas_gpu_mosaic import kernels

    return kernels(form, pair_p, pair_q, static)


def _vocabulary(pair: Pair, transposed: bool) -> int:
    return pair[1].shape[0 if transposed else 1]


def _logits(refs: tuple, rows: tr.Side, columns: tr.Side, tiles: Tiles, static: KLStatic) -> Any:
    """Both tiles of logits, -inf where there is no column."""
    hidden_p, unembedding_p, hidden_q, unembedding_q = refs
    for hidden, unembedding, transposed in (
        (hidden_p, unembedding_p, static.transposed_p),
        (hidden_q, unembedding_q, static.transposed_q),
    ):
        z = tr.logits(hidden, unembedding, rows, columns, tiles.depth, static.interpret, transposed)
        yield z if columns.exists is None else jnp.where(columns.exists[None, :], z, -jnp.inf)


def forward(pair_p: Pair, pair_q: Pair, static: KLStatic) -> KLStats:
    """KL(p‖q) of each row."""
    num_rows, vocabulary = pair_p[0].shape[0], _vocabulary(pair_p, static.transposed_p)
    blocks = _blocks(pair_p, static)
    if mosaic := _mosaic(pair_p, pair_q, static):
        return combine_kl(mosaic.forward(pair_p, pair_q, static, blocks.splits))
    tiles = blocks.forward
    row_blocks, vocab_blocks = pl.cdiv(num_rows, tiles.rows), pl.cdiv(vocabulary, tiles.columns)
    splits = blocks.splits or splits_for(row_blocks, vocab_blocks, current())
    splits = min(splits, vocab_blocks)

    def kernel(*refs):
        i, part = pl.program_id(0), pl.program_id(1)
        rows = tr.Side.of(i * tiles.rows, tiles.rows, num_rows)

        def visit(j: Any, running: RunningKL) -> RunningKL:
            columns = tr.Side.of(j * tiles.columns, tiles.columns, vocabulary)
            return running.add(*_logits(refs[:4], rows, columns, tiles, static))

        start, stop = part * vocab_blocks // splits, (part + 1) * vocab_blocks // splits
        running = lax.fori_loop(start, stop, visit, RunningKL.empty(tiles.rows))
        for out, value in zip(refs[4:], running):
            tr.store_vector(out, part, rows.first, value)

    outputs = tr.call(
        kernel,
        grid=(row_blocks, splits),
        out=(tr.float32(splits, num_rows),) * 5,
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=static.interpret,
        name="linear_kl_forward",
    )(*pair_p, *pair_q)
    return combine_kl(RunningKL(*outputs))


def backward(pair_p: Pair, pair_q: Pair, stats: KLStats, cotangent: Array, static: KLStatic) -> Any:
    """Gradients of the arrays of `static.sides` from the cotangent [N]."""
    num_rows, vocabulary = pair_p[0].shape[0], _vocabulary(pair_p, static.transposed_p)
    blocks = _blocks(pair_p, static)
    size = pair_p[0].dtype.itemsize * len(static.sides)
    gradients, multiple = _logits_gradients, blocks.gradient.columns
    if mosaic := _mosaic(pair_p, pair_q, static):
        gradients, multiple = mosaic.gradient, mosaic.columns
    chunk = blocks.chunk or chunk_columns(num_rows, vocabulary, size, multiple)
    sides = static.wanted(((pair_p, static.transposed_p), (pair_q, static.transposed_q)))

    def step(i: Any, carry: tuple[Pair, ...]) -> tuple[Pair, ...]:
        first = jnp.reshape(jnp.asarray(i * chunk, jnp.int32), (1,))
        d_logits = gradients(pair_p, pair_q, stats, cotangent, first, chunk, static)

        def multiply(side: Any, d_z: Array, before: Pair) -> Pair:
            (hidden, unembedding), transposed = side
            return (
                multiply_hidden_gradient(
                    d_z, unembedding, None, first, before[0],
                    blocks.product, static.interpret, transposed,
                ),
                multiply_unembedding_gradient(
                    d_z, hidden, None, first, before[1],
                    blocks.product, static.interpret, transposed,
                ),
            )  # fmt: skip

        return tuple(multiply(*parts) for parts in zip(sides, d_logits, carry))

    carry = tuple(
        (jnp.zeros(hidden.shape, jnp.float32), jnp.zeros_like(unembedding))
        for (hidden, unembedding), _ in sides
    )
    carry, _ = tr.varying_alike((carry, (pair_p, pair_q, cotangent)))
    chunks = pl.cdiv(vocabulary, chunk)
    carry = step(0, carry) if chunks == 1 else lax.fori_loop(0, chunks, step, carry)
    return static.paired(
        (d_hidden.astype(hidden.dtype), d_unembedding)
        for (d_hidden, d_unembedding), ((hidden, _), _) in zip(carry, sides)
    )


def _logits_gradients(
    pair_p: Pair, pair_q: Pair, stats: KLStats, cotangent: Array, first: Array, chunk: int,
    static: KLStatic,
) -> tuple[Array, ...]:  # fmt: skip
    """The gradients of `chunk` logits, [N, chunk], by side; columns past the vocabulary are 0."""
    num_rows, vocabulary = pair_p[0].shape[0], _vocabulary(pair_p, static.transposed_p)
    tiles = _blocks(pair_p, static).gradient

    def kernel(*refs):
        vectors, first, outs = refs[4:10], refs[10], refs[11:]
        rows = tr.Side.of(pl.program_id(0) * tiles.rows, tiles.rows, num_rows)
        local = tr.Side.of(pl.program_id(1) * tiles.columns, tiles.columns, chunk)
        at = first[0] + local.first
        columns = tr.Side(at, tiles.columns, tr.indices(at, tiles.columns) < vocabulary)
        *stats, g = (tr.vector(ref, rows.first, tiles.rows, num_rows)[:, None] for ref in vectors)
        z_p, z_q = _logits(refs[:4], rows, columns, tiles, static)
        for out, value in zip(outs, static.wanted(kl_gradients(z_p, z_q, tuple(stats), g))):
            tr.store_tile(out, rows, local, value)

    return tr.call(
        kernel,
        grid=(pl.cdiv(num_rows, tiles.rows), pl.cdiv(chunk, tiles.columns)),
        out=tuple(
            jax.ShapeDtypeStruct((num_rows, chunk), hidden.dtype)
            for hidden, _ in static.wanted((pair_p, pair_q))
        ),
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=static.interpret,
        name="linear_kl_logits_gradient",
    )(*pair_p, *pair_q, *stats, cotangent, first)
