"""The implementations under test: one more is one more row."""

import inspect
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas
from kernels_pallas import Blocks
from kernels_pallas.tpu import mosaic
from kernels_pallas.tpu.mosaic import Config

LINEAR = "linear_token_stats", "linear_kl"
ON_LOGITS = "token_stats", "categorical_kl"
STATIC = "softcap", "entropy", "vocab_axis", "implementation", "config", "interpret", "kind"
TPU_BLOCKS = Config(*[mosaic.Blocks(32, 256, 128)] * 3)


class Row(NamedTuple):
    implementation: str
    kernels: tuple[str, ...] = LINEAR + ON_LOGITS
    sizes: tuple[str, ...] = ("small", "large")
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    options: Mapping[str, Any] = MappingProxyType({})
    slow: tuple[str, ...] = ()  # kernels or dtypes whose tests are marked so

    def marks(self, *of):
        return [pytest.mark.slow] if set(self.slow) & set(of) else []


ROWS = {
    "reference": Row("reference", sizes=("small",), dtypes=("float32",)),
    # Vocabularies of 127, 128 and 129 are a short block, a whole one, and one with a rest of 1.
    "xla in small blocks": Row("xla", LINEAR, ("small",), options={"config": Blocks(4, 128)}),
    "xla in its own blocks": Row("xla", LINEAR, ("large",)),
    "xla": Row("xla", ON_LOGITS),
    "pallas_tpu in small blocks": Row(
        "pallas_tpu",
        LINEAR,
        ("small",),
        ("float32",),
        {"config": TPU_BLOCKS, "interpret": True},
        slow=("linear_kl",),
    ),
    "pallas_tpu": Row(
        "pallas_tpu", ON_LOGITS, ("small",), options={"interpret": True}, slow=("bfloat16",)
    ),
}


def implementations(kernel, sizes="small", dtypes=False):
    """Decorates a test that takes `run`: the kernel, jitted, with that implementation.

    With `dtypes`, the test takes `dtype` as well.
    """
    names = [name for name, row in ROWS.items() if kernel in row.kernels and sizes in row.sizes]
    if not dtypes:
        runs = [pytest.param(_run(kernel, x), id=x, marks=ROWS[x].marks(kernel)) for x in names]
        return pytest.mark.parametrize("run", runs)
    pairs = [
        pytest.param(_run(kernel, x), dtype, id=f"{x}, {dtype}", marks=ROWS[x].marks(kernel, dtype))
        for x in names
        for dtype in ROWS[x].dtypes
    ]
    return pytest.mark.parametrize(("run", "dtype"), pairs)


@cache
def _run(kernel, name):
    return jitted_kernel(kernel, implementation=ROWS[name].implementation, **ROWS[name].options)


def jitted_kernel(kernel, **fixed):
    """The kernel with some arguments already given."""
    function = getattr(kernels_pallas, kernel)
    static = [name for name in STATIC if name in inspect.signature(function).parameters]
    jitted = jax.jit(function, static_argnames=static)
    return lambda *arrays, **options: jitted(*arrays, **fixed, **options)


@cache
def graded(run, **static):
    """(arrays, tokens, weights, options) -> gradients of Σ weights·stats by the arrays, and stats.

    arrays are hidden, unembedding and bias, or logits alone; options are traced. One function for
    all tests, so that what has the same shapes is compiled once.
    """

    def total(arrays, tokens, weights, options):
        if len(arrays) == 3:
            options = options | {"bias": arrays[2]}
        stats = run(*arrays[:2], tokens, **options, **static)
        pairs = [(w, x) for w, x in zip(weights, stats) if x is not None]
        return sum(jnp.sum(w * x) for w, x in pairs), stats

    return in_numpy(jax.jit(jax.grad(total, has_aux=True)))


def in_numpy(function):
    """Results as NumPy arrays: what a test does with them is not compiled."""
    return lambda *arguments: jax.tree.map(np.asarray, function(*arguments))
