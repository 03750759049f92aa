"""KL divergences and statistics of given logits against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas.linear_token_stats.shapes import LARGE, SMALL, Shape

from . import exact
from .table import graded, implementations, in_numpy
from .test_linear_token_stats import on_a_grid, rounded

INF = np.inf
FEW = Shape(7, 16, 129)
# Of logits, which have no width; the larger ones need several blocks.
SOME_LOGITS = Shape(5, 0, 1), Shape(33, 0, 1000)
MANY_LOGITS = Shape(514, 0, 4100), *LARGE
KINDS = "usual", "peaked", "flat", "hugely negative"


def pair(shape, width, dtype, seed, kind):
    """hidden and unembedding; as in `test_linear_token_stats.problem`."""
    rng = np.random.default_rng(seed)
    sizes = (shape.rows, width), (width, shape.vocabulary)
    if kind == "usual":
        hidden, matrix = (rng.normal(size=size) for size in sizes)
        return rounded(hidden, dtype), rounded(matrix / np.sqrt(width), dtype)
    hidden, matrix = on_a_grid(rng, sizes[0], 4, dtype), on_a_grid(rng, sizes[1], 8, dtype) / 4
    if kind == "hugely negative":
        hidden[:, 0], matrix[0] = 128.0, -80.0
    return hidden * {"peaked": 16, "flat": 2.0**-10}.get(kind, 1), matrix


def check_linear_kl(
    run, shape, dtype, kinds=KINDS, transposed=(False, False), of="forward", apart=8
):
    """Values and all four gradients; one program for all kinds of logits.

    The hidden states of q are wider by `apart`.
    """

    def total(pairs, weights):
        kl = run(*pairs, kind=of)
        return jnp.sum(weights * kl), kl

    slopes_of = in_numpy(jax.jit(jax.grad(total, has_aux=True)))
    g = np.float32(np.random.default_rng(2).normal(size=shape.rows))
    for kind in kinds:
        widths = shape.width, shape.width + apart
        pairs = [pair(shape, width, dtype, i, kind) for i, width in enumerate(widths)]
        given = [
            (h.astype(jnp.dtype(dtype)), (w.T if flip else w).astype(jnp.dtype(dtype)))
            for (h, w), flip in zip(pairs, transposed)
        ]
        slopes, kl = slopes_of(given, g)

        z = [h @ w for h, w in pairs]
        turn = 1 if of == "forward" else -1
        want, *dz = exact.divergence(*z[::turn])
        assert kl.dtype == jnp.float32
        tolerance = 1e-6 + (3e-7 * np.abs(z).max() if kind == "usual" else 0)
        np.testing.assert_allclose(kl, want, rtol=1e-5, atol=tolerance, err_msg=kind)
        terms = exact.terms_of_divergence(*z[::turn])
        relative = 1e-5 + (2**-8 if dtype == "bfloat16" else 0)
        for i, ((h, w), (d_h, d_w)) in enumerate(zip(pairs, slopes)):
            slope, size = (np.float64(g)[:, None] * x[::turn][i] for x in (dz, terms))
            size = np.abs(size)
            exact.assert_within(d_h, slope @ w.T, size @ np.abs(w).T, relative)
            d_w = d_w.T if transposed[i] else d_w
            exact.assert_within(d_w, h.T @ slope, np.abs(h).T @ size, relative)


@implementations("linear_kl", dtypes=True)
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_linear_kl(run, shape, dtype):
    check_linear_kl(run, shape, dtype, transposed=(dtype == "bfloat16", dtype == "float32"))


@implementations("linear_kl")
def test_linear_kl_in_reverse(run):
    check_linear_kl(run, FEW, "float32", ["usual"], of="reverse")


@pytest.mark.slow
@implementations("linear_kl", "large", dtypes=True)
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_linear_kl_of_large_vocabularies(run, shape, dtype):
    check_linear_kl(run, shape, dtype)


def equations(jaxpr):
    """All of a program, those of its loops and kernels too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=is_program):
            if is_program(inner):
                yield from equations(getattr(inner, "jaxpr", inner))


def is_program(x):
    return hasattr(x, "eqns")


def check_fixed_sides(of_both, arguments, work):
    """The gradients of one side are those that it has beside the other's, for less work."""

    def slopes_of(sides):
        def total(*arguments):
            given = (x if i in sides else jax.lax.stop_gradient(x) for i, x in enumerate(arguments))
            return jnp.sum(of_both(*given))

        return jax.grad(total, (0, 1))

    amounts = {}
    wants = jax.jit(slopes_of((0, 1)))(*arguments)
    for sides in ((0, 1), (0,), (1,)):
        grad = jax.jit(slopes_of(sides))
        amounts[sides] = sum(work(x) for x in equations(jax.make_jaxpr(grad)(*arguments).jaxpr))
        if len(sides) == 1:
            got, want = (jax.tree.leaves(x[sides[0]]) for x in (grad(*arguments), wants))
            for x, y in zip(got, want):
                np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)
            for x in jax.tree.leaves(grad(*arguments)[1 - sides[0]]):
                np.testing.assert_array_equal(x, 0)
    assert 0 < amounts[0,] < amounts[0, 1]
    assert 0 < amounts[1,] < amounts[0, 1]


