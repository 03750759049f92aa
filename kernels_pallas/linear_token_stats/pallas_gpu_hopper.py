"""The forward pass and the gradient of the logits on Hopper, in the Mosaic GPU form of Pallas.

The same statistics as in the Triton form, with tiles of 128 rows and 256 columns: each of the two
multiplying warpgroups carries the running maximum and sums of its own 64 rows in registers.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas import gpu_hopper as hp
from kernels_pallas.gpu_blocks import splits_for
from kernels_pallas.gpu_cards import current
from kernels_pallas.gpu_hopper import COLUMNS, fits
from kernels_pallas.gpu_triton import LOG2_E
from kernels_pallas.records import NEVER, Static

__all__ = ["COLUMNS", "fits", "forward", "logits_gradient"]

MASKED = jnp.iinfo(jnp.int32).min  # in place of the token of a row that does not count


def _squash(x: Array, inverse_temperature: Any, softcap: float | None) -> tuple[Array, Any]:
    """Logits from the product with its bias, and their derivative."""
    if softcap is None:
        return x * inverse_temperature, inverse_temperature
    # The card's own tanh is right to 2^-11 only.
    bent = 1.0 - 2.0 / (1.0 + jnp.exp2(x * (2.0 * LOG2_E / softcap)))
    return bent * (softcap * inverse_temperature), (1.0 - bent * bent) * inverse_temperature


def _pad(vector: Array, multiple: int, value: float = 0) -> Array:
    return jnp.pad(vector, (0, -vector.shape[0] % multiple), constant_values=value)


def _unembedding(unembedding: Array, static: Static) -> tuple[hp.Operand, int]:
    operand = hp.Operand(unembedding, not static.transposed)
    return operand, operand.sizes()[0]


def _active(mask: Array | None, num_rows: int) -> Array:
    """int32 [blocks]: whether a block of rows has any that count."""
    blocks = pl.cdiv(num_rows, hp.ROWS)
    if mask is None:
        return jnp.ones(blocks, jnp.int32)
    padded = jnp.pad(mask, (0, blocks * hp.ROWS - num_rows))
    return jnp.any(padded.reshape(blocks, hp.ROWS), axis=1).astype(jnp.int32)


def forward(
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    mask: Array | None,
    bias: Array | None,
    inverse_temperature: Array,
    static: Static,
    parts: int | None = None,
) -> tuple[Array, ...]:
    """Peak, total, weighted sum and chosen logit of each part of the vocabulary, [parts, N]."""
    num_rows = hidden.shape[0]
    rhs, vocabulary = _unembedding(unembedding, static)
    column_tiles = pl.cdiv(vocabulary, hp.COLUMNS)
    parts = parts or splits_for(pl.cdiv(num_rows, hp.ROWS), column_tiles, current())
    parts = min(parts, column_tiles)
    padded_rows = num_rows + -num_rows % hp.ROWS

    def start(refs: Any, row: Any) -> tuple[Array, ...]:
        low = hp.by_row(jnp.full((hp.GROUP_ROWS,), -jnp.inf, jnp.float32))
        zeros = hp.by_row(jnp.zeros((hp.GROUP_ROWS,), jnp.float32))
        return low, zeros, zeros, zeros

    # Bias and softcap need registers: half of the columns at a time then.
    width = hp.COLUMNS if bias is None and static.softcap is None else hp.COLUMNS // 2

    def tile(refs: Any, row: Any, j: Any, x: Array, carry: tuple[Array, ...]) -> Any:
        for n in range(0, hp.COLUMNS, width):
            piece = x if width == hp.COLUMNS else x[:, n : n + width]
            carry = add(refs, row, j * hp.COLUMNS + n, piece, carry)
        return carry

    def add(refs: Any, row: Any, first: Any, x: Array, carry: tuple[Array, ...]) -> Any:
        tokens, scale, *rest = refs
        peak, total, weighted, chosen = carry
        if bias is not None:
            x = x + hp.down(hp.load_columns(rest[0], first, width))
        z, _ = _squash(x, scale[0], static.softcap)
        columns = hp.column_numbers(first, width)
        if vocabulary % hp.COLUMNS:
            z = jnp.where(columns < vocabulary, z, -jnp.inf)
        token = hp.across(hp.load_rows(tokens, row), width)
        chosen = chosen + jnp.sum(jnp.where(columns == token, z, 0.0), axis=1)
        new = jnp.maximum(peak, jnp.max(z, axis=1))
        shift = jnp.where(new == -jnp.inf, 0.0, new)
        step = jnp.where(peak == -jnp.inf, 0.0, peak - shift)
        shrink = jnp.exp2(step * LOG2_E)
        below = z - hp.across(shift, width)
        p = jnp.exp2(below * LOG2_E)
        if static.entropy:
            added = jnp.sum(p * jnp.maximum(below, NEVER), axis=1)
            weighted = shrink * (weighted + step * total) + added
        return new, shrink * total + jnp.sum(p, axis=1), weighted, chosen

    def finish(refs: Any, row: Any, part: Any, carry: tuple[Array, ...]) -> None:
        *outputs, buffer = refs[-5:]
        for n, value in enumerate(carry):
            buffer[n] = value
        plgpu.commit_smem()
        for n, output in enumerate(outputs):
            plgpu.copy_smem_to_gmem(buffer.at[n], output.at[part, pl.ds(row, hp.GROUP_ROWS)])
        plgpu.wait_smem_to_gmem(0)

    others = [
        _pad(jnp.where(tokens < vocabulary, tokens, -1).astype(jnp.int32), hp.ROWS),
        inverse_temperature.reshape(1).astype(jnp.float32),
    ]
    if bias is not None:
        others.append(_pad(bias.astype(jnp.float32), hp.COLUMNS))
    outputs = hp.call(
        hp.Epilogue(start, tile, finish),
        hp.Operand(hidden, False),
        rhs,
        others,
        first=jnp.zeros(1, jnp.int32),
        active=_active(mask, num_rows),
        column_tiles=column_tiles,
        parts=parts,
        out=[jax.ShapeDtypeStruct((parts, padded_rows), jnp.float32)] * 4,
        scratch=(plgpu.SMEM((hp.GROUPS, 4, hp.GROUP_ROWS), jnp.float32),),
        interpret=hp.interpreter(static.interpret),
        name="linear_token_stats_forward_hopper",
    )
    return tuple(output[:, :num_rows] for output in outputs)


def logits_gradient(
    hidden, unembedding, tokens, mask, bias, inverse_temperature,
    first, peak, log_sum, a, b, c, chunk: int, static: Static,
) -> tuple[Array, Array]:  # fmt: skip
    """The gradient of `chunk` logits [N, chunk], and its sums over groups of rows, [groups, chunk].

    Columns past the vocabulary are 0; blocks of masked rows are not written.
    """
    num_rows = hidden.shape[0]
    rhs, vocabulary = _unembedding(unembedding, static)
    column_tiles = pl.cdiv(chunk, hp.COLUMNS)
    padded_rows = num_rows + -num_rows % hp.ROWS
    parts = splits_for(pl.cdiv(num_rows, hp.ROWS), column_tiles, current())
    quarter = 64  # columns that leave at a time

    def tile(refs: Any, row: Any, j: Any, x: Array, carry: None) -> None:
        tokens, scale, first, *vectors = refs[:8]
        *_, d_logits, sums, buffer, sums_buffer = refs
        rows = [hp.load_rows(ref, row) for ref in (tokens, *vectors)]
        # A quarter of the columns at a time: whole tiles of p and log p would not fit.
        for n in range(hp.COLUMNS // quarter):
            local = j * hp.COLUMNS + n * quarter
            columns = hp.column_numbers(first[0] + local, quarter)
            product = x[:, n * quarter : (n + 1) * quarter]
            if bias is not None:
                product = product + hp.down(hp.load_columns(refs[8], first[0] + local, quarter))
            z, slope = _squash(product, scale[0], static.softcap)
            token, peak, log_sum, a, b, c = (hp.across(value, quarter) for value in rows)
            log_p = jnp.maximum((z - peak) - log_sum, NEVER)
            d_z = jnp.exp2(log_p * LOG2_E) * (a + b * log_p)
            d_z = (d_z + jnp.where(columns == token, c, 0.0)) * slope
            d_z = jnp.where((columns < vocabulary) & (token != MASKED), d_z, 0.0)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            buffer[...] = d_z.astype(buffer.dtype)
            if bias is not None:
                sums_buffer[...] = jnp.sum(d_z, axis=0)
            plgpu.commit_smem()
            here = pl.ds(local, quarter)
            plgpu.copy_smem_to_gmem(buffer, d_logits.at[pl.ds(row, hp.GROUP_ROWS), here])
            if bias is not None:
                group = lax.div(row, hp.GROUP_ROWS)
                plgpu.copy_smem_to_gmem(sums_buffer, sums.at[group, here])

    def finish(refs: Any, row: Any, part: Any, carry: None) -> None:
        plgpu.wait_smem_to_gmem(0)

    vectors = [peak, log_sum, a, b, c]
    keep = jnp.ones(num_rows, bool) if mask is None else mask
    others = [
        _pad(jnp.where(keep, tokens, MASKED).astype(jnp.int32), hp.ROWS, MASKED),
        inverse_temperature.reshape(1).astype(jnp.float32),
        first,
        *(_pad(vector, hp.ROWS) for vector in vectors),
    ]
    if bias is not None:
        others.append(jnp.pad(bias.astype(jnp.float32), (0, chunk)))
    groups = padded_rows // hp.GROUP_ROWS if bias is not None else 1
    active = _active(mask, num_rows)
    d_logits, sums = hp.call(
        hp.Epilogue(lambda refs, row: None, tile, finish),
        hp.Operand(hidden, False),
        rhs,
        others,
        first=first,
        active=active,
        column_tiles=column_tiles,
        parts=parts,
        out=[
            jax.ShapeDtypeStruct((num_rows, chunk), hidden.dtype),
            jax.ShapeDtypeStruct((groups, column_tiles * hp.COLUMNS), jnp.float32),
        ],
        scratch=(
            plgpu.SMEM((hp.GROUPS, hp.GROUP_ROWS, quarter), hidden.dtype, transforms=hp.SWIZZLE),
            plgpu.SMEM((hp.GROUPS, quarter), jnp.float32),
        ),
        interpret=hp.interpreter(static.interpret),
        name="linear_token_stats_logits_gradient_hopper",
    )
    if bias is not None:
        written = jnp.repeat(active, hp.GROUPS)[:, None] > 0
        sums = jnp.where(written, sums, 0.0)
    return d_logits, sums[:, :chunk]
