"""Which tiles `autotune` tries on a GPU."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from kernels_pallas.gpu.blocks import GpuBlocks, Tiles, form_for, heuristic
from kernels_pallas.gpu.cards import Card, current
from kernels_pallas.gpu_check import CASES, Case, setup
from kernels_pallas.linear_token_stats.shapes import Shape
from kernels_pallas.search import one_by_one, seconds_or_never

Tries = Callable[[Tiles, bool, str], Iterable[Tiles]]


def candidates(tiles: Tiles, linear: bool, dtype: str) -> Iterator[Tiles]:
    """The heuristic's tiles and their neighbours."""
    if not linear:
        sizes = product((1, 2, 4, 8), (512, 1024, 2048), (0,), (4, 8), (2, 3))
    elif dtype == "float32":
        sizes = product((32, 64, 128), (64, 128), (32,), (4, 8), (2, 3))
    else:
        sizes = product((64, 128), (64, 128, 256), (32, 64), (4, 8), (2, 3, 4))
    yield tiles
    yield from (Tiles(*size) for size in sizes if Tiles(*size) != tiles)


def best(
    case: Case, card: Card, shape: Shape | None = None, tries: Tries = candidates, **options: Any
) -> GpuBlocks:
    """The fastest tiles of each kernel of a case, one kernel after the other.

    `tries` gives what there is to try; further options are those of `gpu_check.setup`.
    """
    linear = "linear" in case.kernel
    blocks = heuristic(case.kernel, case.dtype, card)
    shape = shape or (Shape(2048, 2048, 32768) if linear else Shape(4096, 8, 65536))
    g = jnp.full(shape.rows, 1.0 / shape.rows)
    stats: Any = None

    def time_of(blocks: GpuBlocks, backward: bool) -> float:
        nonlocal stats
        made = setup(case, shape, blocks, **options)
        if not backward:
            return seconds_or_never(made.forward, *made.arrays)
        stats = jax.jit(made.forward)(*made.arrays) if stats is None else stats
        return seconds_or_never(made.backward, *made.arrays, stats, g, g)

    own = form_for(blocks, options.get("interpret", False))
    if linear and case.dtype == "bfloat16" and own != "triton":
        forms = [blocks._replace(form=form) for form in (own, "triton")]
        blocks = min(forms, key=lambda form: time_of(form, backward=False))
    parts = ("forward", "gradient", "product") if linear else ("forward", "gradient")
    mosaic = blocks.form not in (None, "triton")  # whose tiles are fixed
    parts = ("product",) if mosaic else parts
    return one_by_one(
        blocks,
        {part: list(tries(getattr(blocks, part), linear, case.dtype)) for part in parts},
        lambda trial, part: time_of(trial, backward=part != "forward"),
    )


def search(only: str) -> Iterator[tuple[str, GpuBlocks]]:
    """The best blocks for each case whose name matches, with their key in the settings."""
    card = current()
    for case in CASES:
        if not case.transposed and re.search(only, case.name()):
            yield f"{case.kernel}/{card.name}/{case.dtype}", best(case, card)
