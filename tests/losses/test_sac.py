"""Soft actor-critic by hand, against integrals, and its temperature against its purpose."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses.sac import sac_actor_loss, sac_critic_loss, sac_targets, sac_temperature_loss
from rljax.ops.distributions import tanh_gaussian_shift


def test_targets_by_hand():
    # 1 + .9·(min(5, 4) + .2·1.5) = 1 + .9·4.3 = 4.87, also at a time limit (step 0), which is no
    # argument; 1 where terminated. The entropy with the wrong sign gives 4.33, the larger critic
    # 5.77, a cut taken for an end 1.
    three = jnp.ones(3)
    targets = sac_targets(
        three,
        jnp.array([0, 1, 0]),
        5 * three,
        4 * three,
        -1.5 * three,
        discount=0.9,
        temperature=0.2,
    )
    np.testing.assert_allclose(targets, [4.87, 1.0, 4.87], rtol=1e-6)


def test_targets_take_the_smaller_critic_of_each_element():
    q1, q2 = jnp.array([5.0, -1.0]), jnp.array([4.0, 3.0])
    targets = sac_targets(
        jnp.zeros(2), jnp.zeros(2), q1, q2, jnp.array([1.0, -1.0]), discount=1.0, temperature=0.5
    )
    np.testing.assert_allclose(targets, [3.5, -0.5], rtol=1e-6)  # 4 - ½·1, -1 + ½·1


def test_temperature_is_held_constant_in_targets_and_actor():
    def loss_fn(temperature):
        arrays = (jnp.array([5.0, 1.0]), jnp.array([4.0, 2.0]), jnp.array([-1.5, 0.5]))
        targets = sac_targets(
            jnp.ones(2), jnp.zeros(2), *arrays, discount=0.9, temperature=temperature
        )
        critic = sac_critic_loss(*arrays[:2], targets)[0]
        return critic + sac_actor_loss(*arrays, temperature=temperature)[0]

    value, slope = jax.jit(jax.value_and_grad(loss_fn))(0.2)
    assert value != loss_fn(0.4)
    assert slope == 0.0


def test_critic_loss_by_hand():
    # e₁ = -1, 0; e₂ = 0, -2: ½(1 + 4)/2; slopes e/2.
    q1, q2, targets = jnp.array([1.0, 3.0]), jnp.array([2.0, 1.0]), jnp.array([2.0, 3.0])
    (loss, metrics), slopes = jax.value_and_grad(sac_critic_loss, (0, 1), has_aux=True)(
        q1, q2, targets
    )
    np.testing.assert_allclose(loss, 1.25, rtol=1e-6)
    np.testing.assert_allclose(slopes, [[-0.5, 0.0], [0.0, -1.0]], rtol=1e-6)
    assert metrics["loss/critic"] == loss


def test_actor_loss_by_hand():
    # ½·(-2, 1) - (min(1, 3), min(4, 0)) = -2, .5; mean -.75. Slopes: α/2 = ¼ to each log π, and
    # -½ to the smaller critic of each element. Entropy: mean of 2, -1.
    (loss, metrics), slopes = jax.value_and_grad(
        lambda *arrays: sac_actor_loss(*arrays, temperature=0.5), (0, 1, 2), has_aux=True
    )(jnp.array([1.0, 4.0]), jnp.array([3.0, 0.0]), jnp.array([-2.0, 1.0]))
    np.testing.assert_allclose(loss, -0.75, rtol=1e-6)
    np.testing.assert_allclose(slopes, [[-0.5, 0.0], [0.0, -0.5], [0.25, 0.25]], rtol=1e-6)
    assert metrics["loss/actor"] == loss
    assert metrics["policy/entropy"] == 0.5


def test_actor_loss_and_its_gradient_against_integrals():
    """J(μ, log σ) = ∫ N(ε) (α log π(a) - Q(a)) dε with Q(a) = -(a - 1)², a in [-2, 2].

    The integral is a sum over quantiles of ε, its gradient central differences of float64 sums of
    the density written out: log π = log N - log(2 (1 - tanh² u)).
    """
    alpha, count = 0.3, 2001
    grid = np.linspace(-6.0, 6.0, count)
    weights = np.exp(-0.5 * grid**2)
    weights /= weights.sum()

    def exact(mean, log_std):
        u = mean + math.exp(log_std) * grid
        log_normal = -0.5 * grid**2 - log_std - 0.5 * math.log(2 * math.pi)
        log_density = log_normal - np.log(2.0 / np.cosh(u) ** 2)
        return np.sum(weights * (alpha * log_density + (2 * np.tanh(u) - 1) ** 2))

    noise = jnp.asarray(grid[:, None], jnp.float32)

    def loss_fn(mean, log_std):
        means = jnp.full_like(noise, mean)
        actions, log_probs = tanh_gaussian_shift(noise, means, log_std, low=-2.0, high=2.0)
        q = -jnp.square(actions[:, 0] - 1)
        # The mean over quantiles, weighted by importance: each argument of the loss is linear.
        scale = jnp.asarray(weights * count, jnp.float32)
        return sac_actor_loss(scale * q, scale * q, scale * log_probs, temperature=alpha)[0]

    for mean, log_std in ((0.2, -0.5), (-1.0, 0.3), (2.0, -2.0)):
        value, slopes = jax.jit(jax.value_and_grad(loss_fn, (0, 1)))(mean, log_std)
        np.testing.assert_allclose(value, exact(mean, log_std), rtol=1e-4, atol=1e-4)
        h = 1e-5
        numeric = [
            (exact(mean + h, log_std) - exact(mean - h, log_std)) / (2 * h),
            (exact(mean, log_std + h) - exact(mean, log_std - h)) / (2 * h),
        ]
        np.testing.assert_allclose(slopes, numeric, rtol=1e-3, atol=1e-3)


def test_temperature_loss_by_hand():
    # log π = -1, -3, ½: the entropy 3.5/3 is above the target -2, so α must fall. The slope is
    # 3.5/3 + 2 = 19/6 > 0, the loss log α times it: -1.6094379·19/6 = -5.0965534. With the target
    # of the wrong sign the slope is -5/6, and α rises.
    log_alpha, log_probs = math.log(0.2), jnp.array([-1.0, -3.0, 0.5])
    (loss, metrics), slopes = jax.value_and_grad(
        lambda *x: sac_temperature_loss(*x, target_entropy=-2.0), (0, 1), has_aux=True
    )(log_alpha, log_probs)
    np.testing.assert_allclose(loss, -5.096553389, rtol=1e-6)
    np.testing.assert_allclose(slopes[0], 19 / 6, rtol=1e-6)
    np.testing.assert_array_equal(slopes[1], 0.0)
    assert metrics["loss/temperature"] == loss


def test_temperature_settles_where_the_entropy_meets_its_target():
    """Whichever side it starts on, for a policy that is the best answer to the temperature.

    With Q(a) = -a²/2 the Boltzmann policy is N(0, α), of entropy ½ log(2πe α). Noise in pairs ±1
    has exactly the variance 1, so the mean of log π at its samples is minus that entropy.
    """
    noise = jnp.array([1.0, -1.0, 1.0, -1.0])
    target = 0.5 * math.log(2 * math.pi * math.e * 0.3)  # the entropy at α = 0.3

    @jax.jit
    def settle(log_alpha):
        def step(_, log_alpha):
            actions = jnp.exp(0.5 * log_alpha) * noise
            variance = jnp.exp(log_alpha)
            log_probs = -0.5 * actions**2 / variance - 0.5 * jnp.log(2 * jnp.pi * variance)
            grad = jax.grad(lambda x: sac_temperature_loss(x, log_probs, target_entropy=target)[0])
            return log_alpha - 0.5 * grad(log_alpha)

        return jnp.exp(jax.lax.fori_loop(0, 100, step, log_alpha))

    for start in (-5.0, 2.0):
        np.testing.assert_allclose(settle(start), 0.3, rtol=1e-4)


def test_masked_temperature_by_hand():
    # Only the first two count: -Σ (log π + H̄) = (1 + 1) + (3 + 1) = 6, over 2 or the given 4.
    arrays = jnp.array([-1.0, -3.0, jnp.nan]), jnp.array([1, 1, 0])

    def loss_fn(log_alpha, denominator):
        return sac_temperature_loss(
            log_alpha, *arrays, target_entropy=-1.0, denominator=denominator
        )[0]

    np.testing.assert_allclose(jax.grad(loss_fn)(0.0, None), 3.0, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(loss_fn)(0.0, 4.0), 1.5, rtol=1e-6)
