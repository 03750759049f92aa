"""The forward pass and the gradient of the logits on Hopper and Blackwell, in Mosaic GPU.

The same statistics as in the Triton form, with tiles of 128 rows and 256 columns: each warpgroup
that treats tiles carries the running maximum and sums of its own rows in registers.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.gpu.mosaic import (
    COLUMNS,
    ROWS,
    SWIZZLE,
    Epilogue,
    Kernels,
    Product,
    pad,
    store_rows,
    tiling,
)
from kernels_pallas.gpu.softmax import Running, log_probs
from kernels_pallas.gpu.triton import LOG2_E, exp
from kernels_pallas.records import Static

MASKED = jnp.iinfo(jnp.int32).min  # in place of the token of a row that does not count


def kernels(form: str, hidden: Array, unembedding: Array, transposed: bool) -> Kernels | None:
    """Those for "hopper" or "blackwell"; None where shapes do not allow."""
    product = Product(hidden, unembedding, not transposed)
    return Kernels.of(form, [product], forward, logits_gradient)


def _squash(x: Array, inverse_temperature: Any, softcap: float | None) -> tuple[Array, Any]:
    """Logits from the product with its bias, and their derivative."""
    if softcap is None:
        return x * inverse_temperature, inverse_temperature
    # The card's own tanh is right to 2^-11 only.
    bent = 1.0 - 2.0 / (1.0 + jnp.exp2(x * (2.0 * LOG2_E / softcap)))
    return bent * (softcap * inverse_temperature), (1.0 - bent * bent) * inverse_temperature


def forward(
    form: Any,
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    mask: Array | None,
    bias: Array | None,
    inverse_temperature: Array,
    static: Static,
    parts: int | None = None,
) -> Running:
    """Peak, total, weighted sum and chosen logit of each part of the vocabulary, [parts, N]."""
    num_rows = hidden.shape[0]
    product = Product(hidden, unembedding, not static.transposed)
    vocabulary = product.columns
    tiles = tiling(num_rows, vocabulary, [product], parts, mask)
    padded_rows = num_rows + -num_rows % ROWS
    groups = form.GROUPS

    def start(refs: Any, row: Any) -> Running:
        return Running(*map(groups.by_row, Running.empty(groups.rows)))

    # Bias and softcap need registers: half of the columns at a time then.
    width = groups.width if bias is None and static.softcap is None else groups.width // 2

    def add(refs: Any, row: Any, first: Any, pieces: list[Array], carry: Running) -> Running:
        (x,), (tokens, scale, *rest) = pieces, refs
        if bias is not None:
            x = x + groups.down(groups.load_columns(rest[0], first, width))
        z, _ = _squash(x, scale[0], static.softcap)
        columns = groups.column_numbers(first, width)
        if vocabulary % COLUMNS:
            z = jnp.where(columns < vocabulary, z, -jnp.inf)
        token = groups.across(groups.load_rows(tokens, row), width)
        across = partial(groups.across, columns=width)
        return carry.add(z, columns == token, static.entropy, across)

    def finish(refs: Any, row: Any, part: Any, carry: Running) -> None:
        *outputs, buffer = refs[-5:]
        store_rows(carry, outputs, buffer, part, row)

    others = [
        pad(jnp.where(tokens < vocabulary, tokens, -1).astype(jnp.int32), ROWS),
        inverse_temperature.reshape(1).astype(jnp.float32),
    ]
    if bias is not None:
        others.append(pad(bias.astype(jnp.float32), COLUMNS))
    outputs = form.call(
        Epilogue(start, add, finish, width),
        [product],
        others,
        first=jnp.zeros(1, jnp.int32),
        out=[jax.ShapeDtypeStruct((tiles["parts"], padded_rows), jnp.float32)] * 4,
        scratch=(plgpu.SMEM((groups.count, 4, groups.rows), jnp.float32),),
        interpret=static.interpret,
        name="linear_token_stats_forward",
        **tiles,
    )
    return Running(*(output[:, :num_rows] for output in outputs))


def logits_gradient(
    form, hidden, unembedding, tokens, mask, bias, inverse_temperature,
    first, peak, log_sum, a, b, c, chunk: int, static: Static,
) -> tuple[Array, Array]:  # fmt: skip
    """The gradient of `chunk` logits [N, chunk], and its sums over groups of rows, [groups, chunk].

    Columns past the vocabulary are 0; blocks of masked rows are not written.
    """
    num_rows = hidden.shape[0]
    product = Product(hidden, unembedding, not static.transposed)
    vocabulary = product.columns
    tiles = tiling(num_rows, chunk, [product], mask=mask)
    padded_rows = num_rows + -num_rows % ROWS
    groups = form.GROUPS
    width = 64  # whole tiles of p and log p would not fit

    def start(refs: Any, row: Any) -> list[Array]:
        tokens, _, _, *vectors = refs[:8]
        return [groups.load_rows(ref, row) for ref in (tokens, *vectors)]

    def add(
        refs: Any, row: Any, local: Any, pieces: list[Array], carry: list[Array]
    ) -> list[Array]:
        (x,), (_, scale, first) = pieces, refs[:3]
        *_, d_logits, sums, buffer, sums_buffer = refs
        columns = groups.column_numbers(first[0] + local, width)
        if bias is not None:
            x = x + groups.down(groups.load_columns(refs[8], first[0] + local, width))
        z, slope = _squash(x, scale[0], static.softcap)
        token, peak, log_sum, a, b, c = (groups.across(value, width) for value in carry)
        log_p = log_probs(z, peak, log_sum)
        d_z = exp(log_p) * (a + b * log_p)
        d_z = (d_z + jnp.where(columns == token, c, 0.0)) * slope
        d_z = jnp.where((columns < vocabulary) & (token != MASKED), d_z, 0.0)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        buffer[...] = d_z.astype(buffer.dtype)
        if bias is not None:
            sums_buffer[...] = jnp.sum(d_z, axis=0)
        plgpu.commit_smem()
        here = pl.ds(local, width)
        plgpu.copy_smem_to_gmem(buffer, d_logits.at[pl.ds(row, groups.rows), here])
        if bias is not None:
            group = lax.div(row, groups.rows)
            plgpu.copy_smem_to_gmem(sums_buffer, sums.at[group, here])
        return carry

    def finish(refs: Any, row: Any, part: Any, carry: list[Array]) -> None:
        plgpu.wait_smem_to_gmem(0)

    vectors = [peak, log_sum, a, b, c]
    keep = jnp.ones(num_rows, bool) if mask is None else mask
    others = [
        pad(jnp.where(keep, tokens, MASKED).astype(jnp.int32), ROWS, MASKED),
        inverse_temperature.reshape(1).astype(jnp.float32),
        first,
        *(pad(vector, ROWS) for vector in vectors),
    ]
    if bias is not None:
        others.append(jnp.pad(bias.astype(jnp.float32), (0, chunk)))
    lines = padded_rows // groups.rows if bias is not None else 1
    d_logits, sums = form.call(
        Epilogue(start, add, finish, width),
        [product],
        others,
        first=first,
        out=[
            jax.ShapeDtypeStruct((num_rows, chunk), hidden.dtype),
            jax.ShapeDtypeStruct((lines, tiles["column_tiles"] * COLUMNS), jnp.float32),
        ],
        scratch=(
            plgpu.SMEM((groups.count, groups.rows, width), hidden.dtype, transforms=SWIZZLE),
            plgpu.SMEM((groups.count, width), jnp.float32),
        ),
        interpret=static.interpret,
        name="linear_token_stats_logits_gradient",
        **tiles,
    )
    if bias is not None:
        written = jnp.repeat(tiles["active"], groups.count)[:, None] > 0
        sums = jnp.where(written, sums, 0.0)
    return d_logits, sums[:, :chunk]
