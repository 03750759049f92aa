"""token_stats and categorical_kl on GPUs, interpreted: values and gradients against float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas.categorical_kl import pallas_gpu as categorical_kl
from kernels_pallas.gpu_blocks import GpuBlocks, Tiles
from kernels_pallas.records import KLStatic, Static
from kernels_pallas.token_stats import pallas_gpu as token_stats

from . import gpu_reference as right

TILES = Tiles(4, 32, 0, 4, 2)
BLOCKS = GpuBlocks(TILES, TILES, TILES, splits=2)
KINDS = ("flat", "peaked", "hugely negative", "forbidden")


def logits_of(kind: str, num_rows: int, vocabulary: int, dtype, seed: int):
    z = np.random.default_rng(seed).normal(size=(num_rows, vocabulary))
    if kind == "peaked":
        z[np.arange(num_rows), np.arange(num_rows) % vocabulary] += 60.0
    if kind == "hugely negative":
        z -= 1e4
    if kind == "forbidden":
        z[:, 1::2] = -np.inf
        z[:, 32:64] = -np.inf
    return jnp.asarray(z, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(1, jnp.float32), (129, jnp.float32), (70, jnp.bfloat16)]
)
def test_token_stats(kind, vocabulary, dtype):
    num_rows = 7
    logits = logits_of(kind, num_rows, vocabulary, dtype, 0)
    tokens = np.arange(num_rows) * 2 % vocabulary
    static = Static(False, None, True, BLOCKS, True)
    scale = jnp.float32(0.7)
    stats = token_stats.forward(logits, jnp.asarray(tokens, jnp.int32), scale, static)
    z = np.asarray(logits, np.float64) * np.float64(scale)
    logsumexp, chosen, entropy = right.token_stats(z, tokens)
    # Log-probabilities, not their parts: near -1e4 only the differences have five digits.
    ours = (stats.chosen - stats.peak) - stats.log_sum
    tolerance = {"rtol": 1e-5, "atol": 1e-3 if kind == "hugely negative" else 1e-5}
    np.testing.assert_allclose(ours, chosen - logsumexp, **tolerance)
    np.testing.assert_allclose(stats.entropy, entropy, **tolerance)

    a, b, c = np.random.default_rng(1).normal(size=(3, num_rows))
    d_logits = token_stats.backward(
        logits, jnp.asarray(tokens, jnp.int32), scale, stats.peak, stats.log_sum,
        *(jnp.asarray(x, jnp.float32) for x in (a, b, c)), static,
    )  # fmt: skip
    expected = right.logits_gradient(z, tokens, a, b, c) * 0.7
    coarse = 1e-3 if kind == "hugely negative" else 2e-5
    right.assert_close(d_logits, expected, coarse if dtype == jnp.float32 else 4e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocabulary", "dtype"), [(129, jnp.float32), (70, jnp.bfloat16)])
def test_categorical_kl(kind, vocabulary, dtype):
    p, q = (logits_of(kind, 7, vocabulary, dtype, seed) for seed in (0, 1))
    static = KLStatic(False, False, BLOCKS, True)
    stats = categorical_kl.forward(p, q, static)
    z_p, z_q = (np.asarray(z, np.float64) for z in (p, q))
    np.testing.assert_allclose(stats.kl, right.kl(z_p, z_q), rtol=1e-5, atol=2e-5)
    g = np.random.default_rng(1).normal(size=7)
    gradients = categorical_kl.backward(p, q, stats, jnp.asarray(g, jnp.float32), static)
    for ours, expected in zip(gradients, right.kl_gradients(z_p, z_q, g)):
        right.assert_close(ours, expected, 2e-5 if dtype == jnp.float32 else 4e-3)


def test_divergence_is_infinite_where_only_q_is_zero():
    p = jnp.zeros((2, 40))
    q = p.at[0, 35].set(-jnp.inf)
    kl = categorical_kl.forward(p, q, KLStatic(False, False, BLOCKS, True)).kl
    np.testing.assert_array_equal(kl, [np.inf, 0.0])
