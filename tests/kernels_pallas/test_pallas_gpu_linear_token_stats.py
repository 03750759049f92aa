"""linear_token_stats on GPUs, interpreted: values and gradients against float64."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas.gpu_blocks import GpuBlocks, Tiles
from kernels_pallas.linear_token_stats import pallas_gpu
from kernels_pallas.records import Static

from . import gpu_reference as right

TILES = Tiles(16, 32, 16, 4, 2)
TRITON = GpuBlocks(TILES, TILES, TILES, splits=3, chunk=64, mosaic=False)
HOPPER = TRITON._replace(splits=2, chunk=256, mosaic=True)


class Case(NamedTuple):
    blocks: GpuBlocks
    dtype: Any
    shape: tuple[int, int, int]
    transposed: bool
    softcap: float | None
    masked: bool
    biased: bool


CASES = [
    Case(TRITON, jnp.float32, (37, 40, 70), False, None, False, False),
    Case(TRITON, jnp.float32, (37, 40, 129), True, 5.0, True, True),
    Case(TRITON, jnp.bfloat16, (16, 16, 1), False, 5.0, False, False),
    Case(TRITON, jnp.bfloat16, (37, 19, 127), True, None, True, False),
    Case(TRITON, jnp.float16, (37, 40, 64), False, None, True, True),
]
if pallas_gpu.HAS_MOSAIC:
    CASES += [
        Case(HOPPER, jnp.bfloat16, (300, 72, 328), False, None, True, True),
        Case(HOPPER, jnp.bfloat16, (100, 136, 600), True, 5.0, False, False),
    ]


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: Case):
    num_rows, width, vocabulary = case.shape
    draw = np.random.default_rng(0)
    hidden = jnp.asarray(draw.normal(size=(num_rows, width)), case.dtype)
    unembedding = jnp.asarray(2 * draw.normal(size=(width, vocabulary)) / width**0.5, case.dtype)
    tokens = draw.integers(0, vocabulary, num_rows)
    tokens[-2:] = vocabulary + 3, -1
    mask = np.ones(num_rows, bool)
    if case.masked:
        mask = draw.random(num_rows) < 0.5
        mask[:16] = False
        mask[-128:-80] = False
    bias = np.zeros(vocabulary, np.float32)
    if case.biased:
        bias = draw.normal(size=vocabulary).astype(np.float32)
        bias[::3], bias[32:64] = -np.inf, -np.inf
    # Means over tokens, so small that float16 could not hold them.
    a, b, c = (np.where(mask, draw.normal(size=num_rows), 0) * 1e-6 for _ in range(3))

    hidden64 = np.where(mask[:, None], np.asarray(hidden, np.float64), 0.0)
    x = hidden64 @ np.asarray(unembedding, np.float64) + bias
    bent = x if case.softcap is None else case.softcap * np.tanh(x / case.softcap)
    z, slope = 1.3 * bent, 1.3 * (1.0 if case.softcap is None else 1 - (bent / case.softcap) ** 2)
    d_x = right.logits_gradient(z, tokens, a, b, c) * slope * mask[:, None]

    inputs = (
        jnp.where(mask[:, None], hidden, jnp.nan),
        unembedding.T if case.transposed else unembedding,
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(mask) if case.masked else None,
        jnp.asarray(bias) if case.biased else None,
        jnp.float32(1.3),
    )
    static = Static(case.transposed, case.softcap, True, case.blocks, True)
    stats = jax.jit(partial(pallas_gpu.forward, static=static))(*inputs)
    ours = (stats.peak + stats.log_sum, stats.chosen, stats.entropy)
    for value, expected in zip(ours, right.token_stats(z, tokens)):
        np.testing.assert_allclose(value, np.where(mask, expected, 0), rtol=1e-5, atol=1e-5)

    coefficients = (jnp.asarray(x, jnp.float32) for x in (a, b, c))
    d_hidden, d_unembedding, d_bias = jax.jit(partial(pallas_gpu.backward, static=static))(
        *inputs, stats.peak, stats.log_sum, *coefficients
    )
    tolerance = {jnp.float32: 1e-5, jnp.float16: 1e-3, jnp.bfloat16: 8e-3}[case.dtype]
    scale = 1e6
    right.assert_close(
        np.asarray(d_hidden, np.float64) * scale,
        d_x @ np.asarray(unembedding, np.float64).T * scale,
        tolerance,
    )
    assert not np.asarray(d_hidden)[~mask].any()
    d_unembedding = np.asarray(d_unembedding, np.float64)
    d_unembedding = d_unembedding.T if case.transposed else d_unembedding
    right.assert_close(d_unembedding * scale, hidden64.T @ d_x * scale, tolerance)
    if case.biased:
        right.assert_close(np.asarray(d_bias, np.float64) * scale, d_x.sum(axis=0) * scale, 1e-5)
    else:
        assert d_bias is None


def test_rows_without_a_finite_logit():
    """Their log_sum is -inf and their gradient 0; a row far below 0 is exact beside them."""
    hidden = jnp.asarray([[1.0, 0.0], [0.0, 1.0]])
    unembedding = jnp.asarray([[-jnp.inf] * 40, list(np.linspace(-1e4, -1e4 + 1, 40))]).T
    unembedding = jnp.where(jnp.isinf(unembedding), -3e38, unembedding)
    static = Static(True, None, True, TRITON, True)
    bias = jnp.full(40, -jnp.inf)
    inputs = (hidden, unembedding, jnp.zeros(2, jnp.int32), None, bias, jnp.float32(1.0))
    stats = pallas_gpu.forward(*inputs, static)
    assert np.isneginf(stats.log_sum).all()
    assert np.isfinite(stats.peak).all()
    zeros = jnp.zeros(2)
    gradients = pallas_gpu.backward(*inputs, stats.peak, jnp.zeros(2), zeros, None, zeros, static)
    assert not any(np.asarray(gradient).any() for gradient in gradients)

    stats = pallas_gpu.forward(*inputs[:4], None, jnp.float32(1.0), static)
    z = np.asarray(unembedding[:, 1], np.float64)[None, :]
    log_prob = right.softmax(z)[1][0, 0]
    ours = (stats.chosen - stats.peak) - stats.log_sum
    np.testing.assert_allclose(ours[1], log_prob, rtol=1e-5)
    np.testing.assert_allclose(
        stats.entropy[1], right.token_stats(z, np.zeros(1, int))[2], rtol=1e-5
    )
