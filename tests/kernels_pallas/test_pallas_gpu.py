"""The GPU kernels, interpreted: what every implementation is tested for, at fewer shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas.gpu.blocks import GpuBlocks, Tiles
from kernels_pallas.linear_token_stats.shapes import LARGE, SMALL, Shape

from . import test_divergences as divergences
from . import test_linear_token_stats as stats
from .table import jitted_kernel

FEW = stats.FEW
DTYPES = "float32", "bfloat16"
TILES = Tiles(16, 32, 16, 4, 2)
SMALL_BLOCKS = GpuBlocks(TILES, TILES, TILES, splits=3, chunk=64, form="triton")
LONG = TILES._replace(columns=2048)
WIDE = LONG._replace(depth=256)
LONG_BLOCKS = GpuBlocks(LONG, LONG, WIDE, splits=2, chunk=1 << 16, form="triton")


def run_of(kernel, config=SMALL_BLOCKS):
    options = {"config": config} if "linear" in kernel else {}
    run = jitted_kernel(kernel, implementation="pallas_gpu", **options)
    return lambda *arrays, interpret=True, **given: run(*arrays, interpret=interpret, **given)


STATS, KL = run_of("linear_token_stats"), run_of("linear_kl")
TOKEN_STATS, CATEGORICAL_KL = run_of("token_stats"), run_of("categorical_kl")


def test_values_and_gradients_of_few_rows():
    stats.check(STATS, FEW)


def test_bfloat16_in_many_blocks_with_a_softcap():
    kinds = [("usual", 0.7), ("peaked", 10.0)]
    stats.check(STATS, SMALL[-1], "bfloat16", kinds, transposed=True, softcap=2.0)


@pytest.mark.parametrize(
    "test",
    [
        stats.test_nothing_is_lost_near_minus_ten_thousand,
        stats.test_rows_that_are_masked_do_not_matter,
        stats.test_forbidden_tokens_and_whole_blocks_of_them,
        stats.test_rows_without_a_token_and_tokens_outside_the_vocabulary,
    ],
)
def test_rows_and_tokens_that_are_special(test):
    test(STATS)


def test_linear_kl():
    divergences.check_linear_kl(KL, FEW, "float32", transposed=(False, True))


@pytest.mark.slow
def test_sides_that_are_held_fixed():
    divergences.test_a_model_that_is_held_fixed_costs_no_products(KL)
    divergences.test_logits_that_are_held_fixed_have_no_gradient_in_memory(CATEGORICAL_KL)


def test_given_logits():
    shape = Shape(33, 0, 1000)  # several blocks of each axis
    divergences.check_token_stats(TOKEN_STATS, shape, "bfloat16")
    divergences.check_categorical_kl(CATEGORICAL_KL, shape, "float32")


@pytest.mark.parametrize(
    "test",
    [
        divergences.test_divergence_where_tokens_are_impossible,
        divergences.test_a_token_that_is_all_but_impossible_has_a_finite_divergence,
    ],
)
def test_tokens_that_only_one_side_gives(test):
    test(CATEGORICAL_KL)


def test_large_logits_of_rows_that_diverge_have_no_gradient():
    p, q = jnp.array([[500.0, 400.0], [2.0, 2.0]]), jnp.array([[-jnp.inf, 300.0], [1.0, 1.0]])
    for slope in jax.grad(lambda p, q: jnp.sum(CATEGORICAL_KL(p, q)), (0, 1))(p, q):
        np.testing.assert_allclose(slope, np.zeros((2, 2)), atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SMALL[:4], ids=str)
def test_values_and_gradients_of_other_vocabularies(shape, dtype):
    stats.check(STATS, shape, dtype, transposed=dtype == "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((shape, x) for shape in (*SMALL[:4], LARGE[0]) for x in DTYPES), (LARGE[1], "float32")],
)
def test_given_logits_of_other_vocabularies(shape, dtype):
    divergences.check_token_stats(TOKEN_STATS, shape, dtype)
    divergences.check_categorical_kl(CATEGORICAL_KL, shape, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(SMALL[0], "float32"), (SMALL[1], "bfloat16"), (SMALL[2], "float32"), (LARGE[0], "bfloat16")],
)
def test_linear_kl_of_other_vocabularies(shape, dtype):
    run = run_of("linear_kl", LONG_BLOCKS) if shape in LARGE else KL
    kinds = ["usual", "hugely negative"] if shape in LARGE else divergences.KINDS
    divergences.check_linear_kl(run, shape, dtype, kinds, (dtype == "bfloat16", False))


@pytest.mark.slow
def test_without_entropy_and_without_rows():
    stats.test_without_entropy_and_without_rows(STATS)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "dtype"), [(LARGE[0], "bfloat16"), (LARGE[1], "float32")])
def test_large_vocabularies(shape, dtype):
    run = run_of("linear_token_stats", LONG_BLOCKS)
    kinds = [stats.KINDS[0], stats.KINDS[-1]]
    stats.check(run, shape, dtype, kinds, transposed=dtype == "float32")


@pytest.mark.slow
def test_linear_kl_of_bfloat16_in_reverse():
    transposed = True, False
    divergences.check_linear_kl(KL, SMALL[-1], "bfloat16", ["usual"], transposed, "reverse")
