"""Gaussians against float64 formulas, integrals and frequencies."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.distributions import (
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_prob,
    gaussian_sample,
    gaussian_shift,
)

LOG2, INF = math.log(2.0), math.inf


def test_by_hand():
    # σ = [½, 2], so Σ log σ = 0; z = (x - μ)/σ = [1, -½]; Σ z²/2 = 0.625; log 2π = 1.8378771.
    mean, log_std = jnp.array([0.0, 1.0]), jnp.array([-LOG2, LOG2])
    log_prob = gaussian_log_prob(mean, log_std, jnp.array([0.5, 0.0]))
    np.testing.assert_allclose(log_prob, -2.4628770664, rtol=1e-6)
    np.testing.assert_allclose(gaussian_entropy(log_std), 2.8378770664, rtol=1e-6)  # log 2πe
    # To N([1, 1], 1): ½(¼ + 1 - 1) + log 2, and ½(4 + 0 - 1) - log 2: 1.625 together.
    kl = gaussian_kl(mean, log_std, jnp.array([1.0, 1.0]), jnp.array([0, 0.0]))
    np.testing.assert_allclose(kl, 1.625, rtol=1e-6)
    # A batch of two actions gives [2], never [2, 2]; the second action is the mean.
    means, actions = jnp.stack([mean, mean]), jnp.array([[0.5, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(
        gaussian_log_prob(means, log_std, actions), [-2.4628770664, -1.8378770664], rtol=1e-6
    )


def test_log_std_may_be_a_scalar_or_have_trailing_axes(key):
    mean, other = jnp.arange(6.0).reshape(3, 2), jnp.ones((3, 2))
    for log_std in (0.5, 1, np.float32(0.5), jnp.array(0.5), jnp.array([0.5, -1.0])):
        full = jnp.broadcast_to(jnp.asarray(log_std, jnp.float32), (3, 2))
        for f in (
            lambda s: gaussian_log_prob(mean, s, other),
            lambda s: gaussian_kl(mean, s, other, 0.0),
            lambda s: gaussian_kl(mean, 0.0, other, s),
            lambda s: gaussian_sample(key, mean, s),
        ):
            np.testing.assert_array_equal(f(log_std), f(full))
    assert gaussian_entropy(jnp.zeros(2)).shape == ()
    assert gaussian_entropy(jnp.zeros((3, 2))).shape == (3,)


@pytest.mark.parametrize(("mean", "log_std"), [(0.3, -1.0), (-2.0, 0.7)])
def test_integrals_over_the_line(mean, log_std):
    """∫p = 1, H = -∫p log p and KL = ∫p (log p - log q), by a fine sum over ±10 σ."""
    other_mean, other_log_std = 0.5, 0.2
    x = np.linspace(mean - 10 * math.exp(log_std), mean + 10 * math.exp(log_std), 4001)
    width = x[1] - x[0]
    actions = jnp.asarray(x[:, None], jnp.float32)

    def log_density(mean, log_std):
        values = gaussian_log_prob(jnp.full_like(actions, mean), log_std, actions)
        return np.asarray(values, np.float64)

    log_p, log_q = log_density(mean, log_std), log_density(other_mean, other_log_std)
    np.testing.assert_allclose(np.sum(np.exp(log_p)) * width, 1.0, rtol=1e-5)
    entropy = -np.sum(np.exp(log_p) * log_p) * width
    np.testing.assert_allclose(gaussian_entropy(jnp.array([log_std])), entropy, rtol=1e-5)
    kl = np.sum(np.exp(log_p) * (log_p - log_q)) * width
    actual = gaussian_kl(jnp.array([mean]), log_std, jnp.array([other_mean]), other_log_std)
    np.testing.assert_allclose(actual, kl, rtol=1e-4)


def test_a_small_kl_keeps_its_digits():
    # δ = log σ_p/σ_q: KL = (e^2δ - 1 - 2δ)/2 = δ² + 2δ³/3 + δ⁴/3 ...; a mean 1e-3 σ away: 5e-7.
    deltas = np.linspace(5e-4, 2e-3, 20, dtype=np.float32)[:, None]
    delta = deltas[:, 0].astype(np.float64)
    expected = delta**2 + 2 * delta**3 / 3 + delta**4 / 3
    one = jnp.ones((20, 1))
    np.testing.assert_allclose(gaussian_kl(one, deltas, one, 0.0), expected, rtol=1e-3)
    np.testing.assert_allclose(gaussian_kl(one * 0.0, 0.0, one * 1e-3, 0.0), 5e-7, rtol=1e-5)
    np.testing.assert_array_equal(gaussian_kl(one, 0.37, one, 0.37), 0.0)


def test_gradients_by_formula():
    # d log p/dμ = z/σ, /d log σ = z² - 1, /da = -z/σ.
    mean, log_std = jnp.array([0.2, -1.0]), jnp.array([-0.5, 0.4])
    actions = jnp.array([0.5, 1.0])
    std = np.exp(np.asarray(log_std, np.float64))
    z = (np.asarray(actions) - np.asarray(mean)) / std
    gradients = jax.grad(gaussian_log_prob, argnums=(0, 1, 2))(mean, log_std, actions)
    for actual, expected in zip(gradients, (z / std, z**2 - 1, -z / std)):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_sample_has_the_right_moments_and_gradients(key):
    # 20,000 draws: the standard error of a mean is 0.007 σ, of a deviation 0.005 σ.
    mean, log_std = jnp.array([1.0, -3.0]), jnp.array([-1.0, 0.5])
    means = jnp.broadcast_to(mean, (20_000, 2))
    samples = np.asarray(gaussian_sample(key, means, log_std), np.float64)
    std = np.exp(np.asarray(log_std))
    np.testing.assert_array_less(np.abs(samples.mean(axis=0) - mean), 0.05 * std)
    np.testing.assert_allclose(samples.std(axis=0), std, rtol=0.04)
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.05
    # a = μ + σ ε: da/dμ = 1 and da/d log σ = a - μ.
    to_mean, to_log_std = jax.grad(lambda m, s: jnp.sum(gaussian_sample(key, m, s)), (0, 1))(
        mean, log_std
    )
    np.testing.assert_array_equal(to_mean, np.ones(2))
    np.testing.assert_allclose(to_log_std, gaussian_sample(key, mean, log_std) - mean, rtol=1e-5)


def test_shifted_noise_by_hand():
    # μ + σ ε = 1 + ½·2, -3 + 4·(-1) | 0 + ½·(-2), 0 + 4·0.5
    noise = jnp.array([[2.0, -1.0], [-2.0, 0.5]])
    mean, log_std = jnp.array([[1.0, -3.0], [0.0, 0.0]]), jnp.array([-LOG2, 2 * LOG2])
    np.testing.assert_allclose(gaussian_shift(noise, mean, log_std), [[2, -7], [-1, 2]], rtol=1e-6)
    np.testing.assert_array_equal(gaussian_shift(noise, mean, 0.0), mean + noise)
    np.testing.assert_array_equal(gaussian_shift(noise, mean, -INF), mean)


def test_float32_whatever_comes_in_and_under_jit(key):
    x, y, s = jnp.array([[0.5, -1.0]]), jnp.array([[0.25, 2.0]]), jnp.array([0.5, -0.5])
    for f in (
        lambda x, y, s: gaussian_log_prob(x, s, y),
        lambda x, y, s: gaussian_entropy(s),
        lambda x, y, s: gaussian_kl(x, s, y, s),
        lambda x, y, s: gaussian_sample(key, x, s),
        lambda x, y, s: gaussian_shift(jnp.ones((1, 2)), x, s),
    ):
        expected = f(x, y, s)
        for cast in (lambda a: a.astype(jnp.bfloat16), lambda a: np.asarray(a, np.float64)):
            result = f(*map(cast, (x, y, s)))
            assert result.dtype == jnp.float32
            np.testing.assert_array_equal(result, expected)
        np.testing.assert_allclose(jax.jit(f)(x, y, s), expected, rtol=1e-5)


@pytest.mark.errors
def test_shapes_must_fit(key):
    mean = jnp.zeros((5, 2))
    for shape in [(5, 1), (2,), (5, 2, 1)]:
        other = jnp.zeros(shape)
        for f in (
            lambda: gaussian_log_prob(mean, 0.0, other),  # noqa: B023
            lambda: gaussian_kl(mean, 0.0, other, 0.0),  # noqa: B023
        ):
            with pytest.raises(ValueError, match=r"mean\w* \(5, 2\) and \w+ \("):
                f()
        with pytest.raises(ValueError, match=r"noise \(.*\) and mean \(5, 2\)"):
            gaussian_shift(other, mean, 0.0)
    for shape in [(5, 1), (1,), (5,), (1, 5, 2)]:
        bad = jnp.zeros(shape)
        for name, f in (
            ("log_std", lambda: gaussian_log_prob(mean, bad, mean)),  # noqa: B023
            ("log_std_q", lambda: gaussian_kl(mean, 0.0, mean, bad)),  # noqa: B023
            ("log_std", lambda: gaussian_sample(key, mean, bad)),  # noqa: B023
            ("log_std", lambda: gaussian_shift(mean, mean, bad)),  # noqa: B023
        ):
            with pytest.raises(ValueError, match=rf"{name} .*\(5, 2\), got "):
                f()
    with pytest.raises(ValueError, match=r"log_std must have shape \[\*S, A\], got \(\)"):
        gaussian_entropy(0.0)
