"""Tiles of logits in the TPU kernels: either layout of the unembedding, bias, softcap, ends."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels_pallas.records import Static
from kernels_pallas.tpu import mosaic
from kernels_pallas.tpu.mosaic import Blocks, Config


class Weights(NamedTuple):
    """Arrays, their blocks, or references in a kernel."""

    unembedding: Any  # [D, V], or [V, D] if transposed
    bias: Any  # [1, V] float32, or None


class Operand(NamedTuple):
    arrays: Weights
    specs: Weights


class Vocabulary(NamedTuple):
    """A strip of a block of the vocabulary."""

    first: int
    width: int
    limit: Any  # columns of the block that exist; None: all

    def exists(self, shape: tuple[int, ...], axis: int) -> Array:
        return lax.broadcasted_iota(jnp.int32, shape, axis) < self.limit - self.first


class Problem(NamedTuple):
    num: int
    width: int
    size: int
    dtype: Any


def choose_blocks(problem: Problem, config: Config | None = None) -> Config:
    """Rows and columns enough to be bound by the matrix unit, and what fits on the chip.

    A kernel for which nothing fits has None in place of blocks.
    """
    if config is not None:
        return config
    itemsize = jnp.dtype(problem.dtype).itemsize
    strip = 512 if itemsize == 2 else 256
    width = mosaic.round_up(problem.width, mosaic.LANES)
    shape = (problem.num, problem.size)

    def lanes(blocks: Blocks) -> int:  # vectors down the rows, and three strips of float32
        return blocks.rows * 4 * (8 * mosaic.LANES + 3 * blocks.strip)

    def forward(blocks: Blocks) -> int:
        return 2 * (blocks.rows + blocks.vocabulary) * width * itemsize + lanes(blocks)

    def d_hidden(blocks: Blocks) -> int:
        sums = blocks.rows * (width * (2 * itemsize + 8) + blocks.vocabulary * itemsize)
        return forward(blocks) + sums

    def d_unembedding(blocks: Blocks) -> int:
        return forward(blocks) + blocks.vocabulary * width * (2 * itemsize + 8)

    least = Blocks(32, mosaic.LANES, mosaic.LANES)
    rows = 1024 if mosaic.wide_matrix_unit() else 512
    long, short = Blocks(rows, 1024, strip), Blocks(rows, 512, strip)
    heuristic = Config(long, long, short)
    wanted = mosaic.wanted("linear_token_stats", problem.dtype, heuristic)
    costs = (forward, d_hidden, d_unembedding)
    return Config(*(mosaic.fit(blocks, least, shape, cost) for blocks, cost in zip(wanted, costs)))


def weights_of(
    unembedding: Array,
    bias: Array | None,
    blocks: Blocks,
    static: Static,
    place: Callable[[Any, Any], Any],
) -> Operand:
    """Blocks of all of D; `place` gives the number of the block of the vocabulary in the grid."""
    width = unembedding.shape[1 if static.transposed else 0]
    if static.transposed:
        spec = pl.BlockSpec((blocks.vocabulary, width), lambda i, j, *_: (place(i, j), 0))
    else:
        spec = pl.BlockSpec((width, blocks.vocabulary), lambda i, j, *_: (0, place(i, j)))
    if bias is None:
        return Operand(Weights(unembedding, None), Weights(spec, None))
    row = pl.BlockSpec((1, blocks.vocabulary), lambda i, j, *_: (0, place(i, j)))
    bias = bias.astype(jnp.float32).reshape(1, -1)
    return Operand(Weights(unembedding, bias), Weights(spec, row))


def strip_of(
    weights: Weights, vocabulary: Vocabulary, static: Static, clean: bool = False
) -> Array:
    """The weights of a strip in their own layout; `clean`: 0 beyond the end of the vocabulary."""
    columns = pl.ds(vocabulary.first, vocabulary.width)
    axis = 0 if static.transposed else 1
    strip = weights.unembedding[(columns, slice(None))[:: 1 if static.transposed else -1]]
    if not clean or vocabulary.limit is None:
        return strip
    return jnp.where(vocabulary.exists(strip.shape, axis), strip, jnp.zeros_like(strip))


def raw_logits(rows: Array, weights: Weights, vocabulary: Vocabulary, static: Static) -> Array:
    """u [rows, width] float32 with logits z = u · inverse_temperature · softcap (1 if None)."""
    strip = strip_of(weights, vocabulary, static)
    logits = mosaic.product(rows, strip, 1, 1 if static.transposed else 0)
    if weights.bias is not None:
        logits += weights.bias[:, pl.ds(vocabulary.first, vocabulary.width)]
    if static.softcap is not None:
        logits = jnp.tanh(logits * (1.0 / static.softcap))
    if vocabulary.limit is not None:
        logits = jnp.where(vocabulary.exists(logits.shape, 1), logits, -jnp.inf)
    return logits
