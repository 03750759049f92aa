"""Estimates of a KL divergence against hand-worked numbers and exact enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.kl import KL_KINDS, kl_estimate
from rljax.ops.masked import masked_sum


def test_values_by_hand():
    # d = log_probs - ref_log_probs = [0.5, -1, 0]; k2 = d²/2; k3 = exp(-d) - 1 + d:
    # exp(-0.5) - 0.5 = 0.1065307, e - 2 = 0.7182818, 0.
    log_probs, ref_log_probs = jnp.array([-1.0, -2.0, -0.5]), jnp.array([-1.5, -1.0, -0.5])
    expected = {
        "k1": [0.5, -1.0, 0.0],
        "k2": [0.125, 0.5, 0.0],
        "k3": [0.1065306597, 0.7182818285, 0.0],
        "k3_unbiased": [0.1065306597, 0.7182818285, 0.0],
    }
    for kind, values in expected.items():
        estimate = kl_estimate(log_probs, ref_log_probs, kind=kind)
        np.testing.assert_allclose(estimate, values, rtol=1e-6, atol=1e-7, err_msg=kind)
    assert sorted(expected) == sorted(KL_KINDS)


def test_gradients_by_hand():
    # At d = 0.5 and -1: 1; d; 1 - exp(-d) = 0.3934693 and 1 - e = -1.7182818; d.
    ref_log_probs = jnp.array([-1.5, -1.0])
    expected = {
        "k1": [1.0, 1.0],
        "k2": [0.5, -1.0],
        "k3": [0.3934693403, -1.7182818285],
        "k3_unbiased": [0.5, -1.0],
    }
    for kind, gradient in expected.items():
        actual = jax.grad(lambda x, k=kind: jnp.sum(kl_estimate(x, ref_log_probs, kind=k)))(
            jnp.array([-1.0, -2.0])
        )
        np.testing.assert_allclose(actual, gradient, rtol=1e-6, err_msg=kind)


# The last two have log-ratios beyond the bound of 20, on both sides.
POLICIES = {
    "near": ([0.2, -1.0, 0.7, 0.0], [0.0, -0.5, 0.3, 0.4]),
    "reference misses an action": ([0.0, -1.0, 2.0, 0.5], [0.0, -31.0, 2.0, 0.5]),
    "policy misses an action": ([0.0, -40.0, 2.0, 0.5], [0.0, -1.0, 2.0, 0.5]),
}


def softmax(logits):
    weights = np.exp(np.asarray(logits, np.float64) - max(logits))
    return weights / weights.sum()


def expected_over_actions(logits, ref_logits, kind):
    """Σ_a p(a) estimate(a) and Σ_a p(a) ∇estimate(a), the sum over all samples in float64."""

    def estimates(logits):
        return kl_estimate(jax.nn.log_softmax(logits), jax.nn.log_softmax(ref_logits), kind=kind)

    logits, ref_logits = jnp.array(logits), jnp.array(ref_logits)
    p = softmax(np.asarray(logits))
    value = p @ np.asarray(estimates(logits), np.float64)
    gradient = p @ np.asarray(jax.jacobian(estimates)(logits), np.float64)
    return value, gradient


@pytest.mark.parametrize("name", POLICIES)
def test_k3_unbiased_has_the_exact_gradient_in_expectation(name):
    # KL = Σ p (log p - log q), and with softmax logits θ: ∂KL/∂θ_i = p_i (log p_i/q_i - KL).
    logits, ref_logits = POLICIES[name]
    p, q = softmax(logits), softmax(ref_logits)
    kl = np.sum(p * np.log(p / q))
    _, gradient = expected_over_actions(logits, ref_logits, "k3_unbiased")
    np.testing.assert_allclose(gradient, p * (np.log(p / q) - kl), rtol=2e-5, atol=1e-6)


def test_k3_unbiased_has_the_value_of_k3_and_its_mean_is_the_divergence():
    logits, ref_logits = POLICIES["near"]
    p, q = softmax(logits), softmax(ref_logits)
    for kind in ("k1", "k3", "k3_unbiased"):
        value, _ = expected_over_actions(logits, ref_logits, kind)
        np.testing.assert_allclose(value, np.sum(p * np.log(p / q)), rtol=1e-5, err_msg=kind)
    x, y = jnp.linspace(-60.0, 3.0, 40), jnp.linspace(-2.0, -30.0, 40)
    np.testing.assert_array_equal(
        kl_estimate(x, y, kind="k3_unbiased"), kl_estimate(x, y, kind="k3")
    )


def test_expected_gradients_of_the_other_kinds():
    # k1: E ∇log p = 0. k2: as k3_unbiased. k3: -Σ q ∇log p = ∇KL(q‖p) = p - q.
    logits, ref_logits = POLICIES["near"]
    p, q = softmax(logits), softmax(ref_logits)
    exact = p * (np.log(p / q) - np.sum(p * np.log(p / q)))
    for kind, gradient in {"k1": np.zeros(4), "k2": exact, "k3": p - q}.items():
        _, actual = expected_over_actions(logits, ref_logits, kind)
        np.testing.assert_allclose(actual, gradient, atol=2e-7, err_msg=kind)


def test_far_off_tokens_are_bounded_before_the_exp():
    # d = 0.5, -100 and (masked) -299: exp(100) is beyond float32. Bounded: exp(20) - 1 - 100.
    log_probs, ref_log_probs = jnp.array([-1.0, -101.0, -300.0]), jnp.array([-1.5, -1.0, -1.0])
    mask = jnp.array([1, 1, 0])

    def loss(x):
        values = kl_estimate(x, ref_log_probs, kind="k3")
        return masked_sum(values, mask), values

    gradient, values = jax.grad(loss, has_aux=True)(log_probs)
    np.testing.assert_allclose(values[:2], [0.1065306597, np.exp(20.0) - 101.0], rtol=1e-6)
    np.testing.assert_allclose(gradient, [0.3934693403, 1.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("kind", KL_KINDS)
def test_finite_at_any_log_ratio(kind):
    d = jnp.array([-1e4, -300.0, -100.0, -20.0, 0.0, 20.0, 100.0, 300.0, 1e4])
    values = kl_estimate(d, jnp.zeros_like(d), kind=kind)
    gradient = jax.grad(lambda x: jnp.sum(kl_estimate(x, jnp.zeros_like(x), kind=kind)))(d)
    assert np.isfinite(values).all()
    assert np.isfinite(gradient).all()
    if kind == "k3":  # exp(-20) = 2e-9 is below the rounding of 299
        assert values[7] == 299.0


def test_k3_keeps_its_digits_near_zero():
    # d = 2⁻¹³: d²/2 - d³/6 = 7.450277e-9. exp(-d) - 1 alone is off by up to 6e-8.
    d = jnp.array([2.0**-13, -(2.0**-13)])
    k3 = kl_estimate(d, jnp.zeros(2), kind="k3")
    np.testing.assert_allclose(k3, [7.450277e-9, 7.450884e-9], rtol=2e-3)
    small = jnp.linspace(-0.01, 0.01, 2001)
    assert (np.asarray(kl_estimate(small, jnp.zeros_like(small), kind="k3")) >= 0).all()


@pytest.mark.parametrize("kind", KL_KINDS)
def test_reference_gets_no_gradient(kind):
    log_probs, ref_log_probs = jnp.array([-1.0, -2.0, -40.0]), jnp.array([-1.5, -1.0, -1.0])
    gradient = jax.grad(lambda ref: jnp.sum(kl_estimate(log_probs, ref, kind=kind)))(ref_log_probs)
    np.testing.assert_array_equal(gradient, np.zeros(3))


@pytest.mark.parametrize("kind", KL_KINDS)
def test_any_shape_and_dtype_and_under_jit(kind):
    x = jnp.array([[[-1.0, -2.5], [-0.5, -3.0]]])
    y = x + jnp.array([[[0.5, -0.25], [1.0, 0.0]]])  # exact in bfloat16
    expected = kl_estimate(x, y, kind=kind)
    assert expected.shape == (1, 2, 2)
    low = kl_estimate(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), kind=kind)
    assert low.dtype == jnp.float32
    np.testing.assert_array_equal(low, expected)
    np.testing.assert_array_equal(kl_estimate(np.asarray(x), np.asarray(y), kind=kind), expected)
    jitted = jax.jit(lambda a, b: kl_estimate(a, b, kind=kind))
    np.testing.assert_allclose(jitted(x, y), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.errors
def test_unknown_kind_names_the_allowed_ones():
    for kind in ("k4", "K3", "", "kl"):
        with pytest.raises(ValueError, match=rf"k1, k2, k3, k3_unbiased, got '{kind}'"):
            kl_estimate(jnp.zeros(3), jnp.zeros(3), kind=kind)


@pytest.mark.errors
@pytest.mark.parametrize("shape", [(3, 1), (1,), (4,), ()])
def test_shapes_must_agree(shape):
    with pytest.raises(ValueError, match=r"log_probs \(3,\) and ref_log_probs \("):
        jax.jit(lambda x, y: kl_estimate(x, y, kind="k3"))(jnp.zeros(3), jnp.zeros(shape))
