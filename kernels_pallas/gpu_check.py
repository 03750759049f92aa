"""Checks the GPU kernels on the card that is here: values against float64, then speed.

`python -m kernels_pallas.gpu_check [--only=REGEX]` takes a few minutes. It prints one line per
kernel with the largest error of values and gradients, then TFLOP/s or GB/s with the share of what
the vendor promises. Exit 0 if all values are right, 1 if not, 2 if there is no GPU.
"""

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kernels_pallas.categorical_kl import pallas_gpu as categorical_kl
from kernels_pallas.gpu.cards import Card, current
from kernels_pallas.linear_kl import pallas_gpu as linear_kl
from kernels_pallas.linear_token_stats import pallas_gpu as linear_token_stats
from kernels_pallas.linear_token_stats.shapes import Shape
from kernels_pallas.records import KLStatic, Static
from kernels_pallas.search import seconds
from kernels_pallas.token_stats import pallas_gpu as token_stats

# Errors allowed, over the largest number of the array: of float32 sums; and for gradients of
# bfloat16, whose logit gradients and results are rounded to 8 bits.
TOLERANCE = {"float32": (1e-5, 1e-5), "bfloat16": (1e-5, 1e-2)}


def softmax64(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and their logarithms in float64."""
    z = z - z.max(axis=1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return np.exp(log_p), log_p


def error(ours: Array, right: np.ndarray) -> float:
    """Largest difference over the largest number; infinite if anything is not finite."""
    ours64 = np.asarray(ours, np.float64)
    if not np.isfinite(ours64).all():
        return float("inf")
    return float(np.abs(ours64 - right).max() / max(np.abs(right).max(), 1e-30))


class Case(NamedTuple):
    """A kernel on random arrays: [rows, width] times [width, vocabulary]."""

    kernel: str
    dtype: str
    transposed: bool = False

    def name(self) -> str:
        layout = (" [V,D]" if self.transposed else " [D,V]") if "linear" in self.kernel else ""
        return f"{self.kernel} {self.dtype}{layout}"


CASES = tuple(
    Case(kernel, dtype, transposed)
    for kernel in ("linear_token_stats", "linear_kl", "token_stats", "categorical_kl")
    for dtype in ("bfloat16", "float32")
    for transposed in ((False, True) if "linear" in kernel else (False,))
)


class Setup(NamedTuple):
    """Functions of a case, its arrays, and the work that forward and backward do."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]  # of the arrays, the result of forward and two cotangents [N]
    arrays: tuple[Array, ...]
    flops: tuple[float, float]
    bytes: tuple[float, float]


def setup(case: Case, shape: Shape, config: Any = None, interpret: bool = False) -> Setup:
    num_rows, width, vocabulary = shape
    keys = jax.random.split(jax.random.key(0), 5)

    def draw(key: Array, *shape: int, scale: float = 1.0) -> Array:
        return (jax.random.normal(key, shape) * scale).astype(case.dtype)

    def unembedding(key: Array) -> Array:
        return draw(
            key, *((vocabulary, width) if case.transposed else (width, vocabulary)), scale=scale
        )

    scale = 2.0 / width**0.5
    tokens = jax.random.randint(keys[4], (num_rows,), 0, vocabulary)
    product = 2.0 * num_rows * width * vocabulary
    logits_bytes = float(num_rows * vocabulary * jnp.dtype(case.dtype).itemsize)
    static = Static(case.transposed, None, True, config, interpret)
    kl_static = KLStatic(case.transposed, case.transposed, config, interpret)
    one = jnp.float32(1.0)

    if case.kernel == "linear_token_stats":

        def backward(h, w, stats, g, e):
            peak, log_sum, _, entropy = stats
            coefficients = (-g - e * entropy, -e, g)
            return linear_token_stats.backward(
                h, w, tokens, None, None, one, peak, log_sum, *coefficients, static
            )[:2]

        return Setup(
            lambda h, w: linear_token_stats.forward(h, w, tokens, None, None, one, static),
            backward,
            (draw(keys[0], num_rows, width), unembedding(keys[1])),
            (product, 3 * product),
            (0.0, 0.0),
        )
    if case.kernel == "token_stats":

        def backward_logits(z, stats, g, e):
            peak, log_sum, _, entropy = stats
            coefficients = (-g - e * entropy, -e, g)
            return (token_stats.backward(z, tokens, one, peak, log_sum, *coefficients, static),)

        return Setup(
            lambda z: token_stats.forward(z, tokens, one, static),
            backward_logits,
            (draw(keys[0], num_rows, vocabulary, scale=2.0),),
            (0.0, 0.0),
            (logits_bytes, 2 * logits_bytes),
        )
    if case.kernel == "linear_kl":

        def flat_backward(h_p, w_p, h_q, w_q, stats, g, e):
            del e
            d_p, d_q = linear_kl.backward((h_p, w_p), (h_q, w_q), stats, g, kl_static)
            return *d_p, *d_q

        return Setup(
            lambda h_p, w_p, h_q, w_q: linear_kl.forward((h_p, w_p), (h_q, w_q), kl_static),
            flat_backward,
            (
                *(draw(keys[0], num_rows, width), unembedding(keys[1])),
                *(draw(keys[2], num_rows, width), unembedding(keys[3])),
            ),
            (2 * product, 6 * product),
            (0.0, 0.0),
        )
    return Setup(
        lambda z_p, z_q: categorical_kl.forward(z_p, z_q, kl_static),
        lambda z_p, z_q, stats, g, e: categorical_kl.backward(z_p, z_q, stats, g, kl_static),
        tuple(draw(key, num_rows, vocabulary, scale=2.0) for key in keys[:2]),
        (0.0, 0.0),
        (2 * logits_bytes, 4 * logits_bytes),
    )


def right_answers(case: Case, arrays: tuple[Array, ...], tokens: np.ndarray, g: Any, e: Any) -> Any:
    """What forward and backward should give, in float64."""
    arrays64 = [np.asarray(array, np.float64) for array in arrays]
    g, e = np.asarray(g, np.float64)[:, None], np.asarray(e, np.float64)[:, None]
    pairs = [arrays64[i : i + 2] for i in range(0, len(arrays64), 2)]
    if "linear" in case.kernel:
        weights = [w.T if case.transposed else w for _, w in pairs]
        logits = [h @ w for (h, _), w in zip(pairs, weights)]
    else:
        logits = arrays64
    p, log_p = softmax64(logits[0])
    if case.kernel.endswith("kl"):
        q, log_q = softmax64(logits[1])
        kl = (p * (log_p - log_q)).sum(axis=1)
        values = [kl]
        d_logits = [g * p * (log_p - log_q - kl[:, None]), g * (q - p)]
    else:
        entropy = -(p * log_p).sum(axis=1, keepdims=True)
        values = [np.take_along_axis(log_p, tokens[:, None], 1)[:, 0], entropy[:, 0]]
        one_hot = np.arange(p.shape[1])[None, :] == tokens[:, None]
        d_logits = [g * (one_hot - p) - e * p * (log_p + entropy)]
    if "linear" not in case.kernel:
        return values, d_logits
    gradients = []
    for (h, _), w, d_z in zip(pairs, weights, d_logits):
        d_w = h.T @ d_z
        gradients += [d_z @ w.T, d_w.T if case.transposed else d_w]
    return values, gradients


def check(
    case: Case, shape: Shape | None = None, config: Any = None, interpret: bool = False
) -> tuple[float, float]:
    """Errors of values and gradients on a ragged shape; every other case fits those of Mosaic."""
    shape = shape or (Shape(391, 520, 5001) if case.transposed else Shape(392, 576, 5056))
    num_rows, vocabulary = shape.rows, shape.vocabulary
    made = setup(case, shape, config, interpret)
    keys = jax.random.split(jax.random.key(1), 2)
    g, e = (jax.random.normal(key, (num_rows,)) for key in keys)
    stats = jax.jit(made.forward)(*made.arrays)
    gradients = jax.jit(made.backward)(*made.arrays, stats, g, e)
    tokens = jax.random.randint(
        jax.random.split(jax.random.key(0), 5)[4], (num_rows,), 0, vocabulary
    )
    values, right = right_answers(case, made.arrays, np.asarray(tokens), g, e)
    if case.kernel.endswith("kl"):
        ours = [stats.kl]
    else:
        ours = [(stats.chosen - stats.peak) - stats.log_sum, stats.entropy]
    return (
        max(error(a, b) for a, b in zip(ours, values)),
        max(error(a, b) for a, b in zip(gradients, right)),
    )


def speed(case: Case, card: Card) -> list[str]:
    """One line for forward and one for backward, at a size where the card can be busy."""
    num_rows = 2048 if case.dtype == "float32" else 8192
    made = setup(case, Shape(num_rows, 4096, 131072))
    g = jnp.full(num_rows, 1.0 / num_rows)
    stats = jax.jit(made.forward)(*made.arrays)
    lines = []
    for i, (name, function, arguments) in enumerate(
        (
            ("forward", made.forward, made.arrays),
            ("backward", made.backward, (*made.arrays, stats, g, g)),
        )
    ):
        time_taken = seconds(function, *arguments)
        if made.flops[i]:
            rate, unit, limit = made.flops[i] / time_taken, "TFLOP/s", card.bf16_flops
            if case.dtype == "float32":
                limit = card.float32_flops
            rate, limit = rate / 1e12, limit / 1e12
        else:
            rate, unit, limit = made.bytes[i] / time_taken / 1e9, "GB/s", card.bandwidth / 1e9
        lines.append(
            f"{case.name():40s} {name:8s} {1e3 * time_taken:8.2f} ms {rate:8.0f} {unit}"
            f" {rate / limit:5.0%} of {limit:.0f}"
        )
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels_pallas.gpu_check", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    only = parser.parse_args(arguments).only
    if jax.default_backend() != "gpu":
        print(
            f"gpu_check: there is no GPU here; JAX runs on {jax.default_backend()}", file=sys.stderr
        )
        return 2
    card = current()
    print(f"{jax.devices()[0].device_kind}, limits of {card.name}")
    cases = [case for case in CASES if re.search(only, case.name())]
    wrong = 0
    for case in cases:
        errors = check(case)
        right = all(e <= limit for e, limit in zip(errors, TOLERANCE[case.dtype]))
        wrong += not right
        verdict = "ok" if right else "WRONG"
        print(
            f"{case.name():40s} values {errors[0]:.1e} gradients {errors[1]:.1e} {verdict}",
            flush=True,
        )
    for case in cases:
        print(*speed(case, card), sep="\n", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
