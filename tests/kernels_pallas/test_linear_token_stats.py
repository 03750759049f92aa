"""Values and gradients of every implementation against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas import linear_token_stats
from kernels_pallas.linear_token_stats.shapes import LARGE, SMALL, TALL, Shape

from . import exact
from .table import graded, implementations

INF, NAN = np.inf, np.nan
FEW = Shape(7, 16, 129)


def rounded(x, dtype):
    """What is left of x in a dtype, in float64."""
    return np.asarray(x).astype(jnp.dtype(dtype)).astype(np.float64)


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


KINDS = (
    *(("usual", temperature) for temperature in (1.0, 0.1, 10.0)),
    *((kind, 1.0) for kind in ("peaked", "flat", "hugely negative")),
)


def check(run, shape, dtype="float32", kinds=KINDS, transposed=False, softcap=None):
    """Values and every gradient; one program for all kinds of logits."""
    program = graded(run) if softcap is None else graded(run, softcap=softcap)
    g = exact.Stats(*rounded(np.random.default_rng(9).normal(size=(3, shape.rows)), "float32"))
    for kind, temperature in kinds:
        made, tokens = problem(shape, dtype, kind, softcap=softcap, temperature=temperature)
        z = made.logits()
        matrix = made.unembedding.T if transposed else made.unembedding
        arrays = [x.astype(jnp.dtype(dtype)) for x in (made.hidden, matrix)]
        arrays.append(np.float32(made.bias))
        weights = [np.float32(x) for x in g]
        slopes, stats = program(tuple(arrays), tokens, weights, {"temperature": temperature})

        assert {x.dtype for x in stats} == {jnp.dtype("float32")}
        tolerance = 1e-6 + (3e-7 * np.abs(z).max() if kind == "usual" else 0)
        for got, want in zip(stats, exact.stats_of(z, tokens)):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=tolerance, err_msg=kind)

        assert [x.dtype for x in slopes] == [x.dtype for x in arrays]
        wants = made.pull(exact.slope_of_stats(z, tokens, g))
        sizes = made.sizes(exact.terms_of_stats(z, tokens, g))
        for i, (got, want, size) in enumerate(zip(slopes, wants, sizes)):
            # Each dz is rounded to bfloat16 before it is multiplied with bfloat16.
            relative = 1e-5 + (2**-8 if dtype == "bfloat16" and i < 2 else 0)
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


@implementations("linear_token_stats", dtypes=True)
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_values_and_gradients(run, shape, dtype):
    check(run, shape, dtype, transposed=dtype == "bfloat16")


@pytest.mark.slow
@implementations("linear_token_stats", "large", dtypes=True)
@pytest.mark.parametrize("shape", [*LARGE, *TALL], ids=str)
def test_values_and_gradients_of_large_shapes(run, shape, dtype):
    check(run, shape, dtype, KINDS[:1] if shape in TALL else KINDS, transposed=shape in TALL)


@implementations("linear_token_stats")
def test_softcap(run):
    check(run, FEW, kinds=[("usual", 0.7), ("peaked", 10.0)], transposed=True, softcap=2.0)


def few():
    """A problem of the shape FEW, and its arrays."""
    made, tokens = problem(FEW)
    return made, tokens, [np.float32(x) for x in made[:3]]


def weights_of(log_probs, entropy, logsumexp, rows=FEW.rows):
    return exact.Stats(*(np.broadcast_to(x, rows) for x in (log_probs, entropy, logsumexp)))


def run_few(run, arrays, tokens, g, mask=None):
    """Gradients and statistics; the programs are those of `check`."""
    options = {"temperature": 1.0} if mask is None else {"temperature": 1.0, "mask": mask}
    return graded(run)(tuple(arrays), tokens, [np.float32(x) for x in g], options)


@implementations("linear_token_stats")
def test_nothing_is_lost_near_minus_ten_thousand(run):
    # Logits -10000, -10000.5, -10001 and so on are exact in float32; their logsumexp is not.
    z = -1e4 - 0.5 * np.arange(129.0)[None].repeat(7, 0)
    hidden, matrix = np.zeros((7, 16), np.float32), np.zeros((16, 129), np.float32)
    hidden[:, 3], matrix[3] = 1, z[0]
    tokens, g = np.arange(7) * 5, weights_of(1, 1, 0)
    want = exact.stats_of(z, tokens)
    slopes, stats = run_few(run, (hidden, matrix, np.zeros(129, np.float32)), tokens, g)
    np.testing.assert_allclose(stats.log_probs, want.log_probs, rtol=1e-6)
    np.testing.assert_allclose(stats.entropy, want.entropy, rtol=2e-6)
    np.testing.assert_allclose(stats.logsumexp, want.logsumexp, rtol=1e-6)
    dz, terms = exact.slope_of_stats(z, tokens, g), exact.terms_of_stats(z, tokens, g)
    exact.assert_within(slopes[2], dz.sum(0), terms.sum(0))


@implementations("linear_token_stats")
def test_rows_that_are_masked_do_not_matter(run):
    made, tokens, arrays = few()
    g = weights_of(1.0, -2.0, 0.5)
    for mask in ([1, 0, 1, 1, 0, 0, 1], [0] * 7, [1] * 7, [0] * 6 + [1]):
        kept = np.array(mask) != 0
        arrays[0] = np.where(kept[:, None], np.float32(made.hidden), NAN)
        slopes, stats = run_few(run, arrays, np.where(kept, tokens, 10**9), g, np.array(mask))
        z = made.logits()
        for got, want in zip(stats, exact.stats_of(z, tokens)):
            np.testing.assert_allclose(got, np.where(kept, want, 0.0), rtol=1e-5, atol=1e-6)
        dz, terms = exact.slope_of_stats(z, tokens, g), exact.terms_of_stats(z, tokens, g)
        wants = made.pull(np.where(kept[:, None], dz, 0.0))
        for got, want, size in zip(slopes, wants, made.sizes(terms)):
            exact.assert_within(got, want, size)
        np.testing.assert_array_equal(slopes[0][~kept], 0.0)


@implementations("linear_token_stats")
def test_forbidden_tokens_and_whole_blocks_of_them(run):
    made, _, arrays = few()
    allowed = np.array([1, 60, 128])
    arrays[2] = np.full(129, -INF, np.float32)
    arrays[2][allowed] = made.bias[allowed]
    tokens, places = np.array([1, 60, 128, 0, 60, 1, 5]), np.array([0, 1, 2, 0, 1, 0, 0])
    possible = np.array([1, 1, 1, 0, 1, 1, 0]) != 0
    some = exact.Problem(made.hidden, made.unembedding[:, allowed], made.bias[allowed])
    z, g = some.logits(), weights_of(1.0, 1.0, 0.0)
    slopes, stats = run_few(run, arrays, tokens, g)
    log_probs, entropy, logsumexp = exact.stats_of(z, places)
    for got, want in zip(stats, (np.where(possible, log_probs, -INF), entropy, logsumexp)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    g = g._replace(log_probs=1.0 * possible)
    dz, terms = exact.slope_of_stats(z, places, g), exact.terms_of_stats(z, places, g)
    exact.assert_within(slopes[0], some.pull(dz)[0], some.sizes(terms)[0])
    exact.assert_within(slopes[2][allowed], dz.sum(0), terms.sum(0))
    for slope in (slopes[1].T, slopes[2]):
        np.testing.assert_array_equal(np.delete(slope, allowed, axis=0), 0.0)


@implementations("linear_token_stats")
def test_rows_without_a_token_and_tokens_outside_the_vocabulary(run):
    made, tokens, arrays = few()
    g = weights_of(1.0, 1.0, 1.0)
    slopes, stats = run_few(run, [*arrays[:2], np.full(129, -INF, np.float32)], tokens, g)
    for got, want in zip(stats, (-INF, 0.0, -INF)):
        np.testing.assert_array_equal(got, np.full(7, want))
    for x in slopes:
        np.testing.assert_array_equal(x, np.zeros(x.shape))

    outside = np.array([-1, 129, -100, 10**9, 2**31 - 1, -(2**31), 5])
    slopes, stats = run_few(run, arrays, outside, g)
    z, inside = made.logits(), np.full(7, 5)
    want = exact.stats_of(z, inside)
    np.testing.assert_array_equal(stats.log_probs[:6], np.full(6, -INF))
    np.testing.assert_allclose(stats.log_probs[6], want.log_probs[6], rtol=1e-5)
    np.testing.assert_allclose(stats.entropy, want.entropy, rtol=1e-5)
    g = g._replace(log_probs=1.0 * (outside == 5))
    wants = made.pull(exact.slope_of_stats(z, inside, g))
    for got, want, size in zip(slopes, wants, made.sizes(exact.terms_of_stats(z, inside, g))):
        exact.assert_within(got, want, size)


@implementations("linear_token_stats")
def test_without_entropy_and_without_rows(run):
    made, tokens, arrays = few()
    g = weights_of(1.0, 0.0, -0.5)
    weights = [np.float32(x) for x in g]
    slopes, stats = graded(run, entropy=False)(tuple(arrays), tokens, weights, {})
    assert stats.entropy is None
    z = made.logits()
    np.testing.assert_allclose(stats.log_probs, exact.stats_of(z, tokens).log_probs, rtol=1e-5)
    wants = made.pull(exact.slope_of_stats(z, tokens, g))
    for got, want, size in zip(slopes, wants, made.sizes(exact.terms_of_stats(z, tokens, g))):
        exact.assert_within(got, want, size)
    assert run(arrays[0][:0], arrays[1], tokens[:0]).log_probs.shape == (0,)


@implementations("linear_token_stats")
def test_kernel_03_weights_of_any_sign_reach_the_gradient(run):
    # d/dz Σ w (-log p) = w (softmax - onehot). Row 0: 2·(.66524, .24473, .09003) - 2·(1, 0, 0);
    # row 1 has weight 0; row 2: -.5·(.09003, .66524, .24473) + .5·(0, 1, 0).
    logits = np.float32([[1.0, 0.0, -1.0], [0.5, 0.5, 0.0], [0.0, 2.0, 1.0]])
    arrays, tokens = (logits, np.eye(3, dtype=np.float32), np.zeros(3, np.float32)), [0, 2, 1]
    want = np.array([[-0.6695181, 0.4894569, 0.1800611], [0, 0, 0],
                     [-0.0450153, 0.1673795, -0.1223642]])  # fmt: skip
    g = weights_of([-2.0, 0.0, 0.5], 0.0, 0.0, 3)
    for last in (1, 0):
        want[2] *= last
        slopes, _ = run_few(run, arrays, np.array(tokens), g, np.array([1, 1, last]))
        np.testing.assert_allclose(slopes[0], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(slopes[0][2], 0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_xla_keeps_no_logits_and_no_copy_of_the_unembedding(dtype):
    """Temporary memory is below half the logits of all rows, [64, 16384] float32."""

    def loss(hidden, matrix, tokens):
        stats = linear_token_stats(hidden, matrix, tokens, implementation="xla")
        return jnp.sum(stats.log_probs + stats.entropy)

    shapes = jnp.zeros((64, 256), dtype), jnp.zeros((256, 16384), dtype), jnp.zeros(64, int)
    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile()
    half, matrix = 64 * 16384 * 2, 256 * 16384 * shapes[1].itemsize
    # In bfloat16 the gradient of the unembedding is there once more, as bits.
    most = half + (matrix if dtype == "bfloat16" else 0)
    assert compiled.memory_analysis().temp_size_in_bytes < most
