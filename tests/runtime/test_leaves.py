"""What goes into a checkpoint comes out of it, bit for bit, whatever it is."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rljax.runtime.checkpoint import Checkpoints
from rljax.runtime.leaves import find_difference, pack, unpack


class Pair(NamedTuple):
    left: object
    right: object


def round_trip(folder, tree, template=None):
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(0, tree, {})
        restored, _ = checkpoints.restore(tree if template is None else template)
    return restored


# Quiet and signalling NaNs, both zeros, both infinities and the smallest subnormal: patterns that
# arithmetic would change.
FLOAT32_PATTERNS = np.array(
    [0x7FC00001, 0x7F800001, 0xFFC12345, 0x80000000, 0x7F800000, 0xFF800000, 0x00000001], np.uint32
)

NUMPY_LEAVES = {
    "float32": FLOAT32_PATTERNS.view(np.float32),
    "float64": np.array([1 / 3, 5e-324, -0.0, np.nan]),
    "uint64": np.array([2**64 - 1, 2**63, 0], np.uint64),
    "int64": np.array([-(2**63), 2**31, 2**53 + 1]),
    "bool": np.array([True, False]),
    "uint8": np.arange(256, dtype=np.uint8),
    "bfloat16": np.array([1.0, np.nan, -0.0], ml_dtypes.bfloat16),
    "complex64": np.array([1 + 2j], np.complex64),
    # These the array store does not take, or would give back as another dtype.
    "uint4": np.array([0, 15], ml_dtypes.uint4),
    "float8": np.array([[0.5, 2.0]], ml_dtypes.float8_e4m3),
    "longdouble": np.array([np.longdouble(1) / 3]),
    "big_endian": np.arange(3, dtype=">f4"),
    "text": np.array([["left", "right"]]),
    "time": np.array(["2024-02-29"], "datetime64[D]"),
    "record": np.array([(1, 2.5)], [("n", "i4"), ("x", "f8")]),
    # Shapes.
    "none_at_all": np.zeros((3, 0, 2)),
    "no_dimensions": np.array(7.5),
    "transposed": np.arange(6).reshape(2, 3).T,
    "strided": np.arange(10)[::-2],
}


def test_numpy_arrays_of_any_dtype_are_bit_exact(tmp_path):
    restored = round_trip(tmp_path, NUMPY_LEAVES)
    for name, array in NUMPY_LEAVES.items():
        got = restored[name]
        assert type(got) is np.ndarray, name
        assert (got.dtype, got.shape) == (array.dtype, array.shape), name
        assert got.tobytes() == array.tobytes(), name
        assert got.flags.writeable, name  # host environments write into their arrays


def test_scalars_none_and_containers_come_back_as_they_were(tmp_path):
    tree = {
        "generator": 2**128 - 1,  # the state of NumPy's PCG64 has 128 bits
        "flags": [True, False, None],
        "float": 0.1,
        "infinite": float("-inf"),
        "text": 'a "quoted" line\n',
        "pair": Pair(np.float64(1 / 3), np.uint64(2**64 - 1)),
        "empty": {"dict": {}, "tuple": (), "none": None},
        "odd/name [0].x": {"": 1, "%20": np.float32(2.5)},
        "bool": np.bool_(True),
    }
    restored = round_trip(tmp_path, tree)
    assert restored == tree
    pairs = zip(jax.tree.leaves(restored), jax.tree.leaves(tree))
    assert [type(got) for got, _ in pairs] == [type(leaf) for leaf in jax.tree.leaves(tree)]
    assert isinstance(restored["pair"], Pair)


def test_nothing_but_scalars_is_a_checkpoint_too(tmp_path):
    assert round_trip(tmp_path, {"step": 3, "none": np.zeros((0,))})["step"] == 3


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys_keep_their_data_and_dtype(tmp_path, impl):
    key = jax.random.key(7, impl=impl)
    tree = {"one": key, "many": jax.random.split(key, (2, 3)), "none": jax.random.split(key, 0)}
    template = jax.tree.map(jax.random.clone, tree)
    restored = round_trip(tmp_path, tree, template)
    for name, expected in tree.items():
        assert restored[name].dtype == expected.dtype
        assert restored[name].shape == expected.shape
        np.testing.assert_array_equal(
            jax.random.key_data(restored[name]), jax.random.key_data(expected)
        )
    np.testing.assert_array_equal(
        jax.random.normal(restored["one"], (3,)), jax.random.normal(key, (3,))
    )


def test_keys_of_another_kind_are_another_run():
    _, description = pack({"key": jax.random.key(0, impl="rbg")})
    difference = find_difference({"key": jax.random.key(0)}, description)
    assert difference == "['key'] is key<rbg>[] in the checkpoint and key<fry>[] here"


def test_sharded_arrays_return_to_the_templates_devices(tmp_path):
    mesh = jax.make_mesh((4,), ("data",))
    split, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    tree = {
        "split": jax.device_put(jnp.arange(8.0), split),
        "whole": jax.device_put(jnp.arange(3), whole),
        "keys": jax.device_put(jax.random.split(jax.random.key(0), 4), split),
        "host": np.arange(2),
    }
    restored = round_trip(tmp_path, tree)
    for name in ("split", "whole", "keys"):
        assert restored[name].sharding == tree[name].sharding
    np.testing.assert_array_equal(restored["split"], np.arange(8.0))
    np.testing.assert_array_equal(restored["whole"], [0, 1, 2])
    assert [shard.data.tolist() for shard in restored["split"].addressable_shards] == [
        [0.0, 1.0],
        [2.0, 3.0],
        [4.0, 5.0],
        [6.0, 7.0],
    ]

    # The same checkpoint on another layout: the template alone decides.
    template = {
        "split": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=whole),
        "whole": jnp.zeros(3, jnp.int32),
        "keys": jax.ShapeDtypeStruct((4,), tree["keys"].dtype, sharding=split),
        "host": jax.ShapeDtypeStruct((2,), np.int64),
    }
    with Checkpoints(tmp_path) as checkpoints:
        moved, _ = checkpoints.restore({**template, "host": np.zeros(2, np.int64)})
    assert moved["split"].sharding == whole
    assert moved["keys"].sharding == split
    assert len(moved["whole"].devices()) == 1


def test_what_jit_looks_at_is_restored_so_that_nothing_recompiles(tmp_path):
    """A jitted step that knows the fresh state does not compile again for the restored one."""
    mesh = jax.make_mesh((4,), ("data",))
    fresh = {
        "weights": jax.device_put(jnp.ones(4), NamedSharding(mesh, PartitionSpec())),
        "step": jnp.zeros((), jnp.int32),  # bound to no device
        "weak": jnp.asarray(1.5),  # weakly typed, as Python numbers are
        "weak_many": jnp.broadcast_to(jnp.asarray(2), (3,)),
        "key": jax.random.key(0),
    }
    assert fresh["weak"].weak_type
    restored = round_trip(tmp_path, fresh)
    step = jax.jit(lambda state: state["weights"] * state["weak"] + state["step"])
    np.testing.assert_array_equal(step(fresh), step(restored))
    assert step._cache_size() == 1
    assert restored["weak_many"].weak_type
    assert not restored["step"].committed
    assert restored["weights"].committed


def test_the_template_may_have_been_donated(tmp_path):
    state = {"w": jax.device_put(jnp.arange(3.0), jax.devices()[0])}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
        jax.tree.map(lambda x: x.delete(), state)
        restored, _ = checkpoints.restore(state)
    np.testing.assert_array_equal(restored["w"], [0.0, 1.0, 2.0])


def test_packed_arrays_share_no_memory_with_the_state():
    state = {"host": np.zeros(3), "raw": np.zeros(3, ">f8"), "device": jnp.zeros(3)}
    arrays, _ = pack(state)
    state["host"][:] = 1.0
    state["raw"][:] = 1.0
    jax.jit(lambda x: x + 1.0, donate_argnums=0)(state["device"])
    assert all(array.tobytes() == b"\0" * array.nbytes for array in arrays.values())


def test_the_first_differing_leaf_is_named():
    tree = {"a": np.zeros(2, np.float32), "b": {"c": 1, "d": np.zeros(3)}, "e": None}
    _, description = pack(tree)
    assert find_difference(tree, description) is None
    changes = {
        "['b']['d'] is float64[3] in the checkpoint and float64[1,3] here": {
            **tree,
            "b": {"c": 1, "d": np.zeros((1, 3))},
        },
        "['a'] is float32[2] in the checkpoint and float64[2] here": {**tree, "a": np.zeros(2)},
        "['b']['c'] is int in the checkpoint and bool here": {
            **tree,
            "b": {"c": True, "d": np.zeros(3)},
        },
        "['e'] is absent in the checkpoint and float64[1] here": {**tree, "e": np.zeros(1)},
        "['b']['c'] is int in the checkpoint and absent here": {**tree, "b": {"d": np.zeros(3)}},
        "['b'].left is absent in the checkpoint and int here": {
            **tree,
            "b": Pair(1, np.zeros(3)),
        },
    }
    for expected, template in changes.items():
        assert find_difference(template, description) == expected


@pytest.mark.errors
@pytest.mark.parametrize("leaf", [np.array([None]), 1j, b"bytes", object()])
def test_what_cannot_be_stored_is_named(leaf):
    with pytest.raises(ValueError, match=r"^\['x'\]: .* cannot be stored$"):
        pack({"x": leaf})


def test_unpack_takes_a_shape_for_an_array():
    arrays, description = pack({"w": jnp.arange(3.0)})
    tree = unpack({"w": jax.ShapeDtypeStruct((3,), jnp.float32)}, arrays, description)
    assert isinstance(tree["w"], jax.Array)
    np.testing.assert_array_equal(tree["w"], [0.0, 1.0, 2.0])
