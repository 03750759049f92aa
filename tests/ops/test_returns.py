"""Returns against their definitions as sums, in float64 Python loops; what all functions share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import returns as ops

from .episodes import SHAPES, columns, episodes

# Compiled once per shape; `test_jit_equals_eager` looks at the plain functions.
discounted_returns, lambda_returns = jax.jit(ops.discounted_returns), jax.jit(ops.lambda_returns)
gae, token_gae = jax.jit(ops.gae), jax.jit(ops.token_gae)
n_step = jax.jit(ops.n_step, static_argnames="n")

NAN, INF = np.nan, np.inf


def test_what_follows_a_terminal_step_changes_neither_values_nor_gradients():
    rewards, values, next_values, terminated, truncated = episodes(7, (9, 4))
    discounts = np.where(terminated, 0.0, 0.9)
    lambdas = np.where(truncated, 0.0, 0.8)

    def advantages(next_values):
        return gae(rewards, values, next_values, terminated, truncated, discount=0.9, lambda_=0.8)

    def returns(next_values):
        return lambda_returns(rewards, discounts, next_values, lambda_=lambdas)

    for function in (advantages, returns):
        gradient = jax.jit(jax.grad(lambda x, f=function: jnp.sum(jnp.sin(f(x)))))
        clean = np.where(terminated, 0.0, next_values).astype(np.float32)
        for garbage in (NAN, INF, -INF, 1e30):
            poisoned = np.where(terminated, garbage, next_values).astype(np.float32)
            np.testing.assert_array_equal(function(poisoned), function(clean))
            grad = np.asarray(gradient(poisoned))
            np.testing.assert_array_equal(grad[terminated], 0.0)
            np.testing.assert_array_equal(grad, gradient(clean))
            assert (grad[~terminated] != 0).all()


def test_nan_in_one_episode_stays_there():
    rewards, values, next_values, terminated, truncated = episodes(3, (8,), ends=0.0)
    terminated[2] = truncated[5] = True
    rewards[6] = NAN  # in the third episode

    def bad(x):
        return np.flatnonzero(np.isnan(x)).tolist()

    advantages = gae(rewards, values, next_values, terminated, truncated, discount=0.9, lambda_=0.8)
    assert bad(advantages) == [6]
    ended = terminated | truncated
    discounts, lambdas = np.where(terminated, 0, 0.9), np.where(ended, 0, 0.8)
    assert bad(lambda_returns(rewards, discounts, next_values, lambda_=lambdas)) == [6]
    assert bad(discounted_returns(rewards, np.where(ended, 0, 0.9), np.array(0.0))) == [6]
    returns, bootstrap, _ = n_step(rewards, terminated, truncated, discount=0.9, n=8)
    assert (bad(returns), bad(bootstrap)) == ([6], [])


def test_discounted_returns_equal_the_sum_of_products():
    for seed, shape in enumerate(SHAPES * 2):
        rng = np.random.default_rng(seed)
        rewards, discounts = rng.normal(size=shape), rng.choice([0.0, 0.5, 0.9, 1.0], shape)
        last = rng.normal(size=shape[1:])
        (r, d, v), _ = columns(rewards, discounts, np.broadcast_to(last, shape))
        expected = np.zeros(r.shape)
        for t, b in np.ndindex(r.shape):
            for k in range(t, len(r)):
                expected[t, b] += np.prod(d[t:k, b]) * r[k, b]
            expected[t, b] += np.prod(d[t:, b]) * v[0, b]
        returns = discounted_returns(rewards, discounts, last)
        np.testing.assert_allclose(returns, expected.reshape(shape), rtol=1e-4, atol=1e-5)


def test_a_zero_discount_shuts_out_garbage_but_has_a_gradient():
    returns = discounted_returns(np.ones(3), np.array([0.5, 0.0, 1.0]), np.array(NAN))
    np.testing.assert_array_equal(returns[:2], [1.5, 1.0])
    # G_0 = 1 + d_0 (1 + d_1 · 7): dG_0/dd_1 = d_0 · 7 = 3.5, at d_1 = 0 as well.
    grad = jax.grad(lambda d: discounted_returns(jnp.ones(2), d, jnp.array(7.0))[0])
    np.testing.assert_allclose(grad(jnp.array([0.5, 0.0])), [1.0, 3.5])


@pytest.mark.parametrize("shape", SHAPES)
def test_lambda_returns_mix_the_n_step_returns(shape):
    discount = 0.9
    for seed, lambda_ in enumerate([0.0, 0.0, 0.4, 0.4, 0.8, 1.0, 1.0]):
        rewards, _, next_values, terminated, truncated = episodes(seed, shape)
        returns = lambda_returns(
            rewards,
            np.where(terminated, 0.0, discount),
            next_values,
            lambda_=np.where(truncated, 0.0, lambda_),
        )
        (r, v, term, trunc), _ = columns(rewards, next_values, terminated, truncated)
        expected = np.zeros(r.shape)
        for t, b in np.ndindex(r.shape):
            end = next((k for k in range(t, len(r)) if term[k, b] or trunc[k, b]), len(r) - 1)
            weights = [(1 - lambda_) * lambda_ ** (k - t) for k in range(t, end)]
            weights.append(lambda_ ** (end - t))  # all that is left goes to the longest return
            for k, weight in zip(range(t, end + 1), weights):
                total = sum(discount ** (i - t) * r[i, b] for i in range(t, k + 1))
                total += 0.0 if term[k, b] else discount ** (k - t + 1) * v[k, b]
                expected[t, b] += weight * total
        np.testing.assert_allclose(returns, expected.reshape(shape), rtol=1e-4, atol=1e-4)


def n_step_by_hand(rewards, terminated, truncated, discount, n):
    """Walks forward from every start."""
    (r, term, trunc), shape = columns(rewards, terminated, truncated)
    returns, bootstraps, lasts = np.zeros(r.shape), np.zeros(r.shape), np.zeros(r.shape, int)
    for start, b in np.ndindex(r.shape):
        t = start
        while True:
            returns[start, b] += discount ** (t - start) * r[t, b]
            if term[t, b] or trunc[t, b] or t - start + 1 == n or t == len(r) - 1:
                break
            t += 1
        bootstraps[start, b] = 0.0 if term[t, b] else discount ** (t - start + 1)
        lasts[start, b] = t
    return [x.reshape(shape) for x in (returns, bootstraps, lasts)]


def test_n_step_by_hand():
    # Step 1 is truncated, step 3 terminated, step 4 the end of the array; γ = 1/2, n = 3.
    rewards = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    returns, bootstraps, lasts = n_step(
        rewards, np.array([0, 0, 0, 1, 0]), np.array([0, 1, 0, 0, 0]), discount=0.5, n=3
    )
    np.testing.assert_array_equal(returns, [1 + 1, 2, 4 + 4, 8, 16])
    np.testing.assert_array_equal(bootstraps, [0.25, 0.5, 0.0, 0.0, 0.5])
    np.testing.assert_array_equal(lasts, [1, 1, 3, 3, 4])


@pytest.mark.parametrize("n", [1, 3, 50])
@pytest.mark.parametrize("shape", SHAPES)
def test_n_step_equals_a_walk(shape, n):
    for seed, discount in enumerate([0.0, 0.5, 0.99, 1.0]):
        rewards, _, _, terminated, truncated = episodes(seed, shape, ends=0.15)
        ours = n_step(rewards, terminated, truncated, discount=discount, n=n)
        for got, expected in zip(ours, n_step_by_hand(rewards, terminated, truncated, discount, n)):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        assert [x.dtype for x in ours] == [jnp.float32, jnp.float32, jnp.int32]


def test_one_step_targets_are_the_td_targets():
    rewards, _, next_values, terminated, truncated = episodes(2, (6, 2))
    returns, bootstraps, lasts = n_step(rewards, terminated, truncated, discount=0.9, n=1)
    values = np.take_along_axis(next_values, np.asarray(lasts), axis=0)
    expected = rewards + np.where(terminated, 0, 0.9) * next_values
    np.testing.assert_allclose(returns + bootstraps * values, expected, rtol=1e-5, atol=1e-5)


def test_jit_equals_eager():
    inputs = [np.float32(x) for x in episodes(4, (5, 2))]
    rewards, _, _, terminated, truncated = inputs
    for function, arguments, options in [
        ("gae", inputs, {"discount": 0.9, "lambda_": 0.8}),
        ("n_step", (rewards, terminated, truncated), {"discount": 0.9, "n": 2}),
    ]:
        eager = getattr(ops, function)(*arguments, **options)
        jitted = globals()[function](*arguments, **options)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), jitted, eager)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, jnp.bfloat16])
def test_flags_of_any_dtype(dtype):
    @jax.jit
    def everything(rewards, values, next_values, terminated, truncated):
        return (
            ops.gae(rewards, values, next_values, terminated, truncated, discount=1, lambda_=1),
            ops.token_gae(rewards, values, terminated, discount=1, lambda_=1),
            ops.n_step(rewards, terminated, truncated, discount=0.9, n=2),
        )

    *numbers, terminated, truncated = episodes(4, (5, 2))
    flags = jnp.asarray(terminated).astype(dtype), jnp.asarray(truncated).astype(dtype)
    expected, got = everything(*numbers, terminated, truncated), everything(*numbers, *flags)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_bfloat16_and_whole_numbers_in_float32_out():
    *numbers, terminated, truncated = episodes(4, (5, 2))
    half = [jnp.asarray(x, jnp.bfloat16) for x in numbers]
    wide = [x.astype(jnp.float32) for x in half]
    flags, rates = (terminated, truncated), {"discount": 0.9, "lambda_": 0.8}
    # Two programs may round apart, but not as bfloat16 would, by 4e-3.
    np.testing.assert_allclose(
        gae(*half, *flags, **rates), gae(*wide, *flags, **rates), rtol=1e-5, atol=1e-5
    )
    shapes = [
        jax.eval_shape(lambda x: token_gae(x, x, terminated, **rates), half[0]),
        jax.eval_shape(lambda x: lambda_returns(x, x, x, lambda_=0.5), half[0]),
        jax.eval_shape(lambda x: discounted_returns(x, x, x[0]), half[0]),
        jax.eval_shape(lambda x: n_step(x, *flags, discount=0.9, n=2)[0], half[0]),
    ]
    assert {(x.shape, x.dtype) for x in shapes} == {((5, 2), jnp.dtype(jnp.float32))}
    # Whole numbers as rewards, as some environments give: 1 + (1 + 1), 1 + 1.
    rewards = np.ones(2, int)
    np.testing.assert_array_equal(discounted_returns(rewards, np.ones(2), np.ones(())), [3, 2])


@pytest.mark.errors
def test_wrong_shapes_raise_with_both_shapes():
    column, row, scalar = np.ones((3, 1)), np.ones(3), np.ones(())
    pair = r"\(3, 1\).*\(3,\)|\(3,\).*\(3, 1\)"
    rates = {"discount": 0.9, "lambda_": 0.9}
    for i in range(1, 5):
        inputs = [row] * 5
        inputs[i] = column
        with pytest.raises(ValueError, match=pair):
            gae(*inputs, **rates)
    for i in (1, 2):
        inputs = [row[None]] * 3
        inputs[i] = row[None, :, None]
        with pytest.raises(ValueError, match=r"\(1, 3\).*\(1, 3, 1\)"):
            token_gae(*inputs, **rates)
        inputs = [row] * 3
        inputs[i] = column
        with pytest.raises(ValueError, match=pair):
            n_step(*inputs, discount=0.9, n=2)
        with pytest.raises(ValueError, match=pair):
            lambda_returns(*inputs, lambda_=0.5)
    with pytest.raises(ValueError, match=r"lambda_ must have shape \(\) or \(3,\), got \(3, 1\)"):
        lambda_returns(row, row, row, lambda_=column)
    with pytest.raises(ValueError, match=pair):
        discounted_returns(row, column, scalar)
    with pytest.raises(ValueError, match=r"bootstrap_values must have shape \(1,\), got \(\)"):
        discounted_returns(column, column, scalar)
    with pytest.raises(ValueError, match=r"discount .*trailing shape of \(3,\), got \(3, 1\)"):
        gae(*[row] * 5, discount=column, lambda_=0.9)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        n_step(row, row, row, discount=0.9, n=0)
