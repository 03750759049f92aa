"""The TPU kernels, interpreted: masks in whole blocks, and races.

Their values are checked with those of the other implementations: rows of `table.py`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import kernels_pallas
from kernels_pallas.linear_kl.pallas_tpu_tile import choose_blocks
from kernels_pallas.linear_token_stats.shapes import LARGE, Shape
from kernels_pallas.tpu import mosaic
from kernels_pallas.tpu.mosaic import Blocks, Config

from . import exact
from .table import STATIC, TPU_BLOCKS, graded
from .test_divergences import check_categorical_kl, check_linear_kl, check_token_stats
from .test_linear_token_stats import check, problem

BLOCKS = TPU_BLOCKS.forward.rows
RAGGED = Shape(BLOCKS + 8, 16, 300)  # two blocks of rows, two of the vocabulary, both short
# Few blocks, of one strip: what the interpreter does for each access takes its time.
RACED = Shape(BLOCKS + 8, 16, 200)
RACING_BLOCKS = Config(*[Blocks(BLOCKS, 128, 128)] * 3)


def runner(kernel, interpret=True, **options):
    """The kernel, jitted, as tests of `table.py` get it."""
    function = functools.partial(
        getattr(kernels_pallas, kernel),
        implementation="pallas_tpu",
        interpret=interpret,
        **options,
    )
    names = [name for name in STATIC if name in function.func.__kwdefaults__]
    return jax.jit(function, static_argnames=[n for n in names if n not in function.keywords])


def test_bfloat16_in_both_layouts():
    run = runner("linear_token_stats", config=TPU_BLOCKS)
    for transposed in (False, True):
        check(run, RAGGED, "bfloat16", [("usual", 0.7), ("peaked", 1.0)], transposed)


def test_matrices_that_are_turned():
    """Where D is whole registers long and V is not; V = 128 the other way round."""
    check(runner("linear_token_stats"), Shape(5, 128, 129), kinds=[("usual", 1.0)])
    run = runner("linear_kl")
    check_linear_kl(run, Shape(5, 128, 129), "float32", ["usual"])
    check_linear_kl(run, Shape(5, 16, 128), "float32", ["usual"], (True, True))


def test_sides_whose_sums_do_not_fit_together_come_one_after_the_other(monkeypatch):
    monkeypatch.setattr(mosaic, "vmem_bytes", lambda: 2_330_000)
    assert choose_blocks((7, 16, 24, 129), "float32").d_unembedding is None
    assert None not in choose_blocks((7, 16, 24, 129), "float32", sides="q")
    check_linear_kl(runner("linear_kl"), Shape(7, 16, 129), "float32", ["usual"])


def test_linear_kl_in_bfloat16():
    run = runner("linear_kl", config=TPU_BLOCKS)
    check_linear_kl(run, RAGGED, "bfloat16", ["usual", "peaked"], (True, False))


LONG = LARGE[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "check"),
    [
        (
            "linear_token_stats",
            functools.partial(check, shape=LONG, dtype="bfloat16", kinds=[("flat", 1.0)]),
        ),
        (
            "linear_kl",
            functools.partial(
                check_linear_kl, shape=LONG, dtype="float32", kinds=["usual", "flat"]
            ),
        ),
        ("token_stats", functools.partial(check_token_stats, shape=LONG, dtype="float32")),
        ("categorical_kl", functools.partial(check_categorical_kl, shape=LONG, dtype="float32")),
    ],
)
def test_a_long_vocabulary_in_its_own_blocks(kernel, check):
    check(runner(kernel))


@pytest.mark.parametrize("transposed", [False, True])
def test_whole_blocks_of_masked_rows(transposed):
    """First, between and last; single rows too. What is masked is NaN or out of range."""
    made, tokens = problem(Shape(4 * BLOCKS, 16, 300))
    mask = np.repeat([0, 1, 0, 1], BLOCKS)
    mask[[40, -1]] = 0
    keep = mask[:, None] > 0
    matrix = made.unembedding.T if transposed else made.unembedding
    hidden = np.where(keep, made.hidden, np.nan)
    arrays = [np.float32(x) for x in (hidden, matrix, made.bias)]
    run = graded(runner("linear_token_stats", config=TPU_BLOCKS))
    g = exact.Stats(*np.random.default_rng(3).normal(size=(3, len(mask))))
    weights = [np.float32(x) for x in g]
    wild = np.where(mask, tokens, 2**30)
    slopes, stats = run(tuple(arrays), wild, weights, {"mask": mask})

    z = made.logits()
    for got, want in zip(stats, exact.stats_of(z, tokens)):
        np.testing.assert_allclose(got, want * mask, rtol=1e-5, atol=1e-5)
    wants = made.pull(exact.slope_of_stats(z, tokens, g) * keep)
    sizes = made.sizes(exact.terms_of_stats(z, tokens, g) * keep)
    for i, (got, want, size) in enumerate(zip(slopes, wants, sizes)):
        exact.assert_within(got.T if i == 1 and transposed else got, want, size)

    slopes, stats = run(tuple(arrays), wild, weights, {"mask": 0 * mask})
    for nothing in (*slopes, *stats):
        np.testing.assert_array_equal(nothing, np.zeros_like(nothing))


@pytest.fixture(params=["eager", "on_wait"])
def racing(request):
    """Arguments of an interpreter that runs two cores side by side and looks for races."""
    yield pltpu.InterpretParams(
        detect_races=True,
        dma_execution_mode=request.param,
        num_cores_or_threads=2,
        uninitialized_memory="nan",
    )
    try:
        assert not races_found()
    finally:
        pltpu.reset_tpu_interpret_mode_state()


def races_found():
    """What the interpreter of jax 0.10 leaves behind; later ones raise."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    races = getattr(interpret_pallas_call, "races", None)
    return races is not None and races.races_found