@implementations("linear_kl")
def test_a_model_that_is_held_fixed_costs_no_products(run):
    pairs = [pair(FEW, FEW.width + 8 * i, "float32", i, "usual") for i in (0, 1)]
    pairs = [tuple(np.float32(x) for x in each) for each in pairs]
    check_fixed_sides(run, pairs, lambda equation: equation.primitive.name == "dot_general")


@implementations("categorical_kl")
def test_logits_that_are_held_fixed_have_no_gradient_in_memory(run):
    shape = Shape(5, 0, 300)
    logits = [np.float32(logits_of(shape, "float32", i, "usual")) for i in (0, 1)]

    def gradients(equation):
        if equation.primitive.name not in ("pallas_call", "dynamic_update_slice", "mul"):
            return 0
        return sum(x.aval.shape == (shape.rows, shape.vocabulary) for x in equation.outvars)

    check_fixed_sides(run, logits, gradients)


def logits_of(shape, dtype, seed, kind):
    scale = {"peaked": 50, "flat": 1e-3}.get(kind, 2)
    z = np.random.default_rng(seed).normal(size=(shape.rows, shape.vocabulary)) * scale
    return rounded(z - (1e4 if kind == "hugely negative" else 0), dtype)


@implementations("categorical_kl", dtypes=True)
@pytest.mark.parametrize("shape", SOME_LOGITS, ids=str)
def test_categorical_kl(run, shape, dtype):
    check_categorical_kl(run, shape, dtype)


@pytest.mark.slow
@implementations("categorical_kl", "large", dtypes=True)
@pytest.mark.parametrize("shape", MANY_LOGITS, ids=str)
def test_categorical_kl_in_several_blocks(run, shape, dtype):
    check_categorical_kl(run, shape, dtype)


def check_categorical_kl(run, shape, dtype):
    def total(given, weights):
        kl = run(*given)
        return jnp.sum(weights * kl), kl

    slopes_of = in_numpy(jax.jit(jax.grad(total, has_aux=True)))
    g = np.float32(np.random.default_rng(2).normal(size=shape.rows))
    for kind in KINDS:
        z = [logits_of(shape, dtype, seed, kind) for seed in (0, 1)]
        slopes, got = slopes_of([x.astype(jnp.dtype(dtype)) for x in z], g)
        kl, *dz = exact.divergence(*z)
        np.testing.assert_allclose(got, kl, rtol=1e-5, atol=1e-6, err_msg=kind)
        for slope, want, terms in zip(slopes, dz, exact.terms_of_divergence(*z)):
            size = np.abs(np.float64(g)[:, None] * terms)
            exact.assert_within(slope, np.float64(g)[:, None] * want, size)


@implementations("categorical_kl")
def test_divergence_where_tokens_are_impossible(run):
    p = np.array([[0, 0, -INF, -INF], [0, -INF, 0, 0], [-INF] * 4, [0, 1, 2, 3], [-INF] * 4])
    q = np.array([[0, 1, -INF, 5], [-INF, 0, 0, 0], [0, 1, 2, 3], [-INF] * 4, [-INF] * 4])
    # Row 0: p = ½, ½; q = softmax(0, 1, 5) of these and a token that p excludes:
    # -log 2 - ½(0 + 1) + log(1 + e + e⁵).
    want = [-np.log(2) - 0.5 + np.log(1 + np.e + np.exp(5)), INF, 0, INF, 0]
    np.testing.assert_allclose(run(np.float32(p), np.float32(q)), want, rtol=1e-6)
    slopes = jax.grad(lambda p, q: jnp.sum(run(p, q)), (0, 1))
    d_p, d_q = slopes(jnp.float32(p), jnp.float32(q))
    for high in slopes(jnp.float32(p[1:] + 500), jnp.float32(q[1:] + 300)):
        np.testing.assert_array_equal(high, 0.0)
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


@implementations("token_stats", dtypes=True)
@pytest.mark.parametrize("shape", SOME_LOGITS, ids=str)
def test_token_stats(run, shape, dtype):
    check_token_stats(run, shape, dtype)


@pytest.mark.slow
@implementations("token_stats", "large", dtypes=True)
@pytest.mark.parametrize("shape", MANY_LOGITS, ids=str)
def test_token_stats_in_several_blocks(run, shape, dtype):
    check_token_stats(run, shape, dtype)


def check_token_stats(run, shape, dtype):
    rng = np.random.default_rng(1)
    g = exact.Stats(*rounded(rng.normal(size=(3, shape.rows)), "float32"))
    tokens = rng.integers(0, shape.vocabulary, shape.rows)
    for kind, temperature in (*((kind, 1.0) for kind in KINDS), ("usual", 0.1), ("usual", 10.0)):
        given = logits_of(shape, dtype, 0, kind)
        z = given / temperature
        arrays, weights = (given.astype(jnp.dtype(dtype)),), [np.float32(x) for x in g]
        (slope,), stats = graded(run)(arrays, tokens, weights, {"temperature": temperature})
        tolerance = 1e-6 + (0 if temperature == 1 else 3e-7 * np.abs(z).max())
        for got, want in zip(stats, exact.stats_of(z, tokens)):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=tolerance, err_msg=kind)
        want = exact.slope_of_stats(z, tokens, g) / temperature
        exact.assert_within(slope, want, exact.terms_of_stats(z, tokens, g) / temperature)


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
