"""Polyak updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.tree import polyak_update


def trees():
    online = {"w": jnp.array([1.0, 2.0]), "b": jnp.array([-3.0])}
    return online, {"w": jnp.array([0.0, 4.0]), "b": jnp.array([1.0])}


def test_the_target_moves_towards_the_trained_parameters():
    # rate 0.1: w = .1·(1, 2) + .9·(0, 4) = (.1, 3.8), b = -.3 + .9 = .6; then
    # w = (.1 + .09, .2 + 3.42) = (.19, 3.62), b = -.3 + .54 = .24.
    online, target = trees()
    for w, b in [([0.1, 3.8], [0.6]), ([0.19, 3.62], [0.24])]:
        target = polyak_update(online, target, rate=0.1)
        np.testing.assert_allclose(target["w"], w, rtol=1e-6)
        np.testing.assert_allclose(target["b"], b, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, online, trees()[0])  # unchanged


@pytest.mark.parametrize("rate", [0.0, 0.005, 0.3, 1.0])
def test_after_n_steps_the_target_holds_a_geometric_share(rate):
    rng = np.random.default_rng(0)
    online, start = rng.normal(size=(2, 3, 4))
    move = jax.jit(lambda target, rate: polyak_update({"w": online}, target, rate=rate))
    target = {"w": start}
    for _ in range(25):
        target = move(target, rate)
    share = 1 - (1 - rate) ** 25
    expected = share * online + (1 - share) * start
    np.testing.assert_allclose(target["w"], expected, rtol=1e-4, atol=1e-6)


def test_the_ends_of_the_rate_are_exact_copies():
    rng = np.random.default_rng(1)
    online, target = rng.normal(size=(2, 1000)).astype(np.float32) * 1e3
    np.testing.assert_array_equal(polyak_update(online, target, rate=1), online)
    np.testing.assert_array_equal(polyak_update(online, target, rate=0.0), target)


def test_dtypes_follow_the_target_and_counters_are_copied():
    online = {"half": jnp.ones(2), "steps": jnp.array(7), "key": jax.random.key(1), "none": None}
    target = {
        "half": jnp.zeros(2, jnp.bfloat16),
        "steps": jnp.array(3),
        "key": jax.random.key(2),
        "none": None,
    }
    moved = polyak_update(online, target, rate=0.5)
    assert moved["half"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(moved["half"].astype(jnp.float32), [0.5, 0.5])
    assert moved["steps"] == 7
    assert moved["key"] == online["key"]


def test_twin_networks_all_move():
    # A list of two nets with layers in tuples: every leaf goes halfway from 0 to its own value.
    online = [tuple({"w": jnp.full(2, 10.0 * i + j)} for j in range(3)) for i in (1, 2)]
    moved = polyak_update(online, jax.tree.map(jnp.zeros_like, online), rate=0.5)
    leaves = [leaf[0].item() for leaf in jax.tree.leaves(moved)]
    assert leaves == [5.0, 5.5, 6.0, 10.0, 10.5, 11.0]


@pytest.mark.errors
def test_trees_that_differ_raise():
    with pytest.raises(ValueError, match=r"params \(2,\) and target_params \(2, 1\)"):
        polyak_update({"w": jnp.ones(2)}, {"w": jnp.ones((2, 1))}, rate=0.1)
    with pytest.raises(ValueError, match="key"):
        polyak_update({"w": jnp.ones(2)}, {"v": jnp.ones(2)}, rate=0.1)
