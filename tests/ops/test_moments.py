"""Running moments against float64 NumPy on the joined data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import moments as ops
from rljax.ops.moments import init_moments, variance

update_moments, merge_moments = jax.jit(ops.update_moments), jax.jit(ops.merge_moments)
NAN, INF = np.nan, np.inf


def check(moments, data, rtol=1e-5, atol=1e-5):
    """Compares with the mean and variance of data [N, *shape], given in float64."""
    np.testing.assert_allclose(moments.count, len(data))
    np.testing.assert_allclose(moments.mean, data.mean(0), rtol=2e-7, atol=atol)
    np.testing.assert_allclose(variance(moments), data.var(0), rtol=rtol, atol=atol)


def test_by_hand():
    # 1, 3: mean 2, variance 1. With 8: mean 4, variance (9 + 1 + 16) / 3.
    moments = update_moments(init_moments(()), np.array([1.0, 3.0]))
    np.testing.assert_array_equal([moments.count, moments.mean, variance(moments)], [2, 2, 1])
    moments = update_moments(moments, np.array(8.0))  # one sample, no leading axis
    np.testing.assert_array_equal([moments.count, moments.mean], [3, 4])
    np.testing.assert_allclose(variance(moments), 26 / 3, rtol=1e-6)


def test_no_samples():
    empty = init_moments((2,))
    np.testing.assert_array_equal(empty.count, 0.0)
    np.testing.assert_array_equal(variance(empty), [0.0, 0.0])
    both = merge_moments(empty, empty)
    jax.tree.map(np.testing.assert_array_equal, both, empty)
    some = update_moments(empty, np.array([[1.0, 2.0], [5.0, 2.0]]))
    for merged in (merge_moments(empty, some), merge_moments(some, empty)):
        jax.tree.map(np.testing.assert_array_equal, merged, some)
    nothing = update_moments(some, np.full((3, 2), NAN), np.zeros(3))
    jax.tree.map(np.testing.assert_array_equal, nothing, some)
    alone = update_moments(empty, np.array([[7.0, -1.0]]))
    np.testing.assert_array_equal(alone.mean, [7.0, -1.0])
    np.testing.assert_array_equal(variance(alone), [0.0, 0.0])


@pytest.mark.parametrize("mean", [0.0, 5.0, -1e6])
def test_any_split_in_any_order_equals_the_joined_data(mean):
    sizes = [1, 2, 40, 7]
    for seed in range(6):
        rng = np.random.default_rng(seed)
        shift = rng.normal(size=(4, 1, 3))  # the parts differ in their means
        data = [
            (mean + 2 * shift[i] + rng.normal(size=(size, 3))).astype(np.float32)
            for i, size in enumerate(sizes)
        ]
        joined = np.concatenate(data).astype(np.float64)
        running = init_moments((3,))
        for i in rng.permutation(4):
            running = update_moments(running, data[i])
        check(running, joined)
        a, b, c, d = (update_moments(init_moments((3,)), part) for part in data)
        for merged in (
            merge_moments(merge_moments(a, b), merge_moments(c, d)),
            merge_moments(merge_moments(merge_moments(d, c), a), b),
        ):
            check(merged, joined)


def test_masked_samples_may_be_anything():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        data, mask = rng.normal(size=(5, 4, 2)).astype(np.float32), rng.random((5, 4)) < 0.5
        mask[0, 0] = True
        garbage = rng.choice([NAN, INF, -INF, 3e38], data.shape)
        poisoned = np.where(mask[..., None], data, garbage).astype(np.float32)
        moments = update_moments(init_moments((2,)), poisoned, mask)
        check(moments, data[mask].astype(np.float64))
        again = update_moments(moments, poisoned, jnp.asarray(mask, jnp.bfloat16))
        check(again, np.concatenate([data[mask]] * 2).astype(np.float64))


def test_a_small_spread_on_a_large_mean_survives_many_batches():
    rng = np.random.default_rng(0)
    data = (1e6 + rng.normal(size=(400, 16))).astype(np.float32)

    @jax.jit
    def run(batches):
        start = init_moments(())
        return jax.lax.scan(lambda m, x: (ops.update_moments(m, x), None), start, batches)[0]

    check(run(data), data.astype(np.float64).ravel(), rtol=1e-4)


def doubled(moments, times):
    for _ in range(times):
        moments = merge_moments(moments, moments)
    return moments


def exact_count(moments):
    return int(moments.count) + int(moments.count_rest)


def test_the_count_goes_on_beyond_2_to_the_24():
    moments = doubled(update_moments(init_moments(()), np.array([-1.0, 1.0])), 23)
    assert exact_count(moments) == 2**24
    for i in range(1, 6):  # float32 alone would stay at 2^24 for ever
        moments = update_moments(moments, np.array([1.0]))
        assert exact_count(moments) == 2**24 + i
    assert moments.count == 2**24 + 4  # 2^24 + 5 is no float32 number
    moments = merge_moments(doubled(moments, 20), moments)
    assert exact_count(moments) == (2**24 + 5) * (2**20 + 1)
    np.testing.assert_allclose(variance(moments), 1.0, rtol=1e-5)


def test_mean_and_variance_still_move_when_single_samples_are_tiny_shares():
    # 2^20 samples of 10^6 ± 1, then 4096 of 10^6 + 100, one at a time. Each moves the mean by
    # 10^-4, less than the 0.06 between float32 numbers there; together by 100·4096/1052672 = 0.389.
    moments = doubled(update_moments(init_moments(()), np.array([1e6 - 1, 1e6 + 1])), 19)

    @jax.jit
    def run(moments, batches):
        return jax.lax.scan(lambda m, x: (ops.update_moments(m, x), None), moments, batches)[0]

    moments = run(moments, np.full((4096, 1), 1e6 + 100, np.float32))
    assert exact_count(moments) == 2**20 + 4096
    share = 4096 / (2**20 + 4096)
    np.testing.assert_allclose(moments.mean - 1e6, 100 * share, atol=0.032)
    precise = moments.origin - 1e6 + moments.offset
    np.testing.assert_allclose(precise, 100 * share, rtol=1e-4)
    # Between the two groups: share (1 - share) 100², within them: 1 - share.
    expected = share * (1 - share) * 1e4 + (1 - share)
    np.testing.assert_allclose(variance(moments), expected, rtol=1e-4)


def test_vmap_and_jit_equal_one_at_a_time():
    batches = np.random.default_rng(3).normal(size=(3, 10, 2)).astype(np.float32)
    together = jax.jit(jax.vmap(lambda x: ops.update_moments(init_moments((2,)), x)))(batches)
    for i, batch in enumerate(batches):
        alone = ops.update_moments(init_moments((2,)), batch)
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, atol=1e-6), together, alone
        )


def test_moments_may_be_an_auxiliary_result_of_a_gradient():
    def loss(x):
        moments = ops.update_moments(init_moments(()), x)
        return jnp.sum(x**2), moments

    grad, moments = jax.grad(loss, has_aux=True)(jnp.array([1.0, 3.0]))
    np.testing.assert_array_equal(grad, [2.0, 6.0])
    assert moments.mean == 2.0


def test_other_dtypes_become_float32():
    pixels = np.array([[0, 255], [255, 255]], np.uint8)
    moments = update_moments(init_moments((2,)), pixels)
    np.testing.assert_array_equal(moments.mean, [127.5, 255.0])
    np.testing.assert_array_equal(variance(moments), [127.5**2, 0.0])
    half = update_moments(init_moments(()), jnp.array([1.0, 3.0], jnp.bfloat16))
    assert {leaf.dtype for leaf in jax.tree.leaves(half)} == {jnp.dtype(jnp.float32)}
    assert half.mean == 2.0


@pytest.mark.errors
def test_wrong_shapes_raise_with_both_shapes():
    with pytest.raises(ValueError, match=r"\*\(2,\)\], got \(4, 3\)"):
        ops.update_moments(init_moments((2,)), np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"\*\(2, 2\)\], got \(2,\)"):
        ops.update_moments(init_moments((2, 2)), np.ones(2))
    with pytest.raises(ValueError, match=r"mask must have shape \(4,\), got \(4, 2\)"):
        ops.update_moments(init_moments((2,)), np.ones((4, 2)), np.ones((4, 2)))
    with pytest.raises(ValueError, match=r"must have shape \(2,\), got \(\)"):
        ops.merge_moments(init_moments((2,)), init_moments(()))
