"""Twin critics by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses.td3 import td3_critic_loss, td3_targets


def test_targets_believe_the_smaller_critic_of_each_element():
    # 1 + ½·min(8, 6) = 4; 1 + ½·min(-2, 4) = 0; terminated: 1. The larger would give 5 and 3, the
    # smaller of the means (one choice for the whole batch) 4 and 3.
    targets = td3_targets(
        jnp.ones(3),
        jnp.array([0, 0, 1]),
        jnp.array([8.0, -2.0, 8.0]),
        jnp.array([6.0, 4.0, 8.0]),
        discount=0.5,
    )
    np.testing.assert_array_equal(targets, [4.0, 0.0, 1.0])


def test_one_critic_that_breaks_is_seen():
    targets = td3_targets(
        jnp.ones(1), jnp.zeros(1), jnp.array([jnp.nan]), jnp.array([6.0]), discount=0.5
    )
    assert np.isnan(targets).all()


def test_critic_loss_by_hand():
    # e₁ = -1, 0; e₂ = 0, -2: ½(1 + 0 + 0 + 4)/2 = 1.25; slopes e/2. The errors of both critics
    # are summed and not averaged: each learns as it would alone.
    q1, q2, targets = jnp.array([1.0, 3.0]), jnp.array([2.0, 1.0]), jnp.array([2.0, 3.0])
    (loss, metrics), (slope1, slope2) = jax.value_and_grad(td3_critic_loss, (0, 1), has_aux=True)(
        q1, q2, targets
    )
    np.testing.assert_allclose(loss, 1.25, rtol=1e-6)
    np.testing.assert_allclose(slope1, [-0.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(slope2, [0.0, -1.0], rtol=1e-6)
    # Q: (1 + 3 + 2 + 1)/4; y: 5/2; |e|: (1 + 0 + 0 + 2)/4; gap: (1 + 2)/2.
    assert metrics["loss/critic"] == loss
    names = ("mean", "target_mean", "abs_error", "gap")
    np.testing.assert_allclose(
        [metrics[f"q/{name}"] for name in names], [1.75, 2.5, 0.75, 1.5], rtol=1e-6
    )
