"""Group advantages against float64 NumPy, one group at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import groups as ops

group_advantages = jax.jit(ops.group_advantages, static_argnames=("scale", "ddof"))
leave_one_out_advantages = jax.jit(ops.leave_one_out_advantages)
NAN, INF = np.nan, np.inf


def kept_members(rewards, valid):
    """For every row from which something can be learnt: its index and its valid members."""
    for row in range(len(rewards)):
        kept = np.flatnonzero(valid[row] & ~np.isnan(rewards[row]))
        if len(kept) >= 2 and np.ptp(rewards[row, kept]) > 0:
            yield row, kept


def random_groups(seed):
    """Rewards with rows of one value, NaN among the valid, garbage among the invalid."""
    rng = np.random.default_rng(seed)
    rewards = rng.choice([rng.normal(size=(8, 5)), rng.integers(0, 2, (8, 5))]).astype(np.float32)
    rewards[0] = 0.1
    valid = rng.random((8, 5)) < 0.7
    valid[1], valid[2] = False, np.arange(5) == 3
    rewards[rng.random((8, 5)) < 0.1] = NAN
    garbage = rng.choice([NAN, INF, -INF, 1e30], (8, 5))
    return np.where(valid, rewards, garbage).astype(np.float32), valid


@pytest.mark.parametrize("ddof", [0, 1])
def test_group_advantages_equal_numpy_group_by_group(ddof):
    for seed in range(20):
        rewards, valid = random_groups(seed)
        scaled, centred = np.zeros((2, 8, 5))
        for row, kept in kept_members(rewards, valid):
            r = rewards[row, kept].astype(np.float64)
            centred[row, kept] = r - r.mean()
            scaled[row, kept] = (r - r.mean()) / (r.std(ddof=ddof) + 1e-6)
        got = np.asarray(group_advantages(rewards, valid=valid, ddof=ddof))
        np.testing.assert_allclose(got, scaled, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(got[scaled == 0], 0.0)
        plain = group_advantages(rewards, valid=valid, scale="none")
        np.testing.assert_allclose(plain, centred, rtol=1e-4, atol=1e-5)


def test_leave_one_out_equals_the_mean_of_the_others():
    for seed in range(20):
        rewards, valid = random_groups(seed)
        expected = np.zeros((8, 5))
        for row, kept in kept_members(rewards, valid):
            for i in kept:
                others = rewards[row, kept[kept != i]].astype(np.float64)
                expected[row, i] = rewards[row, i] - others.mean()
        got = np.asarray(leave_one_out_advantages(rewards, valid=valid))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(got[expected == 0], 0.0)


def test_the_spread_divides_by_n_or_by_n_minus_one():
    # Mean 1, deviations 2, 0, -1, -1, squares 6: variance 6/4 or 6/3.
    rewards = np.array([[3.0, 1.0, 0.0, 0.0]])
    by_n = group_advantages(rewards, eps=0.0)
    np.testing.assert_allclose(by_n, [[1.6329932, 0, -0.8164966, -0.8164966]], rtol=1e-6)
    by_less = group_advantages(rewards, eps=0.0, ddof=1)
    np.testing.assert_allclose(by_less, [[1.4142136, 0, -0.7071068, -0.7071068]], rtol=1e-6)
    plain = group_advantages(rewards, scale="none")
    np.testing.assert_array_equal(plain, [[2.0, 0.0, -1.0, -1.0]])
    # eps is added to the standard deviation, not to the variance: 2 / (sqrt(1.5) + 1).
    np.testing.assert_allclose(group_advantages(rewards, eps=1.0)[0, 0], 0.8989795, rtol=1e-6)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_a_group_of_one_is_zero(ddof, eps):
    np.testing.assert_array_equal(group_advantages(np.array([[0.7]]), ddof=ddof, eps=eps), [[0.0]])
    np.testing.assert_array_equal(leave_one_out_advantages(np.array([[0.7]])), [[0.0]])


def test_layout_is_prompt_major():
    # Means 2 and 20 of the prompts (1, 2, 3) and (10, 20, 30).
    rewards = np.array([1.0, 2.0, 3.0, 10.0, 20.0, 30.0]).reshape(2, 3)
    centred = group_advantages(rewards, scale="none")
    np.testing.assert_array_equal(centred, [[-1, 0, 1], [-10, 0, 10]])
    # Each prompt's group is normalised alone: both become the same.
    np.testing.assert_allclose(group_advantages(rewards, eps=0.0)[0], [-1.2247449, 0, 1.2247449])
    np.testing.assert_allclose(*group_advantages(rewards, eps=0.0), rtol=1e-6)


def test_shuffled_completions_sorted_by_prompt_and_put_back():
    rewards, prompts = np.array([1.0, 10, 2, 20, 30, 3]), np.array([0, 1, 0, 1, 1, 0])
    order = np.argsort(prompts, kind="stable")
    centred = np.empty(6)
    centred[order] = np.ravel(group_advantages(rewards[order].reshape(2, 3), scale="none"))
    np.testing.assert_array_equal(centred, [-1, -10, 0, 0, 10, 1])


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, -0.3, 1e6, 1e30])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_equal_rewards_are_exactly_zero_without_any_eps(value, size):
    # The float32 mean of seven times 0.1 differs from 0.1 in the last bit.
    rewards = np.full((1, size), value, np.float32)
    valid = np.arange(size)[None] < max(2, size - 1)
    rewards[~valid] = NAN
    for ddof in (0, 1):
        got = group_advantages(rewards, valid=valid, ddof=ddof, eps=0.0)
        np.testing.assert_array_equal(got, np.zeros((1, size)))
    got = group_advantages(rewards, valid=valid, scale="none")
    np.testing.assert_array_equal(got, np.zeros((1, size)))
    got = leave_one_out_advantages(rewards, valid=valid)
    np.testing.assert_array_equal(got, np.zeros((1, size)))


def test_nan_is_invalid_and_touches_neither_its_group_nor_another():
    rewards = np.array([[1.0, NAN, 3.0], [NAN, NAN, 5.0], [0.0, 1.0, 2.0]])
    # Row 0 is (1, 3): mean 2, spread 1. Row 1 has one member. Row 2: mean 1, spread sqrt(2/3).
    expected = [[-1, 0, 1], [0, 0, 0], [-1.2247449, 0, 1.2247449]]
    np.testing.assert_allclose(group_advantages(rewards, eps=0.0), expected, rtol=1e-6)
    expected = [[-2, 0, 2], [0, 0, 0], [-1.5, 0, 1.5]]
    np.testing.assert_allclose(leave_one_out_advantages(rewards), expected, rtol=1e-6)


def test_small_spread_on_a_large_mean():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        rewards = (1e6 + rng.normal(size=(4, 16))).astype(np.float32)
        r = rewards.astype(np.float64)
        expected = (r - r.mean(1, keepdims=True)) / r.std(1, keepdims=True)
        np.testing.assert_allclose(group_advantages(rewards, eps=0.0), expected, atol=1e-4)


def test_dtypes_jit_and_eager():
    rewards, valid = np.array([[0, 1, 1, 0], [1, 1, 1, 1]]), np.array([[1, 1, 1, 0]] * 2)
    # (0, 1, 1): mean 2/3, spread sqrt(2)/3.
    expected = [[-1.4142136, 0.7071068, 0.7071068, 0], [0, 0, 0, 0]]
    for kind, flags in [(np.int32, bool), (np.float64, np.float32), (jnp.bfloat16, jnp.bfloat16)]:
        arguments = rewards.astype(kind), valid.astype(flags)
        got = group_advantages(arguments[0], valid=arguments[1], eps=0.0)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    eager = ops.group_advantages(rewards, valid=valid, eps=0.0)
    np.testing.assert_allclose(eager, expected, rtol=1e-6)


def test_gradients_are_finite_and_zero_for_what_is_invalid():
    rewards, valid = random_groups(0)
    for function in (group_advantages, leave_one_out_advantages):
        grad = jax.jit(jax.grad(lambda r, f=function: jnp.sum(jnp.sin(f(r, valid=valid)))))(rewards)
        assert np.isfinite(grad).all()
        np.testing.assert_array_equal(np.asarray(grad)[~valid], 0.0)


@pytest.mark.errors
def test_bad_input_raises():
    rewards = np.ones((2, 3))
    for function in (ops.group_advantages, ops.leave_one_out_advantages):
        with pytest.raises(
            ValueError, match=r"rewards must be \[prompts, group\], got shape \(6,\)"
        ):
            function(np.ones(6))
        with pytest.raises(ValueError, match=r"rewards \(2, 3\) and valid \(2,\)"):
            function(rewards, valid=np.ones(2))
    with pytest.raises(ValueError, match='scale must be "std" or "none", got \'max\''):
        ops.group_advantages(rewards, scale="max")
    with pytest.raises(ValueError, match="ddof must be 0 or 1, got 2"):
        ops.group_advantages(rewards, ddof=2)
