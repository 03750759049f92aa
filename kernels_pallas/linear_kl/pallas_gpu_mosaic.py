"""The divergence and the gradients of both logits on Hopper and Blackwell, in Mosaic GPU.

The same sums as in the Triton form. A tile has 128 rows and 128 columns of both logits, which
are made one after the other, so that the second product runs while the first waits on the chip.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.gpu.divergence import RunningKL, kl_gradients
from kernels_pallas.gpu.mosaic import (
    ROWS,
    SWIZZLE,
    Epilogue,
    Kernels,
    Product,
    columns_of,
    pad,
    store_rows,
    tiling,
)
from kernels_pallas.records import KLStatic, KLStats

Pair = tuple[Array, Array]  # hidden [N, D], unembedding [D, V] or [V, D]


def _products(pair_p: Pair, pair_q: Pair, static: KLStatic) -> list[Product]:
    (hidden_p, unembedding_p), (hidden_q, unembedding_q) = pair_p, pair_q
    return [
        Product(hidden_p, unembedding_p, not static.transposed_p),
        Product(hidden_q, unembedding_q, not static.transposed_q),
    ]


def kernels(form: str, pair_p: Pair, pair_q: Pair, static: KLStatic) -> Kernels | None:
    """Those for "hopper" or "blackwell"; None where shapes do not allow."""
    return Kernels.of(form, _products(pair_p, pair_q, static), forward, logits_gradients)


def forward(
    form: Any, pair_p: Pair, pair_q: Pair, static: KLStatic, parts: int | None = None
) -> RunningKL:
    """The sums over each part of the vocabulary, [parts, N]."""
    products, num_rows = _products(pair_p, pair_q, static), pair_p[0].shape[0]
    vocabulary, groups = products[0].columns, form.GROUPS
    tiles = tiling(num_rows, vocabulary, products, parts)
    width = min(64, groups.width // 2)  # of both logits

    def start(refs: Any, row: Any) -> RunningKL:
        return RunningKL(*map(groups.by_row, RunningKL.empty(groups.rows)))

    def add(refs: Any, row: Any, first: Any, pieces: list[Array], carry: RunningKL) -> RunningKL:
        if vocabulary % columns_of(products):
            exists = groups.column_numbers(first, width) < vocabulary
            pieces = [jnp.where(exists, z, -jnp.inf) for z in pieces]
        z_p, z_q = pieces
        return carry.add(z_p, z_q, partial(groups.across, columns=width))

    def finish(refs: Any, row: Any, part: Any, carry: RunningKL) -> None:
        *outputs, buffer = refs
        store_rows(carry, outputs, buffer, part, row)

    padded_rows = num_rows + -num_rows % ROWS
    outputs = form.call(
        Epilogue(start, add, finish, width),
        products,
        [],
        first=jnp.zeros(1, jnp.int32),
        out=[jax.ShapeDtypeStruct((tiles["parts"], padded_rows), jnp.float32)] * 5,
        scratch=(plgpu.SMEM((groups.count, 5, groups.rows), jnp.float32),),
        interpret=static.interpret,
        name="linear_kl_forward",
        **tiles,
    )
    return RunningKL(*(output[:, :num_rows] for output in outputs))


def logits_gradients(
    form: Any, pair_p: Pair, pair_q: Pair, stats: KLStats, cotangent: Array, first: Array,
    chunk: int, static: KLStatic,
) -> list[Array]:  # fmt: skip
    """The gradients of `chunk` logits, [N, chunk], by side; columns past the vocabulary are 0."""
    products, num_rows = _products(pair_p, pair_q, static), pair_p[0].shape[0]
    vocabulary, groups = products[0].columns, form.GROUPS
    width, sides = 64, len(static.sides)  # a row of a swizzled buffer has 64 columns

    def start(refs: Any, row: Any) -> list[Array]:
        return [groups.load_rows(ref, row) for ref in refs[1:7]]

    def add(refs: Any, row: Any, local: Any, pieces: list[Array], carry: list[Array]) -> Any:
        outputs, buffers = refs[7 : 7 + sides], refs[7 + sides :]
        (z_p, z_q), (*stats, g) = pieces, (groups.across(value, width) for value in carry)
        exists = groups.column_numbers(refs[0][0] + local, width) < vocabulary
        slopes = static.wanted(kl_gradients(z_p, z_q, tuple(stats), g))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        for buffer, slope in zip(buffers, slopes):
            buffer[...] = jnp.where(exists, slope, 0.0).astype(buffer.dtype)
        plgpu.commit_smem()
        for buffer, output in zip(buffers, outputs):
            here = output.at[pl.ds(row, groups.rows), pl.ds(local, width)]
            plgpu.copy_smem_to_gmem(buffer, here)
        return carry

    def finish(refs: Any, row: Any, part: Any, carry: list[Array]) -> None:
        plgpu.wait_smem_to_gmem(0)

    dtype = pair_p[0].dtype
    return form.call(
        Epilogue(start, add, finish, width),
        products,
        [first, *(pad(vector, ROWS) for vector in (*stats, cotangent))],
        first=first,
        out=[jax.ShapeDtypeStruct((num_rows, chunk), dtype)] * sides,
        scratch=(plgpu.SMEM((groups.count, groups.rows, width), dtype, transforms=SWIZZLE),)
        * sides,
        interpret=static.interpret,
        name="linear_kl_logits_gradient",
        **tiling(num_rows, chunk, products),
    )
