"""The implementations under test: one more is one more row."""

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import pytest

import kernels_pallas
from kernels_pallas import Blocks


class Row(NamedTuple):
    implementation: str
    options: Mapping[str, Any] = MappingProxyType({})
    kernels: tuple[str, ...] = ("linear_token_stats", "linear_kl", "token_stats", "categorical_kl")


ROWS = {
    "reference": Row("reference"),
    "xla": Row("xla"),
    "xla in small blocks": Row(
        "xla", {"config": Blocks(4, 48)}, ("linear_token_stats", "linear_kl")
    ),
}


def implementations(kernel):
    """Decorates a test that takes `run`: the kernel, jitted, with that implementation."""
    rows = {name: row for name, row in ROWS.items() if kernel in row.kernels}
    return pytest.mark.parametrize("run", [_run(kernel, row) for row in rows.values()], ids=[*rows])


def _run(kernel, row):
    function = getattr(kernels_pallas, kernel)
    static = ("softcap", "entropy", "vocab_axis", "implementation", "config", "interpret", "kind")
    names = [name for name in static if name in inspect.signature(function).parameters]
    jitted = jax.jit(function, static_argnames=names)
    fixed = {"implementation": row.implementation, **row.options}
    return lambda *arrays, **options: jitted(*arrays, **fixed, **options)
