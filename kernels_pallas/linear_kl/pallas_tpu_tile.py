"""Tiles of logits of two models, and block sizes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels_pallas.records import KLStatic
from kernels_pallas.tpu import mosaic
from kernels_pallas.tpu.mosaic import LANES, Blocks, Config


class Sides(NamedTuple):
    """What a kernel knows of p and q."""

    transposed: tuple[bool, bool]
    hidden: list[Any]  # pl.BlockSpec
    weights: list[Any]
    size: int  # V
    grid: tuple[int, int]
    row: Callable[..., Any]  # the number of the block of rows, of a place in the grid
    column: Callable[..., Any]


def choose_blocks(
    shape: tuple[int, int, int, int], dtype: Any, config: Config | None = None, sides: str = "pq"
) -> Config:
    """For (N, D_p, D_q, V), with sums for the gradients of these sides.

    A kernel for which nothing fits on the chip has None for blocks.
    """
    if config is not None:
        return config
    num, *widths, size = shape
    itemsize = jnp.dtype(dtype).itemsize
    widths = [mosaic.round_up(each, LANES) for each in widths]
    width, summed = sum(widths), sum(x for side, x in zip("pq", widths) if side in sides)

    def forward(blocks: Blocks) -> int:
        inputs = 2 * (blocks.rows + blocks.vocabulary) * width * itemsize
        return inputs + blocks.rows * 4 * (14 * LANES + 6 * blocks.strip)

    def d_hidden(blocks: Blocks) -> int:  # results, sums, and what is added to them
        d_logits = blocks.rows * blocks.vocabulary * len(sides) * itemsize
        return forward(blocks) + blocks.rows * summed * (2 * itemsize + 12) + d_logits

    def d_unembedding(blocks: Blocks) -> int:
        return forward(blocks) + blocks.vocabulary * summed * (2 * itemsize + 8)

    # Two products at a time: blocks of half of what one has, or the compiler takes minutes.
    many, few = Blocks(1024 if mosaic.wide_matrix_unit() else 512, 512, 256), Blocks(512, 512, 256)
    heuristic, least = Config(many, few, few), Blocks(32, LANES, LANES)
    wanted = mosaic.wanted("linear_kl", dtype, heuristic)
    costs = (forward, d_hidden, d_unembedding)
    return Config(
        *(mosaic.fit(blocks, least, (num, size), cost) for blocks, cost in zip(wanted, costs))
    )


def config_of(of_p: Any, of_q: Any, static: KLStatic) -> Config:
    size = of_p[1].shape[0 if static.transposed_p else 1]
    shape = (*of_p[0].shape, of_q[0].shape[1], size)
    return choose_blocks(shape, of_p[0].dtype, static.config, static.sides)


def clean(array: Array, exists: Array) -> Array:
    return jnp.where(exists, array, jnp.zeros_like(array))


def strip_of(ref: Any, transposed: bool, first: int, width: int, limit: Any) -> Array:
    """Weights of a strip in their own layout, 0 beyond the end."""
    columns = pl.ds(first, width)
    strip = ref[(columns, slice(None)) if transposed else (slice(None), columns)]
    if limit is None:
        return strip
    places = lax.broadcasted_iota(jnp.int32, strip.shape, 0 if transposed else 1)
    return clean(strip, places < limit - first)


def logits_of(
    rows: list[Array], weights: Any, transposed: Any, first: int, width: int, limit: Any
) -> list[Array]:
    """[rows, width] float32 of both sides; -inf beyond the end of the vocabulary."""
    both = []
    for x, ref, flipped in zip(rows, weights, transposed):
        strip = strip_of(ref, flipped, first, width, limit)
        logits = mosaic.product(x, strip, 1, 1 if flipped else 0)
        if limit is not None:
            columns = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
            logits = jnp.where(columns < limit - first, logits, -jnp.inf)
        both.append(logits)
    return both