@pytest.mark.slow
def test_no_races_in_linear_token_stats(racing):
    transposed = racing.dma_execution_mode == "eager"
    run = runner("linear_token_stats", racing, config=RACING_BLOCKS)
    check(run, RACED, kinds=[("usual", 0.7)], transposed=transposed, softcap=3.0)


@pytest.mark.slow
def test_no_races_with_a_mask(racing):
    made, tokens = problem(RACED)
    mask = np.arange(RACED.rows) >= BLOCKS
    run = graded(runner("linear_token_stats", racing, config=RACING_BLOCKS))
    ones = np.ones(RACED.rows, np.float32)
    arrays = tuple(np.float32(x) for x in made[:3])
    slopes, stats = run(arrays, tokens, [ones, 0 * ones, 0 * ones], {"mask": mask})
    z = made.logits()
    want = exact.stats_of(z, tokens).log_probs * mask
    np.testing.assert_allclose(stats.log_probs, want, rtol=1e-5, atol=1e-5)
    g = exact.Stats(ones, 0 * ones, 0 * ones)
    wants = made.pull(exact.slope_of_stats(z, tokens, g) * mask[:, None])
    for got, want in zip(slopes, wants):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_no_races_in_linear_kl(racing):
    run = runner("linear_kl", racing, config=RACING_BLOCKS)
    check_linear_kl(run, RACED, "float32", ["usual"], (False, True))


@pytest.mark.slow
def test_no_races_on_logits(racing):
    """Of N = 264, two blocks of rows."""
    rng = np.random.default_rng(0)
    z_p, z_q = rng.normal(size=(2, 264, 300)).astype(np.float32)
    tokens = rng.integers(0, 300, 264)
    stats = runner("token_stats", racing)

    def total(z):
        return jnp.sum(stats(z, tokens).log_probs)

    g = exact.Stats(np.ones(264), np.zeros(264), np.zeros(264))
    slope = np.asarray(jax.jit(jax.grad(total))(z_p))
    want = exact.slope_of_stats(np.float64(z_p), tokens, g)
    np.testing.assert_allclose(slope, want, rtol=1e-4, atol=1e-6)

    divergence = runner("categorical_kl", racing)
    slopes = jax.jit(jax.grad(lambda p, q: jnp.sum(divergence(p, q)), (0, 1)))(z_p, z_q)
    _, *wants = exact.divergence(np.float64(z_p), np.float64(z_q))
    for got, want in zip(slopes, wants):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
