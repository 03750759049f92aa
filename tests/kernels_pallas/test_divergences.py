"""KL divergences and statistics of given logits against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas.linear_token_stats.shapes import LARGE, SMALL, Shape

from . import exact
from .table import implementations
from .test_linear_token_stats import DTYPES, rounded

INF = np.inf
FEW = Shape(7, 16, 129)


def pair(shape, width, dtype, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(shape.rows, width)) * scale
    matrix = rng.normal(size=(width, shape.vocabulary)) / np.sqrt(width)
    return rounded(hidden, dtype), rounded(matrix, dtype)


def check_linear_kl(run, shape, dtype, transposed=(False, False), kind="forward", scale=1.0):
    pairs = pair(shape, shape.width, dtype, 0, scale), pair(shape, shape.width + 8, dtype, 1)
    given = [
        (jnp.asarray(h, dtype), jnp.asarray(w.T if flip else w, dtype))
        for (h, w), flip in zip(pairs, transposed)
    ]
    z = [h @ w for h, w in pairs]
    if kind == "forward":
        kl, dz_p, dz_q = exact.divergence(*z)
    else:
        kl, dz_q, dz_p = exact.divergence(*z[::-1])
    got = run(*given, kind=kind)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, kl, rtol=1e-5, atol=1e-6 + 3e-7 * np.abs(z).max())
    g = rounded(np.random.default_rng(2).normal(size=shape.rows), "float32")
    grads = jax.grad(lambda p, q: jnp.sum(jnp.float32(g) * run(p, q, kind=kind)), (0, 1))(*given)
    log = [exact.log_softmax(x)[0] for x in z]
    terms = sum(np.exp(x) for x in log) * (1 + np.abs(log[0] - log[1]) + np.abs(kl)[:, None])
    allowed = 2e-5 * max(1, np.abs(z).max() / 100) + (2**-8 if dtype == "bfloat16" else 0)
    for (h, w), dz, (d_h, d_w), flip in zip(pairs, (dz_p, dz_q), grads, transposed):
        dz, size = dz * g[:, None], np.abs(terms * g[:, None])
        d_w = d_w.T if flip else d_w
        for x, y, bound in (
            (d_h, dz @ w.T, size @ np.abs(w).T),
            (d_w, h.T @ dz, np.abs(h).T @ size),
        ):
            error = np.abs(np.asarray(x.astype(jnp.float32), np.float64) - y)
            assert (error <= allowed * bound + 1e-12).all(), (error / bound).max()


@implementations("linear_kl")
@DTYPES
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_linear_kl(run, shape, dtype):
    check_linear_kl(run, shape, dtype)


@implementations("linear_kl")
def test_linear_kl_in_all_layouts_and_both_kinds(run):
    for transposed in ((True, False), (False, True), (True, True)):
        check_linear_kl(run, FEW, "float32", transposed)
    check_linear_kl(run, FEW, "float32", (True, False), "reverse", scale=10.0)


@pytest.mark.slow
@implementations("linear_kl")
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_linear_kl_of_large_vocabularies(run, shape):
    check_linear_kl(run, shape, "float32")


def logits_of(shape, dtype, seed, kind="usual"):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(shape.rows, shape.vocabulary)) * {"peaked": 50, "flat": 1e-3}.get(kind, 2)
    return rounded(z - (1e4 if kind == "hugely negative" else 0), dtype)


@implementations("categorical_kl")
@DTYPES
@pytest.mark.parametrize("kind", ["usual", "peaked", "flat", "hugely negative"])
def test_categorical_kl(run, dtype, kind):
    z = [logits_of(Shape(33, 0, 1000), dtype, seed, kind) for seed in (0, 1)]
    kl, dz_p, dz_q = exact.divergence(*z)
    given = [jnp.asarray(x, dtype) for x in z]
    np.testing.assert_allclose(run(*given), kl, rtol=1e-5, atol=1e-6)
    grads = jax.grad(lambda p, q: jnp.sum(run(p, q)), (0, 1))(*given)
    for got, want in zip(grads, (dz_p, dz_q)):
        got = np.asarray(got.astype(jnp.float32))
        np.testing.assert_allclose(got, want, rtol=1e-4 if dtype == "float32" else 2**-7, atol=2e-6)


@implementations("categorical_kl")
def test_divergence_where_tokens_are_impossible(run):
    p = np.array([[0, 0, -INF, -INF], [0, -INF, 0, 0], [-INF] * 4, [0, 1, 2, 3], [-INF] * 4])
    q = np.array([[0, 1, -INF, 5], [-INF, 0, 0, 0], [0, 1, 2, 3], [-INF] * 4, [-INF] * 4])
    # Row 0: p = ½, ½; q = softmax(0, 1, 5) of these and a token that p excludes:
    # -log 2 - ½(0 + 1) + log(1 + e + e⁵).
    want = [-np.log(2) - 0.5 + np.log(1 + np.e + np.exp(5)), INF, 0, INF, 0]
    np.testing.assert_allclose(run(np.float32(p), np.float32(q)), want, rtol=1e-6)
    d_p, d_q = jax.grad(lambda p, q: jnp.sum(run(p, q)), (0, 1))(jnp.float32(p), jnp.float32(q))
    np.testing.assert_array_equal(d_p[1:], 0.0)
    np.testing.assert_array_equal(d_q[1:], 0.0)
    # log p - log q - KL = ±½, and q - p.
    np.testing.assert_allclose(d_p[0], [0.25, -0.25, 0, 0], atol=1e-6)
    other = np.exp([0, 1, 5]) / np.exp([0, 1, 5]).sum()
    np.testing.assert_allclose(d_q[0], [other[0] - 0.5, other[1] - 0.5, 0, other[2]], atol=1e-6)


@implementations("categorical_kl")
def test_a_token_that_is_all_but_impossible_has_a_finite_divergence(run):
    p, q = jnp.zeros((1, 2)), jnp.array([[0.0, -2e4]])
    np.testing.assert_allclose(run(p, q), [1e4 - np.log(2)], rtol=1e-6)
    slope = jax.grad(lambda p: run(p, q)[0])(p)  # ½ (±1e4)
    np.testing.assert_allclose(slope, [[-5e3, 5e3]], rtol=1e-6)


@implementations("token_stats")
@DTYPES
@pytest.mark.parametrize("kind", ["usual", "peaked", "flat", "hugely negative"])
def test_token_stats(run, dtype, kind):
    for shape, temperature in ((Shape(33, 0, 1000), 0.5), (Shape(5, 0, 1), 1.0)):
        z, rng = logits_of(shape, dtype, 0, kind), np.random.default_rng(1)
        tokens = rng.integers(0, shape.vocabulary, shape.rows)
        given = jnp.asarray(z, dtype)
        stats = run(given, tokens, temperature=temperature)
        want = exact.stats_of(z / temperature, tokens)
        for x, y in zip(stats, want):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
        g = exact.Stats(*rng.normal(size=(3, shape.rows)))
        weights = exact.Stats(*(jnp.float32(x) for x in g))

        def weighted(x, weights=weights, tokens=tokens, temperature=temperature):
            stats = run(x, tokens, temperature=temperature)
            return sum(jnp.sum(a * b) for a, b in zip(weights, stats))

        slope = jax.grad(weighted)(given)
        want = exact.slope_of_stats(z / temperature, tokens, g) / temperature
        close = (
            {"rtol": 1e-4, "atol": 5e-6} if dtype == "float32" else {"rtol": 2**-7, "atol": 1e-5}
        )
        np.testing.assert_allclose(slope.astype(jnp.float32), want, **close)


@implementations("token_stats")
def test_token_stats_of_nothing(run):
    logits = jnp.array([[-INF, -INF], [0.0, -INF], [0.0, 0.0]])
    tokens = np.array([0, 1, 2])
    stats = run(logits, tokens)
    np.testing.assert_array_equal(stats.log_probs, [-INF] * 3)
    np.testing.assert_allclose(stats.entropy, [0, 0, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(stats.logsumexp, [-INF, 0, np.log(2)], rtol=1e-6)
    slope = jax.grad(lambda x: sum(jnp.sum(y) for y in run(x, tokens)))(logits)
    np.testing.assert_allclose(slope, [[0, 0], [1, 0], [0.5, 0.5]], atol=1e-6)
