"""Squashed Gaussians against float64 formulas, integrals and frequencies."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.distributions import (
    tanh_gaussian_log_prob,
    tanh_gaussian_sample_and_log_prob,
    tanh_gaussian_shift,
    tanh_squash,
)

LOG2 = math.log(2.0)


def log_one_minus_tanh2(u):
    """-2 log cosh u in float64, with cosh u = (e^u + e^-u)/2."""
    u = np.asarray(u, np.float64)
    return -2 * (np.logaddexp(u, -u) - LOG2)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-2.0, 3.0), (0, 0.5)])
def test_squashed_density_and_gradient_as_far_as_50(low, high):
    u = np.linspace(-50.0, 50.0, 401)
    mean, log_std = 0.5, 1.5
    z = (u - mean) / math.exp(log_std)
    log_normal = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
    expected = log_normal - log_one_minus_tanh2(u) - math.log((high - low) / 2)

    def log_prob(u):
        return tanh_gaussian_log_prob(jnp.full_like(u, mean), log_std, u, low=low, high=high)

    pre_tanh = jnp.asarray(u[:, None], jnp.float32)
    np.testing.assert_allclose(log_prob(pre_tanh), expected, rtol=1e-5, atol=1e-5)
    gradient = jax.jit(jax.grad(lambda u: jnp.sum(log_prob(u))))(pre_tanh)[:, 0]
    np.testing.assert_allclose(
        gradient, -z / math.exp(log_std) + 2 * np.tanh(u), rtol=1e-5, atol=1e-5
    )


def test_squashed_density_integrates_to_one_over_the_box():
    # Over a in the box [-1, 2] x [0, 0.5], u = atanh of the position between -1 and 1.
    low, high = jnp.array([-1.0, 0.0]), jnp.array([2.0, 0.5])
    mean, log_std = np.array([0.3, -0.4]), jnp.array([-0.7, -0.5])
    positions = (np.arange(400) + 0.5) / 200 - 1
    grid = np.stack(np.meshgrid(positions, positions), axis=-1).reshape(-1, 2)
    u = jnp.asarray(np.arctanh(grid), jnp.float32)
    means = jnp.broadcast_to(jnp.asarray(mean, jnp.float32), u.shape)
    log_probs = tanh_gaussian_log_prob(means, log_std, u, low=low, high=high)
    cell = (3.0 / 400) * (0.5 / 400)
    np.testing.assert_allclose(np.sum(np.exp(np.asarray(log_probs, float))) * cell, 1, rtol=1e-3)


def test_squashed_samples(key):
    # P(tanh u < 0) = P(u < 0) = Φ(-μ/σ); with μ = σ: Φ(-1) = 0.158655.
    low, high = np.array([-2.0, 0.0], np.float32), np.array([2.0, 8.0], np.float32)
    mean = jnp.full((20_000, 2), 0.5)
    log_std = jnp.full(2, math.log(0.5))
    actions, log_probs = tanh_gaussian_sample_and_log_prob(key, mean, log_std, low=low, high=high)
    position = (np.asarray(actions, np.float64) - low) / (high - low)
    assert ((position > 0) & (position < 1)).all()
    np.testing.assert_allclose(np.mean(position < 0.5, axis=0), [0.158655] * 2, atol=0.02)
    u = jnp.asarray(np.arctanh(2 * position - 1), jnp.float32)
    density = tanh_gaussian_log_prob(mean, log_std, u, low=low, high=high)
    np.testing.assert_allclose(log_probs, density, rtol=1e-3, atol=1e-3)


def test_squashed_sample_stays_in_the_box_and_finite(key):
    low, high = np.array([-0.1, -1.0], np.float32), np.array([0.3, 0.7], np.float32)

    @jax.jit
    def draw_and_gradients(mean, log_std):
        def total(mean, log_std):
            drawn = tanh_gaussian_sample_and_log_prob(key, mean, log_std, low=low, high=high)
            return jnp.sum(drawn[0]) + jnp.sum(drawn[1]), drawn

        gradients, drawn = jax.grad(total, (0, 1), has_aux=True)(mean, log_std)
        return *drawn, *gradients

    for mean, log_std in [(50.0, -20.0), (-50.0, 2.0), (0.0, 3.0), (1.0, -20.0)]:
        results = draw_and_gradients(jnp.full((100, 2), mean), jnp.full(2, log_std))
        actions = np.asarray(results[0])
        assert ((low <= actions) & (actions <= high)).all()
        for x in results:
            assert np.isfinite(x).all()


def test_log_prob_of_a_sample_survives_a_tiny_deviation(key):
    # σ = e^-20 is far below the rounding of μ = 1: u = μ, and z = (u - μ)/σ would always be 0. On
    # average log p = -½ + 20 - ½ log 2π - log(1 - tanh² 1); the standard error of 4,000 is 0.011.
    _, log_probs = tanh_gaussian_sample_and_log_prob(key, jnp.full((4000, 1), 1.0), -20.0)
    expected = -0.5 + 20 - 0.5 * math.log(2 * math.pi) - log_one_minus_tanh2(1.0)
    np.testing.assert_allclose(np.mean(np.asarray(log_probs, float)), expected, atol=0.08)


def test_reparameterised_gradient_of_the_squashed_log_prob(key):
    # log p = -½ε² - log σ - log(1 - tanh² u) + const, u = μ + σε, and d/du -log(1 - tanh² u)
    # = 2 tanh u: so the gradients are 2 tanh u, and -1 + 2 tanh(u) σ ε.
    mean, log_std = jnp.array([[0.4], [-0.3]]), jnp.array([[-0.5], [0.1]])
    actions, _ = tanh_gaussian_sample_and_log_prob(key, mean, log_std)
    u = np.arctanh(np.asarray(actions, np.float64))
    gradient = jax.grad(
        lambda m, s: jnp.sum(tanh_gaussian_sample_and_log_prob(key, m, s)[1]), (0, 1)
    )
    gradients = jax.jit(gradient)(mean, log_std)
    np.testing.assert_allclose(gradients[0], 2 * np.tanh(u), rtol=1e-4)
    np.testing.assert_allclose(gradients[1], -1 + 2 * np.tanh(u) * (u - mean), rtol=1e-4)


def test_squashing_by_hand():
    # atanh ½ = ½ log 3: a is three quarters of the way through the box; u = 0 is its middle.
    u = jnp.array([[0.5 * math.log(3.0), 0.0], [-0.5 * math.log(3.0), 100.0]])
    actions = tanh_squash(u, low=jnp.array([-2.0, 0.0]), high=jnp.array([2.0, 5.0]))
    np.testing.assert_allclose(actions, [[1.0, 2.5], [-1.0, 5.0]], rtol=1e-6)
    np.testing.assert_allclose(tanh_squash(u)[0], [0.5, 0.0], rtol=1e-6)
    # da/du = half the width times 1 - tanh² u = 2·¾.
    slope = jax.grad(lambda x: jnp.sum(tanh_squash(x, low=-2.0, high=2.0)))(u[:, :1])
    np.testing.assert_allclose(slope, [[1.5], [1.5]], rtol=1e-6)


def test_shifted_noise_by_hand():
    # u = μ + σ ε = ½ log 3 - 1 + ½·2 = ½ log 3, so a = 2·½ = 1 in [-2, 2]. log N = -½·2² - log ½
    # - ½ log 2π, less log(2·(1 - ¼)): -2 + .6931472 - .9189385 - .4054651 = -2.6312565.
    mean = jnp.array([0.5 * math.log(3.0) - 1.0])
    box = {"low": -2.0, "high": 2.0}
    action, log_prob = tanh_gaussian_shift(jnp.array([2.0]), mean, -LOG2, **box)
    np.testing.assert_allclose(action, [1.0], rtol=1e-6)
    np.testing.assert_allclose(log_prob, -2.6312565, rtol=1e-6)
    # Without noise, the greedy action.
    action, _ = tanh_gaussian_shift(jnp.zeros(1), mean, -LOG2, **box)
    np.testing.assert_array_equal(action, tanh_squash(mean, **box))


def test_a_sample_is_shifted_noise(key):
    mean = jnp.array([[0.3, -1.0], [2.0, 0.0]])
    drawn = tanh_gaussian_sample_and_log_prob(key, mean, -0.5, low=0.0, high=2.0)
    u = np.arctanh(np.asarray(drawn[0], np.float64) - 1.0)
    noise = jnp.asarray((u - np.asarray(mean)) * math.exp(0.5), jnp.float32)
    for actual, wanted in zip(tanh_gaussian_shift(noise, mean, -0.5, low=0.0, high=2.0), drawn):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("log_std", [-20.0, -5.0, 0.0, 2.0])
def test_the_ends_of_what_a_policy_can_say_stay_finite_and_exact(log_std):
    """u = ±20, where tanh u is ±1 in float32 and log(1 - tanh² u) would be -inf."""
    u = jnp.array([-20.0, 20.0])[:, None]
    (value, actions), slopes = jax.jit(
        jax.value_and_grad(
            lambda m, s: (
                jnp.sum((drawn := tanh_gaussian_shift(jnp.ones((2, 1)), m, s))[1]),
                drawn[0],
            ),
            argnums=(0, 1),
            has_aux=True,
        )
    )(u - math.exp(log_std), log_std)
    # Both: -½ - log σ - ½ log 2π - log(1 - tanh² 20), and log(1 - tanh² u) = log 4 - 2|u| there.
    each = -0.5 - log_std - 0.5 * math.log(2 * math.pi) - (2 * LOG2 - 40.0)
    np.testing.assert_allclose(value, 2 * each, rtol=1e-6)
    np.testing.assert_array_equal(actions, [[-1.0], [1.0]])
    # d log p/dμ = 2 tanh u = ∓2, d/d log σ = Σ (-1 + 2 tanh(u) σ) = -2.
    np.testing.assert_allclose(slopes[0], [[-2.0], [2.0]], rtol=1e-6)
    np.testing.assert_allclose(slopes[1], -2.0, rtol=1e-5)
    # The density of a given u, as far as z² is a float32.
    value, slopes = jax.value_and_grad(
        lambda m, s, x: jnp.sum(tanh_gaussian_log_prob(m, s, x)), argnums=(0, 1, 2)
    )(u - 1.0, log_std, u)
    for x in (value, *slopes):
        assert np.isfinite(x).all()


def test_arguments_of_any_dtype_and_shape_under_jit(key):
    x, y, s = jnp.array([[0.5, -1.0]]), jnp.array([[0.25, 2.0]]), jnp.array([0.5, -0.5])
    for f in (
        lambda x, y, s: tanh_gaussian_log_prob(x, s, y, low=-2.0, high=jnp.array([1.0, 2.0])),
        lambda x, y, s: tanh_gaussian_sample_and_log_prob(key, x, s, low=0, high=1)[0],
        lambda x, y, s: tanh_gaussian_shift(y, x, s, low=0, high=1)[1],
        lambda x, y, s: tanh_squash(x, low=-1, high=jnp.array([1.0, 2.0])),
    ):
        expected = f(x, y, s)
        for cast in (lambda a: a.astype(jnp.bfloat16), lambda a: np.asarray(a, np.float64)):
            result = f(*map(cast, (x, y, s)))
            assert result.dtype == jnp.float32
            np.testing.assert_array_equal(result, expected)
        np.testing.assert_allclose(jax.jit(f)(x, y, s), expected, rtol=1e-5)
    for log_std in (0.5, 1, np.float32(0.5), jnp.array(0.5), jnp.array([0.5, -1.0])):
        full = jnp.broadcast_to(jnp.asarray(log_std, jnp.float32), x.shape)
        for f in (
            lambda s: tanh_gaussian_log_prob(x, s, y),
            lambda s: tanh_gaussian_sample_and_log_prob(key, x, s)[1],
        ):
            np.testing.assert_array_equal(f(log_std), f(full))


@pytest.mark.errors
def test_shapes_must_fit():
    mean = jnp.zeros((5, 2))
    for shape in [(5, 1), (2,), (5, 2, 1)]:
        with pytest.raises(ValueError, match=r"mean \(5, 2\) and pre_tanh \("):
            tanh_gaussian_log_prob(mean, 0.0, jnp.zeros(shape))
        with pytest.raises(ValueError, match=r"noise \(.*\) and mean \(5, 2\)"):
            tanh_gaussian_shift(jnp.zeros(shape), mean, 0.0)
    for shape in [(5, 1), (1,), (5,), (1, 5, 2)]:
        bad = jnp.zeros(shape)
        for name, f in (
            ("low", lambda: tanh_gaussian_log_prob(mean, 0.0, mean, low=bad)),  # noqa: B023
            ("high", lambda: tanh_squash(mean, high=bad + 1)),  # noqa: B023
            ("log_std", lambda: tanh_gaussian_shift(mean, mean, bad)),  # noqa: B023
        ):
            with pytest.raises(ValueError, match=rf"{name} .*\(5, 2\), got "):
                f()


@pytest.mark.errors
@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (2.0, -2.0), (-np.inf, 1.0), (0.0, np.array([1.0, np.nan]))]
)
def test_the_box_must_have_finite_ends_in_order(key, low, high):
    mean = jnp.zeros((5, 2))
    with pytest.raises(ValueError, match="low must be below high"):
        tanh_gaussian_log_prob(mean, 0.0, mean, low=low, high=high)
    with pytest.raises(ValueError, match="low must be below high"):
        tanh_gaussian_sample_and_log_prob(key, mean, 0.0, low=low, high=high)
    with pytest.raises(ValueError, match="low must be below high"):
        tanh_squash(mean, low=low, high=high)
