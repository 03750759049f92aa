"""Tries block sizes of the GPU kernels on the card that is here, and keeps the fastest.

`python -m kernels_pallas.autotune [--only=REGEX]` times each candidate for each kernel and type,
and writes the best to the file that the heuristic's override reads (`gpu_blocks.settings_file`).
Exit 2 if there is no GPU.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from kernels_pallas.gpu_blocks import GpuBlocks, Tiles, form_for, heuristic, measured, settings_file
from kernels_pallas.gpu_cards import Card, current
from kernels_pallas.gpu_check import CASES, Case, seconds, setup
from kernels_pallas.linear_token_stats.shapes import Shape

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
        """Infinite where the tiles do not fit the card."""
        nonlocal stats
        made = setup(case, shape, blocks, **options)
        try:
            if not backward:
                return seconds(made.forward, *made.arrays, repeats=3)
            stats = jax.jit(made.forward)(*made.arrays) if stats is None else stats
            return seconds(made.backward, *made.arrays, stats, g, g, repeats=3)
        except Exception as problem:
            if "memory" not in str(problem).lower() and "resource" not in str(problem).lower():
                raise
            return float("inf")

    own = form_for(blocks, options.get("interpret", False))
    if linear and case.dtype == "bfloat16" and own != "triton":
        forms = [blocks._replace(form=form) for form in (own, "triton")]
        blocks = min(forms, key=lambda form: time_of(form, backward=False))
    parts = ("forward", "gradient", "product") if linear else ("forward", "gradient")
    mosaic = blocks.form not in (None, "triton")  # whose tiles are fixed
    for part in ("product",) if mosaic else parts:
        trials = [
            blocks._replace(**{part: tiles})
            for tiles in tries(getattr(blocks, part), linear, case.dtype)
        ]
        blocks = min(trials, key=lambda trial: time_of(trial, backward=part != "forward"))
    return blocks


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels_pallas.autotune", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    only = parser.parse_args(arguments).only
    if jax.default_backend() != "gpu":
        print(
            f"autotune: there is no GPU here; JAX runs on {jax.default_backend()}", file=sys.stderr
        )
        return 2
    card, found = current(), dict(measured())
    for case in CASES:
        if case.transposed or not re.search(only, case.name()):
            continue
        blocks = best(case, card)
        found[f"{case.kernel}/{card.name}/{case.dtype}"] = blocks
        print(f"{case.name()}: {blocks}", flush=True)
        file = settings_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
