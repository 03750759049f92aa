"""The Mosaic GPU kernels, interpreted: at few shapes, as each of their threads is one of Python's.

They need jax 0.12, and `make smoke` runs them, which is on the newest Python; see conftest.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu

from kernels_pallas.linear_token_stats.shapes import Shape

from . import test_divergences as divergences
from . import test_linear_token_stats as stats
from .table import graded
from .test_pallas_gpu import SMALL_BLOCKS, run_of

FORMS = "hopper", "blackwell"


def mosaic_run_of(kernel, form, races=False, **config):
    run = run_of(kernel, SMALL_BLOCKS._replace(form=form, **config))
    if not races:
        return run
    detecting = mosaic_gpu.InterpretGPUParams(
        detect_races=True, out_of_bounds_reads="uninitialized", uninitialized_memory="zero"
    )
    return lambda *arrays, **options: run(*arrays, **options, interpret=detecting)


MOSAIC = {form: mosaic_run_of("linear_token_stats", form, chunk=256, splits=2) for form in FORMS}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("shape", "transposed", "softcap"),
    [(Shape(200, 64, 320), False, None), (Shape(72, 128, 600), True, 5.0)],
)
def test_mosaic(form, shape, transposed, softcap):
    kinds = [("usual", 1.0), ("hugely negative", 1.0)] if softcap is None else [("usual", 0.7)]
    stats.check(MOSAIC[form], shape, "bfloat16", kinds, transposed, softcap)


@pytest.mark.parametrize("form", FORMS)
def test_mosaic_can_be_traced_where_integers_have_64_bits(form):
    def loss(hidden, matrix):
        return jnp.sum(MOSAIC[form](hidden, matrix, np.zeros(8, int)).entropy)

    with jax.enable_x64(True):
        arrays = jnp.zeros((8, 64), "bfloat16"), jnp.zeros((64, 128), "bfloat16")
        traced = jax.make_jaxpr(jax.grad(loss, (0, 1)))(*arrays)
    assert {x.dtype for x in traced.out_avals} == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize("form", FORMS)
def test_mosaic_without_races_in_a_ring_that_goes_round(form):
    """Five blocks of each tile in four buffers, and five tiles in two accumulators."""
    run = mosaic_run_of("linear_token_stats", form, races=True, chunk=1280, splits=1)
    stats.check(run, Shape(8, 320, 1280), "bfloat16", [("usual", 1.0)])


@pytest.mark.parametrize(
    ("form", "shape", "transposed"),
    [("hopper", Shape(72, 64, 600), True), ("blackwell", Shape(72, 64, 320), False)],
)
def test_mosaic_linear_kl_without_races(form, shape, transposed):
    run = mosaic_run_of("linear_kl", form, races=True, chunk=256, splits=2)
    divergences.check_linear_kl(run, shape, "bfloat16", ["usual"], (transposed,) * 2, apart=64)


@pytest.mark.parametrize("form", FORMS)
def test_mosaic_with_masked_rows(form):
    """Blocks without a row that counts are not touched: there is NaN in them."""
    shape = Shape(392, 64, 320)
    made, tokens = stats.problem(shape, "bfloat16")
    mask = np.random.default_rng(1).random(shape.rows) < 0.5
    mask[128:256] = False
    hidden = np.where(mask[:, None], made.hidden, np.nan).astype("bfloat16")
    arrays = [made.unembedding.astype("bfloat16"), np.float32(made.bias)]
    weights = np.float32(np.random.default_rng(2).normal(size=(3, shape.rows)))
    options = {"temperature": 1.0}
    plain = graded(MOSAIC[form])
    slopes, got = plain((hidden, *arrays), tokens, list(weights), options | {"mask": mask})
    whole = made.hidden.astype("bfloat16")
    wants, want = plain((whole, *arrays), tokens, list(weights * mask), options)
    for x, y in zip(got, want):
        np.testing.assert_allclose(x, np.where(mask, y, 0), rtol=1e-6, atol=1e-6)
    for x, y in zip(slopes, wants):
        x, y = np.float32(x), np.float32(y)
        np.testing.assert_allclose(x, y, rtol=2**-6, atol=2**-8 * np.abs(y).max())
    assert not np.float32(slopes[0])[~mask].any()
