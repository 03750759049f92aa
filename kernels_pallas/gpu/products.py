"""The products of the backward pass: a chunk of the logits' gradient with W and with hidden."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from kernels_pallas.gpu import triton as tr
from kernels_pallas.gpu.blocks import Tiles


def _keep(keep_ref: Any, first: Any, size: int, num_rows: int) -> tr.Side:
    if keep_ref is None:
        return tr.Side.of(first, size, num_rows)
    return tr.Side(first, size, tr.vector(keep_ref, first, size, num_rows) > 0)


def multiply_hidden_gradient(
    d_logits: Array, unembedding: Array, mask: Array | None, first: Array,
    d_hidden: Array, tiles: Tiles, interpret: Any, transposed: bool,
) -> Array:  # fmt: skip
    """d_hidden [N, D] + d_logits [N, chunk] · unembedding[:, first:]ᵀ, in float32."""
    num_rows, width = d_hidden.shape
    chunk, vocabulary = d_logits.shape[1], unembedding.shape[0 if transposed else 1]

    def kernel(d_logits, unembedding, first, keep, before, d_hidden):
        rows = _keep(keep, pl.program_id(0) * tiles.rows, tiles.rows, num_rows)
        across = tr.Side.of(pl.program_id(1) * tiles.columns, tiles.columns, width)

        def product(k: Any) -> Array:
            local = tr.Side.of(k * tiles.depth, tiles.depth, chunk)
            at = first[0] + local.first
            inner = tr.Side(at, tiles.depth, tr.indices(at, tiles.depth) < vocabulary)
            d = tr.tile(d_logits, rows, local)
            if transposed:
                return tr.dot(d, tr.tile(unembedding, inner, across), (1, 0), interpret)
            return tr.dot(d, tr.tile(unembedding, across, inner), (1, 1), interpret)

        def work():
            steps = pl.cdiv(chunk, tiles.depth)
            sum = tr.sum_products(steps, (tiles.rows, tiles.columns), product)
            tr.store_tile(d_hidden, rows, across, tr.tile(before, rows, across) + sum)

        if keep is None:
            work()
        else:
            kept = jnp.asarray(rows.exists, jnp.int32)  # Triton's lowering has no `any`
            pl.when(jnp.max(kept) > 0)(work)

    operands = [d_logits, unembedding, first]
    if mask is not None:
        operands.append(mask.astype(jnp.int32))
    return tr.call(
        tr.with_optional(kernel, 3, (mask is not None,)),
        grid=(pl.cdiv(num_rows, tiles.rows), pl.cdiv(width, tiles.columns)),
        out=tr.float32(num_rows, width),
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=interpret,
        name="hidden_gradient",
        aliases={len(operands): 0},
    )(*operands, d_hidden)


def multiply_unembedding_gradient(
    d_logits: Array, hidden: Array, mask: Array | None, first: Array,
    d_unembedding: Array, tiles: Tiles, interpret: Any, transposed: bool,
) -> Array:  # fmt: skip
    """d_unembedding with hiddenᵀ · d_logits in the columns from `first` on."""
    num_rows, width = hidden.shape
    chunk, vocabulary = d_logits.shape[1], d_unembedding.shape[0 if transposed else 1]
    row_blocks = pl.cdiv(num_rows, tiles.depth)

    def kernel(d_logits, hidden, first, keep, order, count, before, d_unembedding):
        del before  # the same memory as d_unembedding; other chunks stay as they are
        v, d = (pl.program_id(1 - transposed), pl.program_id(int(transposed)))
        local = tr.Side.of(v * tiles.columns, tiles.columns, chunk)
        at = first[0] + local.first
        columns = tr.Side(at, tiles.columns, tr.indices(at, tiles.columns) < vocabulary)
        across = tr.Side.of(d * tiles.rows, tiles.rows, width)

        def product(k: Any) -> Array:
            block = k if order is None else order[k]
            inner = _keep(keep, block * tiles.depth, tiles.depth, num_rows)
            g, h = tr.tile(d_logits, inner, local), tr.tile(hidden, inner, across)
            x, y = (g, h) if transposed else (h, g)
            return tr.dot(x, y, (0, 0), interpret)

        down, right = (columns, across) if transposed else (across, columns)
        steps = row_blocks if count is None else count[0]
        sum = tr.sum_products(steps, (down.size, right.size), product)
        tr.store_tile(d_unembedding, down, right, sum)

    operands = [d_logits, hidden, first]
    if mask is not None:
        padded = jnp.pad(mask, (0, row_blocks * tiles.depth - num_rows))
        active = jnp.any(padded.reshape(row_blocks, tiles.depth), axis=1)
        order = jnp.argsort(~active, stable=True).astype(jnp.int32)  # blocks with rows first
        count = jnp.sum(active, dtype=jnp.int32).reshape(1)
        operands += [mask.astype(jnp.int32), order, count]
    grid = (pl.cdiv(width, tiles.rows), pl.cdiv(chunk, tiles.columns))
    return tr.call(
        tr.with_optional(kernel, 3, (mask is not None,) * 3),
        grid=grid[::-1] if transposed else grid,
        out=jax.ShapeDtypeStruct(d_unembedding.shape, d_unembedding.dtype),
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=interpret,
        name="unembedding_gradient",
        aliases={len(operands): 0},
    )(*operands, d_unembedding)
