"""Block sizes of the GPU kernels: a small heuristic per card, or what `autotune` measured there."""

from typing import Any, NamedTuple

import jax

from kernels_pallas import settings
from kernels_pallas.gpu.cards import MAJOR_AMPERE, MAJOR_BLACKWELL, MAJOR_HOPPER, Card, current


class Tiles(NamedTuple):
    """One kernel: a program makes tiles of rows x columns, `depth` of the inner axis at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


class GpuBlocks(NamedTuple):
    """All kernels of an operation."""

    forward: Tiles
    gradient: Tiles  # of the logits, a chunk of the vocabulary at a time
    product: Tiles  # of that chunk with the unembedding or the hidden states
    splits: int | None = None  # parts of the vocabulary in the forward kernel; None: fill the card
    chunk: int | None = None  # columns whose gradient exists at a time; None: see `chunk_columns`
    form: str | None = None  # one of FORMS, where shapes allow; None: the card's own


CHUNK_BYTES = 64 << 20
FORMS = ("triton", "hopper", "blackwell")  # the last two are Mosaic GPU
# As of 0.12; before, much of what these kernels use was missing or named otherwise.
HAS_MOSAIC = jax.__version_info__ >= (0, 12)


def blocks_for(operation: str, dtype: str, card: Card | None = None) -> GpuBlocks:
    """The measured blocks of this card, else the heuristic."""
    card = card or current()
    if found := settings.measured().get(f"{operation}/{card.name}/{dtype}"):
        forward, gradient, product, *rest = found
        return GpuBlocks(Tiles(*forward), Tiles(*gradient), Tiles(*product), *rest)
    return heuristic(operation, dtype, card)


KINDS = {
    "whole": lambda number: True,
    "a power of two": lambda number: number & (number - 1) == 0,
    "a multiple of 16": lambda number: number % 16 == 0,
}


def _require(name: str, number: Any, kind: str, least: int) -> None:
    if not isinstance(number, int) or number < least or not KINDS[kind](number):
        raise ValueError(f"{name} must be {kind} and {least} at least, got {number!r}")


def blocks_of(config: Any, operation: str, dtype: str) -> GpuBlocks:
    """The caller's blocks, else those of the card, checked."""
    blocks = blocks_for(operation, dtype) if config is None else config
    if not isinstance(blocks, GpuBlocks):
        raise ValueError(f"config must be GpuBlocks on GPUs, got {type(blocks).__name__}")
    linear = operation.startswith("linear")
    for kernel in ("forward", "gradient", "product"):
        tiles = getattr(blocks, kernel)
        if not isinstance(tiles, Tiles):
            raise ValueError(f"{kernel} must be Tiles, got {type(tiles).__name__}")
        for name in ("rows", "columns", "depth") if linear else ("rows", "columns"):
            size = getattr(tiles, name)
            _require(f"{name} of {kernel}", size, "a power of two", 16 if linear else 1)
        _require(f"warps of {kernel}", tiles.warps, "a power of two", 1)
        _require(f"stages of {kernel}", tiles.stages, "whole", 1)
    if blocks.splits is not None:
        _require("splits", blocks.splits, "whole", 1)
    if blocks.chunk is not None:
        _require("chunk", blocks.chunk, "a multiple of 16", 16)
    forms = FORMS if linear else FORMS[:1]
    if blocks.form not in (None, *forms):
        raise ValueError(f"form of {operation} must be one of {forms}, got {blocks.form!r}")
    return blocks


def form_for(blocks: GpuBlocks, interpret: Any) -> str:
    """Which form of the kernels runs: interpreted, any; else Triton or the card's own."""
    card = current()
    own = {MAJOR_HOPPER: "hopper", MAJOR_BLACKWELL: "blackwell"}.get(card.capability[0], "triton")
    form = blocks.form or ("triton" if interpret or not HAS_MOSAIC else own)
    if form != "triton" and not HAS_MOSAIC:
        raise ValueError(f"form {form!r} needs jax 0.12, this is {jax.__version__}")
    if form not in ("triton", own) and not interpret:
        raise ValueError(f"form {form!r} cannot run on {card.name}, whose own is {own!r}")
    return form


def heuristic(operation: str, dtype: str, card: Card) -> GpuBlocks:
    """The largest tiles that keep every value in registers on the card."""
    if not operation.startswith("linear"):
        few = Tiles(8, 512, 0, 4, 3)  # bound by memory: long pieces of few rows
        return GpuBlocks(few, few, few)
    major = card.capability[0]
    if dtype == "float32":
        # Ampere has the factors' parts in registers, the others in shared memory.
        small = Tiles(64, 64, 16 if major == MAJOR_AMPERE else 32, 4, 2)
        return GpuBlocks(small, small, small)
    wide = Tiles(128, 128, 64, 8, 2 if major == MAJOR_AMPERE else 3)
    tiles = wide
    if operation == "linear_kl" and major != MAJOR_HOPPER:
        tiles = wide._replace(columns=64)  # two products at a time
    stages = 4 if major == MAJOR_BLACKWELL else wide.stages
    return GpuBlocks(tiles, tiles, wide._replace(stages=stages))


def splits_for(row_blocks: int, vocab_blocks: int, card: Card) -> int:
    """Parts of the vocabulary, such that rows · parts fill the card evenly.

    Each part has 4 blocks at least, and the smallest number within 3% of the best is taken.
    """
    most = max(1, min(vocab_blocks // 4, -(-16 * card.multiprocessors // row_blocks)))

    def use(splits: int) -> float:
        """Busy share of the multiprocessors over all waves, each split as long as its longest."""
        waves = -(-row_blocks * splits // card.multiprocessors)
        longest = -(-vocab_blocks // splits)
        return row_blocks * vocab_blocks / (waves * longest * card.multiprocessors)

    best = max(use(splits) for splits in range(1, most + 1))
    return next(splits for splits in range(1, most + 1) if use(splits) >= 0.97 * best)


def chunk_columns(num_rows: int, vocabulary: int, itemsize: int, multiple: int) -> int:
    """Columns of a chunk: equal chunks of CHUNK_BYTES at most, but of 1024 columns at least."""
    most = max(1024, CHUNK_BYTES // (num_rows * itemsize))
    chunks = -(-vocabulary // most)
    return -(-vocabulary // (chunks * multiple)) * multiple
