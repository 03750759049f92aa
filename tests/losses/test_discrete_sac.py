"""Discrete soft actor-critic: exact expectations by hand, by sampling, and its fixed point."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses.discrete_sac import (
    discrete_sac_actor_loss,
    discrete_sac_critic_loss,
    discrete_sac_targets,
    discrete_sac_temperature_loss,
)

# π = (¼, ¾), min(Q₁, Q₂) = (4, 2): mean 2.5; H = ¼ log 4 + ¾ log(4/3) = .5623351.
Q1, Q2 = jnp.array([[4.0, 6.0]]), jnp.array([[8.0, 2.0]])
LOGITS, ENTROPY = jnp.array([[0.0, math.log(3.0)]]), 0.56233514


def test_targets_by_hand():
    # 1 + .9·(2.5 + .2·.5623351) = 3.3512203; 1 where terminated.
    for terminated, wanted in ((0, 3.3512203), (1, 1.0)):
        targets = discrete_sac_targets(
            jnp.ones(1), jnp.array([terminated]), Q1, Q2, LOGITS, discount=0.9, temperature=0.2
        )
        np.testing.assert_allclose(targets, [wanted], rtol=1e-6)


def test_actor_loss_by_hand():
    # -(2.5 + .2·H). d/dz_a of Σ π Q is π_a (Q_a - mean): ±.375; of H, -π_a (log π_a + H):
    # -¼(-1.3862944 + H) = .2059898 and the opposite.
    (loss, metrics), slope = jax.value_and_grad(
        lambda z: discrete_sac_actor_loss(Q1, Q2, z, temperature=0.2), has_aux=True
    )(LOGITS)
    np.testing.assert_allclose(loss, -2.5 - 0.2 * ENTROPY, rtol=1e-6)
    wanted = -(0.375 + 0.2 * 0.2059898)
    np.testing.assert_allclose(slope, [[wanted, -wanted]], rtol=1e-5)
    assert metrics["loss/actor"] == loss
    np.testing.assert_allclose(metrics["policy/entropy"], ENTROPY, rtol=1e-6)


def test_the_best_actor_is_the_boltzmann_policy():
    """At π ∝ exp(Q/α) the gradient is 0, and the loss -α log Σ exp(Q/α), below any other's."""
    rng = np.random.default_rng(0)
    q1, q2 = rng.normal(size=(2, 6, 5)).astype(np.float32)
    q, alpha = np.minimum(q1, q2).astype(np.float64), 0.4

    def loss_fn(logits):
        return discrete_sac_actor_loss(q1, q2, logits, temperature=alpha)[0]

    value, slope = jax.value_and_grad(loss_fn)(jnp.asarray(q / alpha, jnp.float32))
    best = -np.mean(alpha * np.log(np.sum(np.exp(q / alpha), axis=-1)))
    np.testing.assert_allclose(value, best, rtol=1e-5)
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)
    for _ in range(5):
        assert loss_fn(jnp.asarray(q / alpha + rng.normal(size=q.shape), jnp.float32)) > best


def test_actions_that_cannot_be_taken():
    """A third action of logit -inf changes nothing, whatever the critics say of it."""
    logits = jnp.array([[0.0, math.log(3.0), -jnp.inf]])

    def both(logits, q1, q2):
        targets = discrete_sac_targets(
            jnp.ones(1), jnp.zeros(1), q1, q2, logits, discount=0.9, temperature=0.2
        )
        return targets, discrete_sac_actor_loss(q1, q2, logits, temperature=0.2)[0]

    wanted, slope = both(LOGITS, Q1, Q2), jax.grad(lambda *x: both(*x)[1])(LOGITS, Q1, Q2)
    for garbage in (0.0, 1e9, jnp.nan, -jnp.inf):
        q1, q2 = (jnp.concatenate([q, jnp.full((1, 1), garbage)], axis=1) for q in (Q1, Q2))
        for actual, expected in zip(both(logits, q1, q2), wanted):
            np.testing.assert_allclose(actual, expected, rtol=1e-6)
        grad = jax.grad(lambda *x: both(*x)[1])(logits, q1, q2)
        np.testing.assert_allclose(grad[:, :2], slope, rtol=1e-5)
        assert grad[0, 2] == 0.0


def test_critic_loss_by_hand():
    # Q of the actions taken: (4, 8) of action 0 in row 0, (6, 2) of action 1 in row 1; y = 5, 5:
    # ½(1 + 9 + 1 + 9)/2 = 5; slopes e/2 at the actions taken alone.
    q1, q2 = jnp.concatenate([Q1, Q1]), jnp.concatenate([Q2, Q2])
    (loss, metrics), slopes = jax.value_and_grad(discrete_sac_critic_loss, (0, 1), has_aux=True)(
        q1, q2, jnp.array([0, 1]), jnp.full(2, 5.0)
    )
    np.testing.assert_allclose(loss, 5.0, rtol=1e-6)
    np.testing.assert_allclose(slopes[0], [[-0.5, 0.0], [0.0, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(slopes[1], [[1.5, 0.0], [0.0, -1.5]], rtol=1e-6)
    assert metrics["q/mean"] == 5.0
    assert metrics["q/gap"] == 4.0


def test_temperature_loss_by_hand():
    # The slope in log α is H - H̄: above the target α falls, below it rises.
    for target, wanted in ((0.5, 0.06233514), (0.6, -0.03766486)):
        (loss, _), slopes = jax.value_and_grad(
            lambda *x, target=target: discrete_sac_temperature_loss(*x, target_entropy=target),
            (0, 1),
            has_aux=True,
        )(-2.0, LOGITS)
        np.testing.assert_allclose(loss, -2.0 * wanted, rtol=1e-5)
        np.testing.assert_allclose(slopes[0], wanted, rtol=1e-5)
        np.testing.assert_array_equal(slopes[1], 0.0)
