"""One list of shapes for tests and benchmarks: rows N, width D, vocabulary V."""

from typing import NamedTuple


class Shape(NamedTuple):
    rows: int
    width: int
    vocabulary: int


# Vocabularies around the width of a vector register, one that is odd and one that is long.
SMALL = (*(Shape(7, 16, size) for size in (1, 127, 128, 129)), Shape(33, 24, 1000))
LARGE = (Shape(3, 16, 50257), Shape(2, 16, 129920))  # GPT-2's, and 128 · 1015
TALL = (Shape(300, 128, 640), Shape(1030, 8, 1030))  # more rows than a block, and not a multiple

# What memory and time are measured with: `GOAL` is that of the goals on CPUs.
GOAL = Shape(4096, 512, 32768)
QUICK = Shape(512, 128, 4096)
MODELS = {
    "SmolLM2-135M": Shape(4096, 576, 49152),
    "Qwen2.5-0.5B": Shape(4096, 896, 151936),
    "Llama-3-8B": Shape(8192, 4096, 128256),
}
