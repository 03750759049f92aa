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
    masked_all_equal,
    masked_centre,
    masked_count,
    masked_mean,
    masked_sum,
    masked_whiten,
)

POISONS = [np.nan, np.inf, -np.inf, 3e38]
NAN, INF = np.nan, np.inf
X = np.array([[1.0, 2.0, INF, NAN], [3.0, -INF, 5.0, 7.0]], np.float32)
MASK = np.array([[1, 1, 0, 0], [1, 0, 1, 0]])


def poisoned_inputs(num, seed, shapes=((5,), (2, 3, 4)), offset=0.0):
    """Random x with its masked elements poisoned, the mask, and the kept elements in float64."""
    rng = np.random.default_rng(seed)
    for i in range(num):
        shape = shapes[i % len(shapes)]
        clean = (rng.normal(size=shape) * rng.choice([0.1, 1.0, 50.0]) + offset).astype(np.float32)
        mask = rng.random(shape) < rng.choice([0.3, 0.7])
        mask.flat[rng.integers(mask.size)] = True
        x = np.where(mask, clean, rng.choice(POISONS, shape)).astype(np.float32)
        yield x, mask, clean.astype(np.float64)


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


def test_whitened_gradient_equals_finite_differences():
    x = np.array([0.3, -1.2, 2.0, 0.7])
    weights = np.array([1.0, -2.0, 0.5, 3.0])

    def objective(x):  # in float64
        return (weights * (x - x.mean()) / np.sqrt(x.var() + 0.1)).sum()

    steps = 1e-6 * np.eye(4)
    slopes = [(objective(x + step) - objective(x - step)) / 2e-6 for step in steps]
    grad = jax.grad(lambda x: jnp.sum(jnp.float32(weights) * masked_whiten(x, eps=0.1)))
    np.testing.assert_allclose(grad(jnp.float32(x)), slopes, rtol=1e-4, atol=1e-5)


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


def test_whiten_uses_all_axes_and_only_what_is_kept():
    # Kept 1, 5, 9: mean 5, variance 32/3; 4 / sqrt(32/3) = 1.2247449.
    whitened = masked_whiten(np.array([1.0, 5.0, 9.0, 100.0]), np.array([1, 1, 1, 0]), eps=0.0)
    np.testing.assert_allclose(whitened, [-1.2247449, 0, 1.2247449, 0], rtol=1e-6)
    # One environment, time first [4, 1] or not [1, 4]: mean 4, variance 5, 3 / sqrt(5) = 1.3416408.
    row = np.array([[1.0, 3.0, 5.0, 7.0]])
    expected = [[-1.3416408, -0.4472136, 0.4472136, 1.3416408]]
    np.testing.assert_allclose(masked_whiten(row, eps=0.0), expected, rtol=1e-6)
    np.testing.assert_allclose(masked_whiten(row.T, eps=0.0), np.transpose(expected), rtol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_equal_elements_whiten_to_exactly_zero(size):
    # 0.1 has no exact mean in float32: a difference of one bit over sqrt(0) would be inf.
    mask = np.append(np.ones(size), 0)

    def whiten(x):
        whitened = masked_whiten(x, mask, eps=0.0)
        return jnp.sum(jnp.sin(whitened)), whitened

    gradient_and_value = jax.jit(jax.grad(whiten, has_aux=True))

    for value in (0.0, 0.1, -3.25, 1e6, 1e30, INF):
        x = np.append(np.full(size, value), NAN).astype(np.float32)
        for result in gradient_and_value(x):
            np.testing.assert_array_equal(result, np.zeros(size + 1))


def test_a_minibatch_of_one_whitens_to_zero():
    np.testing.assert_array_equal(masked_whiten(jnp.array([-3.25])), [0.0])


def test_whiten_keeps_a_small_spread_on_a_large_mean():
    whiten = jax.jit(lambda x, mask: masked_whiten(x, mask, eps=0.0))
    for x, mask, clean in poisoned_inputs(9, seed=5, shapes=((4000,),), offset=1e6):
        kept = clean[mask]
        expected = np.where(mask, (clean - kept.mean()) / kept.std(), 0)
        np.testing.assert_allclose(whiten(x, mask), expected, atol=2e-4)


def test_elements_too_close_to_square_stay_finite():
    x = jnp.array([1e-30, 2e-30])
    assert np.isfinite(masked_whiten(x, eps=0.0)).all()
    assert np.isfinite(jax.grad(lambda x: masked_whiten(x, eps=0.0)[0])(x)).all()
    assert np.isfinite(explained_variance(x, x))


def test_all_equal_is_exact_and_sees_a_nan():
    assert masked_all_equal(jnp.full(7, 0.1))
    assert not masked_all_equal(jnp.array([0.1, np.nextafter(np.float32(0.1), np.float32(1))]))
    np.testing.assert_array_equal(
        masked_all_equal(np.array([[2, 2, 9], [2, 3, 9]]), np.array([[1, 1, 0]] * 2), axis=1),
        [True, False],
    )
    # A large array: XLA on CPU drops NaN in a long max or min.
    large = jnp.ones(200_000).at[77_777].set(NAN)
    assert not masked_all_equal(large)
    assert masked_all_equal(large, ~jnp.isnan(large))


def test_explained_variance_by_hand():
    # y = 1, 2, 3: Var 2/3. Errors -1/2, 0, 1/2: Var 1/6. 1 - (1/6)/(2/3) = 3/4.
    y, mask = np.array([1.0, 2.0, 3.0, NAN]), np.array([1, 1, 1, 0])
    np.testing.assert_allclose(
        explained_variance(y, np.array([1.5, 2.0, 2.5, INF]), mask), 0.75, rtol=1e-6
    )
    np.testing.assert_array_equal(explained_variance(y, y + 10.0, mask), 1.0)  # a constant is free
    np.testing.assert_array_equal(explained_variance(y, np.array([4.0, 4.0, 4.0, 0.0]), mask), 0.0)
    # Errors 1 - 3, 0, 3 - 1: Var 8/3, four times that of y.
    np.testing.assert_allclose(explained_variance(y[:3], y[2::-1]), -3.0, rtol=1e-6)


@pytest.mark.parametrize("value", [0.1, 0.0, 1e30])
def test_explained_variance_of_equal_targets_is_exactly_zero(value):
    targets = jnp.full(7, value)
    np.testing.assert_array_equal(explained_variance(targets, jnp.arange(7.0)), 0.0)
    np.testing.assert_array_equal(explained_variance(targets, targets), 0.0)


def test_explained_variance_equals_numpy():
    rng = np.random.default_rng(6)
    explained = jax.jit(explained_variance)
    for y, mask, clean in poisoned_inputs(12, seed=6, offset=100.0):
        if mask.sum() < 2:
            continue
        guess = np.float32(clean + rng.normal(size=clean.shape) * 0.5 * clean[mask].std())
        error = (clean - guess.astype(np.float64))[mask]
        expected = 1 - error.var() / clean[mask].var()
        predictions = np.where(mask, guess, NAN)
        np.testing.assert_allclose(explained(y, predictions, mask), expected, atol=1e-3)


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
