"""Returns and advantages against their definitions as sums, in float64 Python loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import returns as ops

# Compiled once per shape; `test_jit_equals_eager` looks at the plain functions.
discounted_returns, lambda_returns = jax.jit(ops.discounted_returns), jax.jit(ops.lambda_returns)
gae, token_gae = jax.jit(ops.gae), jax.jit(ops.token_gae)
n_step = jax.jit(ops.n_step, static_argnames="n")

NAN, INF = np.nan, np.inf
SHAPES = [(6,), (7, 3), (4, 2, 2)]


def episodes(seed, shape, ends=0.25):
    """Random rewards, values and flags; now and then a step is both terminated and truncated."""
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, *shape)) * 2
    terminated, truncated = rng.random((2, *shape)) < ends
    return rewards, values, next_values, terminated, truncated


def columns(*arrays):
    """The arrays as float64 [T, N] and the shape to give results back in."""
    flat = [np.asarray(array).reshape(len(array), -1) for array in arrays]
    return flat, np.asarray(arrays[0]).shape


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
    np.testing.assert_array_equal(gae(*half, *flags, **rates), gae(*wide, *flags, **rates))
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
