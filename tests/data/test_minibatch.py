"""Shuffled minibatches: every row once, rows whole, orders equally likely."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.data.minibatch import shuffled_minibatches


@pytest.fixture(scope="module")
def batch():
    rows = jnp.arange(12)
    return {"index": rows, "pair": (rows[:, None] * jnp.array([[1, 10]]), rows.astype(bool))}


@pytest.fixture(scope="module")
def split():
    return jax.jit(lambda key, batch: shuffled_minibatches(key, batch, num_minibatches=3))


def test_every_row_once_and_whole(split, batch):
    parts = split(jax.random.key(0), batch)
    index = np.asarray(parts["index"])
    assert index.shape == (3, 4)
    np.testing.assert_array_equal(np.sort(index, axis=None), np.arange(12))
    np.testing.assert_array_equal(parts["pair"][0], np.stack([index, 10 * index], axis=-1))
    np.testing.assert_array_equal(parts["pair"][1], index > 0)
    assert parts["pair"][1].dtype == bool


def test_order_is_the_keys(split, batch):
    orders = [np.asarray(split(jax.random.key(seed), batch)["index"]).ravel() for seed in (0, 0, 1)]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert (orders[0] != orders[2]).any()
    assert (orders[0] != np.arange(12)).any()


def test_one_minibatch_is_the_whole_batch(batch):
    whole = shuffled_minibatches(jax.random.key(3), batch, num_minibatches=1)
    assert whole["index"].shape == (1, 12)
    np.testing.assert_array_equal(np.sort(whole["index"][0]), np.arange(12))


def test_all_orders_are_equally_likely():
    # 3! = 6 orders, 6000 draws: each 1000 times with a standard deviation of √(6000·1/6·5/6) = 29.
    keys = jax.random.split(jax.random.key(0), 6000)
    draw = jax.vmap(lambda key: shuffled_minibatches(key, jnp.arange(3), num_minibatches=3))
    orders = np.asarray(draw(keys))[:, :, 0]
    counts = [np.sum((orders == order).all(axis=1)) for order in itertools.permutations(range(3))]
    assert sum(counts) == 6000
    np.testing.assert_allclose(counts, 1000, atol=150)  # 5 standard deviations


@pytest.mark.parametrize("size", [1, 2, 3, 2**16, 2**16 + 2])
def test_every_row_once_at_any_size(size):
    """About powers of two too, where the bits of an index grow by one."""
    order = np.asarray(shuffled_minibatches(jax.random.key(0), jnp.arange(size), num_minibatches=1))
    np.testing.assert_array_equal(np.sort(order[0]), np.arange(size))


def test_rows_of_a_large_batch_are_spread_evenly():
    """2^18 rows leave 14 random bits each: many are equal, and yet each row goes its own way."""
    size = 2**18
    parts = np.asarray(shuffled_minibatches(jax.random.key(1), jnp.arange(size), num_minibatches=4))
    minibatch = np.empty(size, int)
    minibatch[parts] = np.arange(4)[:, None]
    # Of each quarter of the rows a quarter is in each minibatch: 2^14, of deviation below 111.
    counts = [np.bincount(quarter, minlength=4) for quarter in minibatch.reshape(4, -1)]
    np.testing.assert_allclose(counts, np.full((4, 4), 2**14), atol=555)
    # Neighbours, near and far, meet in a minibatch as often as any two: deviation 0.0009.
    for distance in (1, 2, 3, 16, 64, 2**14):
        met = np.mean(minibatch[distance:] == minibatch[:-distance])
        np.testing.assert_allclose(met, 0.25, atol=0.005)


def test_the_largest_batch_is_allowed():
    rows = jax.ShapeDtypeStruct((2**24,), jnp.int8)
    split = jax.eval_shape(
        lambda key, rows: shuffled_minibatches(key, rows, num_minibatches=8),
        jax.random.key(0),
        rows,
    )
    assert split.shape == (8, 2**21)


@pytest.mark.errors
def test_a_batch_that_is_too_large():
    rows = jax.ShapeDtypeStruct((2**24 + 8,), jnp.int8)
    with pytest.raises(ValueError, match=r"^a batch of 16777224 is too large.* 16777216 rows$"):
        shuffled_minibatches(jax.random.key(0), rows, num_minibatches=8)


@pytest.mark.errors
@pytest.mark.parametrize("number", [5, 0, -3])
def test_what_does_not_divide(number):
    with pytest.raises(ValueError, match=rf"batch of 12 .* {number} equal minibatches"):
        shuffled_minibatches(jax.random.key(0), jnp.arange(12), num_minibatches=number)


@pytest.mark.errors
def test_leaves_of_different_lengths():
    with pytest.raises(ValueError, match=r"12.*8"):
        shuffled_minibatches(jax.random.key(0), (jnp.arange(12), jnp.arange(8)), num_minibatches=2)
