"""Masked reductions against float64 NumPy on the kept elements alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.checks import as_float32, broadcast_trailing, check_same_shape, check_shape
from rljax.ops.masked import (
    explained_variance,
    keep,
    last_index,
    length_mask,
    masked_centre,
    masked_count,
    masked_mean,
    masked_sum,
    masked_whiten,
)

from .poisoned import POISONS, poisoned_inputs

NAN, INF = np.nan, np.inf
X = np.array([[1.0, 2.0, INF, NAN], [3.0, -INF, 5.0, 7.0]], np.float32)
MASK = np.array([[1, 1, 0, 0], [1, 0, 1, 0]])


@pytest.mark.parametrize("dtype", [bool, np.int32, np.uint8, np.float32, jnp.bfloat16])
def test_poisoned_padding_reaches_neither_value_nor_gradient(dtype):
    # Kept: 1, 2, 3, 5. Mean 11/4; rows 3/2 and 8/2; each kept element has weight 1/4.
    mask = jnp.asarray(MASK).astype(dtype)
    np.testing.assert_array_equal(masked_mean(X, mask), 2.75)
    np.testing.assert_array_equal(masked_sum(X, mask), 11.0)
    np.testing.assert_array_equal(masked_count(X, mask), 4.0)
    np.testing.assert_array_equal(masked_mean(X, mask, axis=1), [1.5, 4.0])
    np.testing.assert_array_equal(masked_mean(X, mask, axis=0), [2.0, 2.0, 5.0, 0.0])
    grad = jax.grad(lambda x: masked_mean(x, mask))(jnp.asarray(X))
    np.testing.assert_array_equal(grad, [[0.25, 0.25, 0, 0], [0.25, 0, 0.25, 0]])


def test_reductions_equal_numpy_on_the_kept_elements():
    @jax.jit
    def reduce(x, mask):
        row_sum = masked_sum(x, mask, axis=-1)
        centred, whitened = masked_centre(x, mask), masked_whiten(x, mask, eps=1e-3)
        return masked_sum(x, mask), masked_mean(x, mask), row_sum, centred, whitened

    for x, mask, clean in poisoned_inputs(40, seed=1):
        total, mean, row_sum, centred, whitened = reduce(x, mask)
        kept = clean[mask]
        np.testing.assert_allclose(total, kept.sum(), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(mean, kept.mean(), rtol=1e-5, atol=1e-5)
        with_nan = np.where(mask, clean, np.nan)
        np.testing.assert_allclose(row_sum, np.nansum(with_nan, axis=-1), rtol=1e-5, atol=1e-4)
        expected = np.where(mask, clean - kept.mean(), 0)
        np.testing.assert_allclose(centred, expected, atol=1e-4)
        expected /= np.sqrt(kept.var() + 1e-3)
        np.testing.assert_allclose(whitened, expected, rtol=1e-4, atol=1e-4)


def test_no_mask_is_a_mask_of_ones():
    def reduce(x, mask):
        functions = (masked_sum, masked_mean, masked_whiten, masked_centre, masked_count)
        return [function(x, mask) for function in functions]

    x = np.random.default_rng(2).normal(size=(3, 4))
    plain, ones = jax.jit(lambda x: reduce(x, None))(x), jax.jit(reduce)(x, np.ones((3, 4)))
    for a, b in zip(plain, ones):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(plain[1], x.mean(), rtol=1e-5)


def test_gradients_are_zero_where_masked_and_finite_elsewhere():
    def fit(x, mask):
        return explained_variance(x, 0.5 * jnp.asarray(x) + 1.0, mask)

    functions = [masked_sum, masked_mean, masked_whiten, masked_centre, fit]

    @jax.jit
    def gradients(x, mask):
        return [jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x, mask))))(x) for f in functions]

    for x, mask, _ in poisoned_inputs(12, seed=3, shapes=((3, 4),)):
        for grad in map(np.asarray, gradients(jnp.asarray(x), mask)):
            assert np.isfinite(grad).all()
            np.testing.assert_array_equal(grad[~mask], 0.0)


def test_micro_batches_with_the_global_denominator_add_up():
    # Token losses 2 | 1, 1, 1, 3: (2 + 6) / 5 = 1.6, not the mean of the means (2 + 1.5) / 2.
    parts = [jnp.array([2.0]), jnp.array([1.0, 1.0, 1.0, 3.0])]
    total = sum(masked_mean(part, denominator=5) for part in parts)
    np.testing.assert_allclose(total, 1.6, rtol=1e-6)
    for part in parts:
        grad = jax.grad(lambda x: masked_mean(x, denominator=5))(part)
        np.testing.assert_allclose(grad, np.full(part.shape, 0.2), rtol=1e-6)


def test_any_split_adds_up_to_the_whole():
    mean = jax.jit(lambda x, mask, count: masked_mean(x, mask, denominator=count))
    for x, mask, clean in poisoned_inputs(24, seed=4, shapes=((6, 2),)):
        for cuts in ([1], [2, 4], [0, 5]):  # [0, 5] has an empty part
            parts = zip(np.split(x, cuts), np.split(mask, cuts))
            total = sum(float(mean(part, kept, mask.sum())) for part, kept in parts)
            np.testing.assert_allclose(total, clean[mask].mean(), rtol=1e-4, atol=1e-4)


def test_denominator_may_have_the_shape_of_the_result_and_be_traced():
    mean = jax.jit(lambda d: masked_mean(X, MASK, axis=1, denominator=d))
    np.testing.assert_array_equal(mean(jnp.array([3.0, 16.0])), [1.0, 0.5])
    np.testing.assert_array_equal(mean(jnp.array(2)), [1.5, 4.0])


def test_a_denominator_of_zero_is_harmless_only_where_nothing_counts():
    nothing = np.zeros(2)
    np.testing.assert_array_equal(masked_mean(np.ones(2), nothing, denominator=0), 0.0)
    assert np.isinf(masked_mean(np.ones(2), np.ones(2), denominator=0))


def test_a_batch_without_valid_tokens_has_loss_and_gradient_zero():
    logits = jnp.array([[[1.0, 0.0], [0.0, 2.0]]])
    labels, mask = jnp.array([[0, 1]]), jnp.zeros((1, 2))

    def loss(logits):
        log_probs = jax.nn.log_softmax(logits)
        return masked_mean(-jnp.take_along_axis(log_probs, labels[..., None], -1)[..., 0], mask)

    np.testing.assert_array_equal(loss(logits), 0.0)
    np.testing.assert_array_equal(jax.grad(loss)(logits), np.zeros((1, 2, 2)))
    np.testing.assert_array_equal(masked_count(mask, mask), 0.0)


def test_nothing_unmasked_gives_zero_everywhere():
    functions, mask = (masked_sum, masked_mean, masked_whiten, masked_centre), np.zeros((2, 3))

    @jax.jit
    def values_and_gradients(x):
        values = [function(x, mask) for function in functions]
        values += [masked_mean(x, mask, axis=1), explained_variance(x, x, mask)]
        grads = [jax.grad(lambda x, f=f: jnp.sum(f(x, mask)))(x) for f in functions]
        return values + grads

    for poison in POISONS:
        for result in values_and_gradients(jnp.full((2, 3), poison)):
            np.testing.assert_array_equal(result, np.zeros(result.shape))


def test_an_unmasked_nan_is_not_hidden():
    x = jnp.array([1.0, NAN, 1.0])
    for function in (masked_sum, masked_mean):
        assert np.isnan(function(x))
    assert np.isnan(masked_whiten(x)).all()
    assert np.isnan(explained_variance(x, jnp.ones(3)))


def test_last_index_on_either_side_of_the_padding():
    mask = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    for dtype in (bool, np.int32, np.float32):
        index = last_index(mask.astype(dtype))
        np.testing.assert_array_equal(index, [1, 3, 3, 0, -1])
        assert index.dtype == jnp.int32


def test_padding_is_recognised_by_position_where_pad_and_eos_share_an_id():
    # EOS = pad = 2. Row 0 ends with one EOS, row 1 also has one inside, row 2 was cut.
    tokens = np.array([[5, 7, 2, 2, 2], [5, 2, 6, 2, 2], [5, 6, 7, 8, 9]])
    mask = length_mask(np.array([3, 4, 5]), 5)
    np.testing.assert_array_equal(mask, [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    # The EOS tokens that count: one, two, none.
    np.testing.assert_array_equal(masked_sum(tokens == 2, mask, axis=1), [1.0, 2.0, 0.0])
    np.testing.assert_array_equal(last_index(mask), [2, 3, 4])


def test_length_mask_keeps_exactly_length_positions():
    lengths = np.arange(8).reshape(2, 4)
    mask = np.asarray(length_mask(lengths, 5))
    assert mask.shape == (2, 4, 5)
    np.testing.assert_array_equal(mask.sum(-1), np.minimum(lengths, 5))
    np.testing.assert_array_equal(np.sort(mask, -1)[..., ::-1], mask)  # ones first


def test_bfloat16_in_float32_out_and_jit_equals_eager():
    x, mask = jnp.asarray(X, jnp.bfloat16), jnp.asarray(MASK, jnp.bfloat16)
    functions = (masked_sum, masked_mean, masked_whiten, masked_centre)
    jitted = jax.jit(lambda x, mask: [function(x, mask) for function in functions])(x, mask)
    for function, result in zip(functions, jitted):
        eager = function(x, mask)
        assert eager.dtype == jnp.float32
        np.testing.assert_allclose(result, eager, rtol=1e-6)
    # 4096 ones: a sum in bfloat16 would stop at 256.
    np.testing.assert_array_equal(masked_sum(jnp.ones(4096, jnp.bfloat16)), 4096.0)


def test_integers_and_booleans_are_averaged_too():
    np.testing.assert_array_equal(masked_mean(np.array([True, False, True, True])), 0.75)
    np.testing.assert_array_equal(masked_mean(np.array([1, 2, 6]), np.array([1, 1, 0])), 1.5)


def test_trailing_shapes_broadcast():
    np.testing.assert_array_equal(broadcast_trailing("x", 2, (2, 3)), np.full((2, 3), 2.0))
    row = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(broadcast_trailing("x", row, (2, 3)), np.stack([row, row]))
    assert [x.dtype for x in as_float32(row, True)] == [jnp.float32, jnp.float32]


@pytest.mark.errors
def test_shapes_that_differ_raise_with_both_shapes():
    with pytest.raises(ValueError, match=r"a and b .*a \(3, 1\) and b \(3,\)"):
        check_same_shape(a=np.ones((3, 1)), skipped=None, b=np.ones(3))
    with pytest.raises(ValueError, match=r"w must have shape \(\) or \(2,\), got \(3,\)"):
        check_shape("w", np.ones(3), (), (2,))
    column, row = np.ones((3, 1)), np.ones(3)
    for function in (keep, masked_sum, masked_mean, masked_count, masked_whiten, masked_centre):
        with pytest.raises(ValueError, match=r"\(3, 1\).*\(3,\)"):
            function(column, row)
    with pytest.raises(ValueError, match=r"targets \(3, 1\) and predictions \(3,\)"):
        explained_variance(column, row)
    with pytest.raises(ValueError, match=r"\(3,\) and mask \(3, 1\)"):
        explained_variance(row, row, column)
    with pytest.raises(ValueError, match=r"denominator must have shape \(\), got \(3,\)"):
        masked_mean(row, denominator=row)
    for wrong in (np.ones(2), np.ones((3, 1)), np.ones((1, 2, 3))):
        with pytest.raises(ValueError, match=r"trailing shape of \(2, 3\), got"):
            broadcast_trailing("x", wrong, (2, 3))
