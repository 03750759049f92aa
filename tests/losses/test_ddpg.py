"""Deterministic policy gradients by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses.ddpg import ddpg_actor_loss, ddpg_critic_loss, ddpg_targets


def test_truncation_keeps_the_bootstrap_and_termination_stops_it():
    # 2 + .99·10 = 11.9, and 2 where terminated. Step 0 was cut by a time limit, which no argument
    # says; masking with terminated-or-truncated would give 2, adding the mask 12.99.
    targets = ddpg_targets(jnp.full(3, 2.0), jnp.array([0, 1, 0]), jnp.full(3, 10.0), discount=0.99)
    np.testing.assert_allclose(targets, [11.9, 2.0, 11.9], rtol=1e-6)


def test_critic_loss_by_hand():
    # e = -1, 2, 0: ½(1 + 4)/3 = 5/6, slopes e/3. Means: Q (1 + 5 + 3)/3 = 3, y (2 + 3 + 3)/3 = 8/3.
    (loss, metrics), grad = jax.value_and_grad(ddpg_critic_loss, has_aux=True)(
        jnp.array([1.0, 5.0, 3.0]), jnp.array([2.0, 3.0, 3.0])
    )
    np.testing.assert_allclose(loss, 5 / 6, rtol=1e-6)
    np.testing.assert_allclose(grad, [-1 / 3, 2 / 3, 0], rtol=1e-6)
    assert metrics["loss/critic"] == loss
    np.testing.assert_allclose(
        [metrics[f"q/{name}"] for name in ("mean", "target_mean", "abs_error")],
        [3, 8 / 3, 1],
        rtol=1e-6,
    )


def test_the_actor_climbs_the_critic():
    # Q(a) = -(a - 3)² with actions θ and θ + 1: loss = ((θ - 3)² + (θ - 2)²)/2, slope 2θ - 5:
    # at θ = 0, loss 6.5 and slope -5. A descent step raises θ towards the optimum 2.5.
    def loss_fn(theta):
        actions = theta + jnp.array([0.0, 1.0])
        return ddpg_actor_loss(-jnp.square(actions - 3.0))

    (loss, metrics), slope = jax.value_and_grad(loss_fn, has_aux=True)(0.0)
    np.testing.assert_allclose([loss, slope], [6.5, -5.0], rtol=1e-6)
    assert metrics["loss/actor"] == loss
    np.testing.assert_allclose(jax.grad(lambda x: loss_fn(x)[0])(2.5), 0.0, atol=1e-6)
