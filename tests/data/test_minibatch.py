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


@pytest.mark.errors
@pytest.mark.parametrize("number", [5, 0, -3])
def test_what_does_not_divide(number):
    with pytest.raises(ValueError, match=rf"batch of 12 .* {number} equal minibatches"):
        shuffled_minibatches(jax.random.key(0), jnp.arange(12), num_minibatches=number)


@pytest.mark.errors
def test_leaves_of_different_lengths():
    with pytest.raises(ValueError, match=r"12.*8"):
        shuffled_minibatches(jax.random.key(0), (jnp.arange(12), jnp.arange(8)), num_minibatches=2)
