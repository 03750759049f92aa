"""Advantages against their definition as sums, in float64 Python loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import returns as ops

from .episodes import SHAPES, columns, episodes

# Compiled once per shape; `test_returns.py` looks at the plain functions.
gae, token_gae = jax.jit(ops.gae), jax.jit(ops.token_gae)
lambda_returns = jax.jit(ops.lambda_returns)
n_step = jax.jit(ops.n_step, static_argnames="n")

NAN, INF = np.nan, np.inf


def gae_by_definition(rewards, values, next_values, terminated, truncated, discount, lambda_):
    """A_t = Σ_l (γλ)^l δ_{t+l}, added up to and with the step that ends the episode."""
    flat, shape = columns(rewards, values, next_values, terminated, truncated)
    rewards, values, next_values, terminated, truncated = flat
    advantages = np.zeros(rewards.shape)
    for t, b in np.ndindex(rewards.shape):
        for k in range(t, len(rewards)):
            successor = 0.0 if terminated[k, b] else discount * next_values[k, b]
            delta = rewards[k, b] + successor - values[k, b]
            advantages[t, b] += (discount * lambda_) ** (k - t) * delta
            if terminated[k, b] or truncated[k, b]:
                break
    return advantages.reshape(shape)


def test_truncation_cuts_the_trace_and_keeps_the_bootstrap():
    # δ = 1 + .9·.6 - .4, .5 + .9·3 - .6, -1 - .9·.2 - 1.5, 2 + .9·.8 + .2, .25 + .9·1.1 - .8
    #   = 1.14, 2.6, -2.68, 2.92, .44. Step 1 is truncated: A_1 = 2.6, A_0 = 1.14 + .72·2.6 = 3.012.
    # A_4 = .44, A_3 = 2.92 + .72·.44 = 3.2368, A_2 = -2.68 + .72·3.2368 = -.349504.
    values = np.array([0.4, 0.6, 1.5, -0.2, 0.8])
    advantages = gae(
        np.array([1.0, 0.5, -1.0, 2.0, 0.25]),
        values,
        np.array([0.6, 3.0, -0.2, 0.8, 1.1]),
        np.zeros(5),
        np.array([0, 1, 0, 0, 0]),
        discount=0.9,
        lambda_=0.8,
    )
    expected = [3.012, 2.6, -0.349504, 3.2368, 0.44]
    np.testing.assert_allclose(advantages, expected, rtol=1e-5)
    targets = [3.412, 3.2, 1.150496, 3.0368, 1.24]
    np.testing.assert_allclose(advantages + values, targets, rtol=1e-5)


@pytest.mark.parametrize("reset_value", [40.0, INF, NAN])
def test_the_flag_belongs_to_the_step_that_ended_the_episode(reset_value):
    # Step 1 is terminal: A_1 = -5 - 2 = -7, A_0 = 0 + .95·2 - 1 + .855·(-7) = -5.085.
    # Step 3 bootstraps from 4: A_3 = 1 + .95·4 - 3 = 1.8, A_2 = 1 + .95·3 - 40 + .855·1.8 = -34.611
    advantages = gae(
        np.array([0.0, -5.0, 1.0, 1.0]),
        np.array([1.0, 2.0, 40.0, 3.0]),
        np.array([2.0, reset_value, 3.0, 4.0]),
        np.array([0, 1, 0, 0]),
        np.zeros(4),
        discount=0.95,
        lambda_=0.9,
    )
    np.testing.assert_allclose(advantages, [-5.085, -7.0, -34.611, 1.8], rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_gae_equals_its_definition(shape):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        discount, lambda_ = rng.choice([0.0, 0.5, 0.99, 1.0]), rng.choice([0.0, 0.6, 1.0])
        inputs = episodes(seed, shape, ends=rng.choice([0.0, 0.2, 0.6]))
        advantages = gae(*inputs, discount=discount, lambda_=lambda_)
        expected = gae_by_definition(*inputs, discount, lambda_)
        np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-4)


def test_gae_telescopes_into_the_lambda_return():
    # Where next_values_t = values_{t+1} inside an episode, A_t + V_t is the λ-return.
    rewards, values, next_values, terminated, truncated = episodes(5, (10, 3))
    inside = ~(terminated | truncated)[:-1]
    next_values[:-1] = np.where(inside, values[1:], next_values[:-1])
    advantages = gae(rewards, values, next_values, terminated, truncated, discount=0.9, lambda_=0.7)
    returns = lambda_returns(
        rewards,
        np.where(terminated, 0, 0.9),
        next_values,
        lambda_=np.where(truncated, 0, 0.7),
    )
    np.testing.assert_allclose(advantages + values, returns, rtol=1e-5, atol=1e-5)


def test_gae_gradient_is_that_of_the_definition():
    inputs = [np.array(x) for x in episodes(11, (5, 2))]
    weights = np.random.default_rng(0).normal(size=(5, 2))

    def objective(rewards, values, next_values):
        return jnp.sum(weights * gae(rewards, values, next_values, *inputs[3:], **rates))

    rates = {"discount": 0.9, "lambda_": 0.8}
    grads = jax.jit(jax.grad(objective, (0, 1, 2)))(*map(jnp.float32, inputs[:3]))
    for i in range(3):
        slopes = np.zeros((5, 2))
        for index in np.ndindex(5, 2):  # linear in each, so a step of 1 is exact
            moved = [x.copy() for x in inputs]
            moved[i][index] += 1.0
            change = gae_by_definition(*moved, 0.9, 0.8) - gae_by_definition(*inputs, 0.9, 0.8)
            slopes[index] = (weights * change).sum()
        np.testing.assert_allclose(grads[i], slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("discount", [0.0, 0.6, 1.0])
def test_gradient_to_a_traced_discount(discount):
    inputs = episodes(13, (6, 2))
    slope = jax.jit(jax.grad(lambda d: jnp.sum(gae(*inputs, discount=d, lambda_=0.8))))(discount)
    above, below = (gae_by_definition(*inputs, discount + h, 0.8).sum() for h in (1e-6, -1e-6))
    np.testing.assert_allclose(slope, (above - below) / 2e-6, rtol=1e-3, atol=1e-3)


def test_discounts_of_the_trailing_shape():
    inputs = episodes(17, (6, 3))
    discount, lambda_ = np.array([0.0, 0.5, 0.9]), np.array([1.0, 0.3, 0.8])
    advantages = gae(*inputs, discount=discount, lambda_=lambda_)
    sums = n_step(inputs[0], *inputs[3:], discount=discount, n=3)
    for b in range(3):
        one = [x[:, b] for x in inputs]
        expected = gae_by_definition(*one, discount[b], lambda_[b])
        np.testing.assert_allclose(advantages[:, b], expected, rtol=1e-4, atol=1e-5)
        single = n_step(one[0], *one[3:], discount=discount[b], n=3)
        for ours, expected in zip(sums, single):
            np.testing.assert_allclose(ours[:, b], expected, rtol=1e-6)


def test_padding_does_not_leak_into_the_last_token():
    # δ = .4 - .2, .6 - .4, 1 - .6 = .2, .2, .4; A_2 = .4, A_1 = .2 + .95·.4 = .58,
    # A_0 = .2 + .95·.58 = .751.
    values = np.array([[0.2, 0.4, 0.6, 100.0, NAN]])
    rewards = np.array([[0.0, 0.0, 1.0, INF, NAN]])
    advantages = token_gae(rewards, values, np.array([[1, 1, 1, 0, 0]]), discount=1.0, lambda_=0.95)
    np.testing.assert_allclose(advantages, [[0.751, 0.58, 0.4, 0.0, 0.0]], rtol=1e-5)


def test_token_gae_is_gae_over_the_kept_tokens():
    for seed in range(25):
        rng = np.random.default_rng(seed)
        rewards, values = rng.normal(size=(2, 5, 9))
        mask = rng.random((5, 9)) < rng.choice([0.2, 0.6, 0.9])
        mask[0], mask[1] = False, np.arange(9) < 4  # an empty row, right padding
        mask[2] = np.arange(9) > 4  # left padding
        discount, lambda_ = rng.choice([0.0, 0.9, 1.0]), rng.choice([0.0, 0.95, 1.0])
        expected = np.zeros((5, 9))
        for row in range(5):
            kept = np.flatnonzero(mask[row])
            if len(kept):
                r, v = rewards[row, kept], values[row, kept]
                last = np.arange(len(kept)) == len(kept) - 1
                successors = np.append(v[1:], 1e9)
                expected[row, kept] = gae_by_definition(
                    r, v, successors, last, np.zeros(len(kept)), discount, lambda_
                )
        poison = rng.choice([NAN, INF, -INF, 1e30], (2, 5, 9))
        poisoned = np.where(mask, np.stack([rewards, values]), poison)
        advantages = token_gae(*poisoned, mask, discount=discount, lambda_=lambda_)
        np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(np.asarray(advantages)[~mask], 0.0)


def test_masked_tokens_get_no_gradient():
    mask = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]])
    poisoned = jnp.where(mask != 0, jnp.arange(10.0).reshape(2, 5), NAN)

    def objective(rewards, values):
        return jnp.sum(jnp.sin(token_gae(rewards, values, mask, discount=0.9, lambda_=0.8)))

    for grad in jax.jit(jax.grad(objective, (0, 1)))(poisoned, poisoned):
        np.testing.assert_array_equal(np.asarray(grad)[mask == 0], 0.0)
        assert np.isfinite(grad).all()
        assert (np.asarray(grad)[mask == 1] != 0).all()
