"""Values and gradients of every implementation against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas.linear_token_stats.shapes import LARGE, SMALL, TALL, Shape

from . import exact
from .table import implementations

INF, NAN = np.inf, np.nan
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
FEW = Shape(7, 16, 129)


def rounded(x, dtype):
    """What is left of x in a dtype, in float64."""
    return np.asarray(jnp.asarray(x, dtype).astype(jnp.float32), np.float64)


def on_a_grid(rng, size, steps, dtype):
    """Numbers of few bits: sums of their products are exact in float32."""
    return rounded(np.round(rng.normal(size=size) * steps) / steps, dtype)


def problem(shape, dtype="float32", kind="usual", seed=0, **options):
    """All kinds but "usual" have logits that float32 holds exactly, whatever sums them."""
    rng = np.random.default_rng(seed)
    sizes = (shape.rows, shape.width), (shape.width, shape.vocabulary), shape.vocabulary
    tokens = rng.integers(0, shape.vocabulary, shape.rows)
    if kind == "usual":
        hidden, matrix, bias = (rng.normal(size=size) for size in sizes)
        matrix = rounded(matrix / np.sqrt(shape.width), dtype)
        hidden, bias = rounded(hidden, dtype), rounded(bias, "float32")
    else:
        hidden, bias = (on_a_grid(rng, sizes[i], 4, dtype) for i in (0, 2))
        matrix = on_a_grid(rng, sizes[1], 8, dtype) / 4
        if kind == "peaked":
            hidden *= 64
        elif kind == "flat":
            hidden, bias = hidden / 1024, bias / 1024
        else:
            bias -= 1e4
    return exact.Problem(hidden, matrix, bias, **options), tokens


def options_of(made):
    given = {"bias": np.float32(made.bias), "temperature": made.temperature}
    return given | ({} if made.softcap is None else {"softcap": made.softcap})


KINDS = (
    *(("usual", temperature) for temperature in (1.0, 0.1, 10.0)),
    *((kind, 1.0) for kind in ("peaked", "flat", "hugely negative")),
)


def check(run, shape, dtype="float32", kinds=KINDS, transposed=False, softcap=None):
    """Values and every gradient; one program for all kinds of logits."""

    def total(arrays, tokens, weights, temperature):
        hidden, matrix, bias = arrays
        given = {} if softcap is None else {"softcap": softcap}
        stats = run(hidden, matrix, tokens, bias=bias, temperature=temperature, **given)
        return sum(jnp.sum(x * y) for x, y in zip(weights, stats)), stats

    graded = jax.jit(jax.grad(total, has_aux=True))
    weights = np.float32(np.random.default_rng(9).normal(size=(3, shape.rows)))
    g = exact.Stats(*np.float64(weights))
    for kind, temperature in kinds:
        made, tokens = problem(shape, dtype, kind, softcap=softcap, temperature=temperature)
        z = made.logits()
        matrix = made.unembedding.T if transposed else made.unembedding
        arrays = jnp.asarray(made.hidden, dtype), jnp.asarray(matrix, dtype), jnp.float32(made.bias)
        slopes, stats = graded(arrays, tokens, weights, temperature)

        assert {x.dtype for x in stats} == {jnp.dtype("float32")}
        tolerance = 1e-6 + (3e-7 * np.abs(z).max() if kind == "usual" else 0)
        for got, want in zip(stats, exact.stats_of(z, tokens)):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=tolerance, err_msg=kind)

        assert [x.dtype for x in slopes] == [x.dtype for x in arrays]
        wants = made.pull(exact.slope_of_stats(z, tokens, g))
        sizes = made.sizes(exact.terms_of_stats(z, tokens, g))
        for i, (got, want, size) in enumerate(zip(slopes, wants, sizes)):
            # Each dz is rounded to bfloat16 before it is multiplied with bfloat16.
            relative = 1e-5 + (2**-9 if dtype == "bfloat16" and i < 2 else 0)
            got = got.T if i == 1 and transposed else got
            exact.assert_within(got, want, size, relative)


def test_the_formulas_are_those_of_finite_differences():
    made, tokens = problem(Shape(2, 3, 4), softcap=2.0, temperature=0.7)
    g = exact.Stats(np.array([1.0, -2]), np.array([0.5, 1]), np.array([-1.0, 3]))

    def value(hidden):
        stats = exact.stats_of(made._replace(hidden=hidden).logits(), tokens)
        return sum((x * y).sum() for x, y in zip(g, stats))

    slopes = np.zeros((2, 3))
    for at in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[at] = 1e-6
        slopes[at] = (value(made.hidden + step) - value(made.hidden - step)) / 2e-6
    by_formula = made.pull(exact.slope_of_stats(made.logits(), tokens, g))[0]
    np.testing.assert_allclose(by_formula, slopes, rtol=1e-6, atol=1e-8)


@implementations("linear_token_stats")
@DTYPES
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_values_and_gradients(run, shape, dtype):
    check(run, shape, dtype)


@pytest.mark.slow
@implementations("linear_token_stats")
@DTYPES
@pytest.mark.parametrize("shape", [*LARGE, *TALL], ids=str)
def test_values_and_gradients_of_large_shapes(run, shape, dtype):
    check(run, shape, dtype, transposed=shape in TALL)


@implementations("linear_token_stats")
@pytest.mark.parametrize("transposed", [False, True])
def test_softcap_in_both_layouts(run, transposed):
    check(run, FEW, kinds=[("usual", 0.7), ("peaked", 10.0)], transposed=transposed, softcap=2.0)


@implementations("linear_token_stats")
def test_nothing_is_lost_near_minus_ten_thousand(run):
    # Logits -10000, -10000.5, -10001 and so on are exact in float32; their logsumexp is not.
    z = -1e4 - 0.5 * np.arange(8.0)[None].repeat(8, 0)
    hidden, unembedding = np.ones((8, 1), np.float32), np.float32(z[:1])
    tokens = np.arange(8)
    want = exact.stats_of(z, tokens)
    stats = run(hidden, unembedding, tokens)
    np.testing.assert_allclose(stats.log_probs, want.log_probs, rtol=1e-6)
    np.testing.assert_allclose(stats.entropy, want.entropy, rtol=2e-6)
    np.testing.assert_allclose(stats.logsumexp, want.logsumexp, rtol=1e-6)
    g = exact.Stats(np.ones(8), np.ones(8), np.zeros(8))
    dz = exact.slope_of_stats(z, tokens, g)

    def total(bias):
        stats = run(hidden, unembedding, tokens, bias=bias)
        return jnp.sum(stats.log_probs + stats.entropy)

    np.testing.assert_allclose(jax.grad(total)(jnp.zeros(8)), dz.sum(0), rtol=1e-5, atol=1e-5)


@implementations("linear_token_stats")
def test_rows_that_are_masked_do_not_matter(run):
    made, tokens = problem(FEW)
    for mask in ([1, 0, 1, 1, 0, 0, 1], [0] * 7, [1] * 7, [0] * 6 + [1]):
        kept = np.array(mask) != 0
        hidden = jnp.float32(np.where(kept[:, None], made.hidden, NAN))
        wrong = np.where(kept, tokens, 10**9)
        matrix = jnp.float32(made.unembedding)

        def total(hidden, matrix, tokens, mask):
            stats = run(hidden, matrix, tokens, mask=mask)
            return sum(jnp.sum(jnp.sin(x)) for x in stats), stats

        d, stats = jax.grad(total, (0, 1), has_aux=True)(hidden, matrix, wrong, np.array(mask))
        for x in stats:
            np.testing.assert_array_equal(np.asarray(x)[~kept], 0.0)
        np.testing.assert_array_equal(np.asarray(d[0])[~kept], 0.0)
        if not kept.any():
            np.testing.assert_array_equal(d[1], 0.0)
            continue
        ones = np.ones(kept.sum(), int)
        alone = jax.grad(total, (0, 1), has_aux=True)(hidden[kept], matrix, tokens[kept], ones)
        np.testing.assert_allclose(np.asarray(d[0])[kept], alone[0][0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(d[1], alone[0][1], rtol=1e-5, atol=1e-6)


@implementations("linear_token_stats")
def test_forbidden_tokens_and_whole_blocks_of_them(run):
    made, _ = problem(FEW)
    allowed = np.zeros(129, bool)
    allowed[[1, 60, 128]] = True
    bias = np.where(allowed, made.bias, -INF)
    tokens = np.array([1, 60, 128, 0, 60, 1, 5])
    z = made.logits()[:, allowed]
    places = np.array([0, 1, 2, 0, 1, 0, 0])
    want = exact.stats_of(z, places)
    possible = np.array([1, 1, 1, 0, 1, 1, 0]) != 0

    def total(hidden, bias):
        stats = run(hidden, made.unembedding.astype(np.float32), tokens, bias=bias)
        weights = np.float32([1, 1, 1, 1, 1, 1, 1])
        return jnp.sum(jnp.where(possible, stats.log_probs, 0) + weights * stats.entropy), stats

    bias = jnp.float32(bias)
    d, stats = jax.grad(total, (0, 1), has_aux=True)(jnp.float32(made.hidden), bias)
    np.testing.assert_allclose(
        stats.log_probs, np.where(possible, want.log_probs, -INF), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(stats.entropy, want.entropy, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(stats.logsumexp, want.logsumexp, rtol=1e-5, atol=1e-5)
    dz = exact.slope_of_stats(z, places, exact.Stats(1.0 * possible, np.ones(7), np.zeros(7)))
    few = exact.Problem(made.hidden, made.unembedding[:, allowed], made.bias[allowed])
    np.testing.assert_allclose(d[0], few.pull(dz)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d[1][allowed], dz.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(d[1])[~allowed], 0.0)


@implementations("linear_token_stats")
def test_rows_without_a_token_and_tokens_outside_the_vocabulary(run):
    made, tokens = problem(FEW)
    hidden, matrix = jnp.float32(made.hidden), jnp.float32(made.unembedding)

    def total(hidden, matrix, tokens, bias):
        stats = run(hidden, matrix, tokens, bias=bias)
        return sum(jnp.sum(x) for x in stats), stats

    none = jnp.full(129, -INF)
    d, stats = jax.grad(total, (0, 1, 3), has_aux=True)(hidden, matrix, tokens, none)
    np.testing.assert_array_equal(stats.log_probs, np.full(7, -INF))
    np.testing.assert_array_equal(stats.logsumexp, np.full(7, -INF))
    np.testing.assert_array_equal(stats.entropy, np.zeros(7))
    for x in d:
        np.testing.assert_array_equal(x, np.zeros(x.shape))

    outside = np.array([-1, 129, -100, 10**9, 2**31 - 1, -(2**31), 5])
    d, stats = jax.grad(total, (0, 1, 3), has_aux=True)(hidden, matrix, outside, made.bias)
    want = exact.stats_of(made.logits(), np.full(7, 5))
    np.testing.assert_array_equal(stats.log_probs[:6], np.full(6, -INF))
    np.testing.assert_allclose(stats.log_probs[6], want.log_probs[6], rtol=1e-5)
    np.testing.assert_allclose(stats.entropy, want.entropy, rtol=1e-5)
    g = exact.Stats(np.array([0, 0, 0, 0, 0, 0, 1.0]), np.ones(7), np.ones(7))
    dz = exact.slope_of_stats(made.logits(), np.full(7, 5), g)
    for x, y in zip(d, made.pull(dz)):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@implementations("linear_token_stats")
def test_without_entropy_and_without_rows(run):
    made, tokens = problem(FEW)
    hidden, matrix = jnp.float32(made.hidden), jnp.float32(made.unembedding)
    stats = run(hidden, matrix, tokens, entropy=False)
    assert stats.entropy is None
    np.testing.assert_allclose(stats.log_probs, run(hidden, matrix, tokens).log_probs, rtol=1e-6)
    slope = jax.grad(lambda x: jnp.sum(run(x, matrix, tokens, entropy=False).log_probs))(hidden)
    whole = jax.grad(lambda x: jnp.sum(run(x, matrix, tokens).log_probs))(hidden)
    np.testing.assert_allclose(slope, whole, rtol=1e-5, atol=1e-6)
    assert run(hidden[:0], matrix, tokens[:0]).log_probs.shape == (0,)


@implementations("linear_token_stats")
def test_kernel_03_weights_of_any_sign_reach_the_gradient(run):
    # d/dz Σ w (-log p) = w (softmax - onehot). Row 0: 2·(.66524, .24473, .09003) - 2·(1, 0, 0);
    # row 1 has weight 0; row 2: -.5·(.09003, .66524, .24473) + .5·(0, 1, 0).
    logits = jnp.array([[1.0, 0.0, -1.0], [0.5, 0.5, 0.0], [0.0, 2.0, 1.0]])
    weights = np.array([2.0, 0.0, -0.5], np.float32)

    def loss(logits, mask):
        stats = run(logits, jnp.eye(3), np.array([0, 2, 1]), mask=mask)
        return -jnp.sum(weights * stats.log_probs)

    want = np.array([[-0.6695181, 0.4894569, 0.1800611], [0, 0, 0],
                     [-0.0450153, 0.1673795, -0.1223642]])  # fmt: skip
    np.testing.assert_allclose(jax.grad(loss)(logits, np.ones(3)), want, rtol=1e-5, atol=1e-6)
    want[2] = 0
    masked = jax.grad(loss)(logits, np.array([1, 1, 0]))
    np.testing.assert_allclose(masked, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(masked[2], 0.0)


def test_xla_keeps_no_logits():
    import kernels_pallas

    def loss(hidden, matrix, tokens):
        stats = kernels_pallas.linear_token_stats(hidden, matrix, tokens, implementation="xla")
        return jnp.sum(stats.log_probs + stats.entropy)

    shapes = (jnp.zeros((2048, 8)), jnp.zeros((8, 16384)), jnp.zeros(2048, int))
    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2048 * 16384 * 4 / 4
