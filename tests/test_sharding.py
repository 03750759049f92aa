"""Meshes and partition rules on the test run's four CPU devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from rljax import sharding


def shard_shapes(x):
    return [shard.data.shape for shard in x.addressable_shards]


def test_mesh_takes_the_number_of_devices_asked_for():
    assert dict(sharding.make_mesh(2).shape) == {"data": 2}
    assert list(sharding.make_mesh(2).devices) == jax.devices()[:2]
    assert dict(sharding.make_mesh(0).shape) == {"data": 4}
    some = jax.devices()[1:4]
    assert list(sharding.make_mesh(devices=some).devices) == some


@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 8)), (1, (8, 2))])
def test_one_axis_is_split_and_the_others_are_whole(axis, shape):
    mesh = sharding.make_mesh(4)
    x = np.arange(64.0).reshape(8, 8)
    put = jax.device_put(x, sharding.along_data(mesh, axis))
    assert shard_shapes(put) == [shape] * 4
    np.testing.assert_array_equal(put, x)


def test_replicated_is_whole_everywhere():
    x = jax.device_put(jnp.arange(6.0), sharding.replicated(sharding.make_mesh(4)))
    assert shard_shapes(x) == [(6,)] * 4
    assert x.sharding.is_fully_replicated


def test_like_gives_every_leaf_the_sharding():
    whole = sharding.replicated(sharding.make_mesh(2))
    tree = {"a": jnp.ones(3), "b": (jnp.ones(2), jax.random.key(0))}
    assert sharding.like(tree, whole) == {"a": whole, "b": (whole, whole)}
    assert whole.spec == PartitionSpec()


def test_typed_keys_can_be_split():
    keys = jax.random.split(jax.random.key(0), 8)
    put = jax.device_put(keys, sharding.along_data(sharding.make_mesh(4)))
    np.testing.assert_array_equal(jax.random.key_data(put), jax.random.key_data(keys))


def test_what_divides_passes():
    sharding.check_divisible("config.env.num_envs", 8, sharding.make_mesh(4))


@pytest.mark.errors
def test_what_does_not_divide_is_named_with_both_numbers():
    with pytest.raises(ValueError, match=r"config\.env\.num_envs is 6.*4 devices"):
        sharding.check_divisible("config.env.num_envs", 6, sharding.make_mesh(4))


@pytest.mark.errors
@pytest.mark.parametrize("number", [5, -1])
def test_more_devices_than_there_are(number):
    with pytest.raises(ValueError, match=rf"num_devices is {number}: there are 4"):
        sharding.make_mesh(number)


def test_parameters_lie_as_the_rules_say():
    """What the mesh does not have or cannot divide stays whole; the first rule counts."""
    mesh = sharding.make_mesh(4, model_devices=2)
    assert dict(mesh.shape) == {"data": 2, "model": 2}
    place = sharding.param_sharding(mesh)
    assert place("embedding", (10, 4)).spec == PartitionSpec("model", None)
    assert place("embedding", (11, 4)).spec == PartitionSpec(None, None)
    assert place("layers/qkv", (2, 3, 5, 4, 6)).spec == PartitionSpec(*5 * [None])  # 3 KV heads
    assert place("norm", (4,)).spec == PartitionSpec(None)
    over_data = sharding.param_sharding(mesh, over_data=True)
    assert over_data("layers/out", (2, 6, 2, 1, 4)).spec == PartitionSpec(
        *(None, "data", "model", None, None)
    )
    only_data = sharding.param_sharding(sharding.make_mesh(4), over_data=True)
    assert only_data("layers/gate", (2, 6, 8)).spec == PartitionSpec(None, None, "data")
    own = sharding.param_sharding(
        mesh,
        over_data=True,
        rules=[("a.*", PartitionSpec(("data", "model"))), (".*", place("norm", (4,)).spec)],
    )
    assert own("ab/c", (8,)).spec == PartitionSpec(("data", "model"))
    assert own("ba", (8,)).spec == PartitionSpec(None)


@pytest.mark.errors
@pytest.mark.parametrize("number", [0, 3])
def test_devices_that_cannot_be_divided(number):
    with pytest.raises(ValueError, match=rf"model_devices is {number}: it must divide the 4"):
        sharding.make_mesh(4, model_devices=number)
