"""Which blocks `autotune` tries on a TPU."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from kernels_pallas import linear_kl, linear_token_stats
from kernels_pallas.linear_kl.pallas_tpu_tile import choose_blocks as blocks_of_kl
from kernels_pallas.linear_token_stats.pallas_tpu_tile import Problem, choose_blocks
from kernels_pallas.linear_token_stats.shapes import Shape
from kernels_pallas.search import one_by_one, seconds_or_never
from kernels_pallas.tpu import mosaic
from kernels_pallas.tpu.mosaic import LANES, Blocks, Config

KERNELS = "linear_token_stats", "linear_kl"
DTYPES = "bfloat16", "float32"
SHAPE = Shape(4096, 2048, 32768)


def candidates(blocks: Blocks) -> Iterator[Blocks]:
    """The heuristic's blocks and those of half and twice its sizes."""
    yield blocks
    for sizes in product(*((n, n // 2, n * 2) for n in blocks)):
        other = Blocks(*sizes)
        whole = not any(n % LANES for n in other)
        if other != blocks and whole and other.strip <= other.vocabulary:
            yield other


def heuristic(kernel: str, dtype: str, shape: Shape) -> Config:
    num, width, size = shape
    if kernel == "linear_kl":
        return blocks_of_kl((num, width, width, size), dtype)
    return choose_blocks(Problem(num, width, size, dtype))


def best(
    kernel: str,
    dtype: str,
    shape: Shape = SHAPE,
    tries: Callable[[Blocks], Iterable[Blocks]] = candidates,
    **options: Any,
) -> Config:
    """The fastest blocks of the three kernels; options are those of the public function."""
    num, width, size = shape
    keys = jax.random.split(jax.random.key(0), 5)

    def draw(key: Any, *sizes: int) -> Any:
        return jax.random.normal(key, sizes).astype(dtype) / width**0.25

    sides = range(2 if kernel == "linear_kl" else 1)
    hiddens = [draw(keys[2 * side], num, width) for side in sides]
    matrices = [draw(keys[2 * side + 1], width, size) for side in sides]
    tokens = jax.random.randint(keys[4], (num,), 0, size)

    def total(hiddens: Any, matrices: Any, config: Config) -> Any:
        given = {"config": config, "implementation": "pallas_tpu", **options}
        if kernel == "linear_kl":
            of_p, of_q = zip(hiddens, matrices)
            return jnp.sum(linear_kl(of_p, of_q, **given))
        stats = linear_token_stats(hiddens[0], matrices[0], tokens, **given)
        return jnp.sum(sum(jnp.asarray(each) for each in stats))

    def time_of(config: Config, field: str) -> float:
        """Of the kernel and what it needs: the gradient that is not asked for is not computed."""
        of = {"d_hidden": 0, "d_unembedding": 1}
        function = jax.grad(total, of[field]) if field in of else total
        return seconds_or_never(lambda h, w: function(h, w, config), hiddens, matrices)

    blocks = heuristic(kernel, dtype, shape)
    fields = {name: list(tries(each)) for name, each in blocks._asdict().items()}
    return one_by_one(blocks, fields, time_of)


def search(only: str) -> Iterator[tuple[str, Config]]:
    """The best blocks for each kernel and dtype whose name matches, with their settings key."""
    for kernel, dtype in product(KERNELS, DTYPES):
        fits = None not in heuristic(kernel, dtype, SHAPE)
        if fits and re.search(only, f"{kernel} {dtype}"):
            yield mosaic.settings_key(kernel, dtype), best(kernel, dtype)
