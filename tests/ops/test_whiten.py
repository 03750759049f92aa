"""Whitening and explained variance: what divides by a spread that may be nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.masked import explained_variance, masked_all_equal, masked_whiten

from .poisoned import poisoned_inputs

NAN, INF = np.nan, np.inf


def test_whitened_gradient_equals_finite_differences():
    x = np.array([0.3, -1.2, 2.0, 0.7])
    weights = np.array([1.0, -2.0, 0.5, 3.0])

    def objective(x):  # in float64
        return (weights * (x - x.mean()) / np.sqrt(x.var() + 0.1)).sum()

    steps = 1e-6 * np.eye(4)
    slopes = [(objective(x + step) - objective(x - step)) / 2e-6 for step in steps]
    grad = jax.grad(lambda x: jnp.sum(jnp.float32(weights) * masked_whiten(x, eps=0.1)))
    np.testing.assert_allclose(grad(jnp.float32(x)), slopes, rtol=1e-4, atol=1e-5)


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
