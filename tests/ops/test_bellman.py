"""One-step targets, by hand and at their edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.bellman import bellman_targets, bootstrap_discounts
from rljax.ops.returns import n_step


def test_by_hand():
    # 1 + .5·8 = 5; terminated: 1, whatever the next value is; 2 + .5·(-4) = 0.
    targets = bellman_targets(
        jnp.array([1.0, 1.0, 2.0]), jnp.array([0, 1, 0]), jnp.array([8.0, 8.0, -4.0]), discount=0.5
    )
    np.testing.assert_array_equal(targets, [5.0, 1.0, 0.0])


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 3e38])
def test_what_follows_the_end_is_not_read(garbage):
    rewards, next_values = jnp.array([1.0, 1.0]), jnp.array([garbage, 4.0])

    def total(next_values, terminated, discount):
        return jnp.sum(bellman_targets(rewards, terminated, next_values, discount=discount))

    ended, no = jnp.array([True, False]), jnp.zeros(2, bool)
    for terminated, discount in ((ended, 0.5), (no, jnp.array([0.0, 0.5])), (ended.astype(int), 1)):
        value, slope = jax.value_and_grad(total)(next_values, terminated, discount)
        last = 1.0 if np.ndim(discount) == 0 and discount == 1 else 0.5
        np.testing.assert_array_equal(value, 2.0 + 4.0 * last)
        np.testing.assert_array_equal(slope, [0.0, last])


def test_nan_that_counts_is_seen():
    targets = bellman_targets(jnp.zeros(2), jnp.array([1, 0]), jnp.full(2, jnp.nan), discount=0.9)
    np.testing.assert_array_equal(np.isnan(targets), [False, True])


def test_discount_may_be_a_scalar_or_of_the_trailing_shape():
    rng = np.random.default_rng(0)
    rewards, next_values = rng.normal(size=(2, 3, 4)).astype(np.float32)
    terminated = rng.random((3, 4)) < 0.3
    for shape in ((), (4,), (3, 4)):
        discount = rng.random(shape).astype(np.float32)
        wanted = rewards.astype(np.float64)
        wanted[~terminated] += (np.broadcast_to(discount, (3, 4)) * next_values)[~terminated]
        actual = jax.jit(bellman_targets)(rewards, terminated, next_values, discount=discount)
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        bootstrap_discounts(terminated, jnp.ones(4)), np.where(terminated, 0.0, 1.0)
    )


def test_n_step_targets_by_hand():
    # γ = ½, n = 2, the episode ends with step 2: starts 0 and 1 sum two rewards, start 2 one.
    # R = 1 + ½·2, 2 + ½·4, 4; V' of the last steps 1, 2, 2 = 8, nan, nan.
    # Start 0: γ² = ¼ of 8 beside R = 2 is 4; the other two end in the terminal step: 4 and 4.
    rewards, terminated = jnp.array([1.0, 2.0, 4.0]), jnp.array([False, False, True])
    returns, discounts, last = n_step(rewards, terminated, jnp.zeros(3, bool), discount=0.5, n=2)
    next_values = jnp.array([1.0, 8.0, jnp.nan])[last]
    targets = bellman_targets(returns, terminated[last], next_values, discount=discounts)
    np.testing.assert_array_equal(targets, [4.0, 4.0, 4.0])
    # The discounts alone know of the end, too.
    no = jnp.zeros(3, bool)
    np.testing.assert_array_equal(
        bellman_targets(returns, no, next_values, discount=discounts), targets
    )


@pytest.mark.errors
def test_shapes_must_fit():
    three, column = jnp.ones(3), jnp.ones((3, 1))
    for arrays in ((column, three, three), (three, column, three), (three, three, column)):
        with pytest.raises(ValueError, match=r"\(3, 1\)"):
            bellman_targets(*arrays, discount=0.9)
    with pytest.raises(ValueError, match=r"discount .*\(3,\), got \(2,\)"):
        bellman_targets(three, three, three, discount=jnp.ones(2))
