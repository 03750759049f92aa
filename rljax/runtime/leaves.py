"""A pytree of anything as named NumPy arrays that orbax can store, and back onto a template.

    pack:   tree -> (arrays by path, description in JSON)
    unpack: template, arrays, description -> tree

The description names the kind of every leaf, `float32[3,4]`, `key<fry>[]`, `int`; a template whose
kinds differ belongs to another run.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import PyTree

# What every tensorstore stores and gives back bit for bit. Other dtypes travel as their bytes.
_NATIVE = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {
    *("bool", "bfloat16", "float16", "float32", "float64", "complex64", "complex128")
}


def _named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) and jnp.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )


def _kind(path: str, leaf: Any) -> str:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        if leaf.dtype == np.dtype(object):
            raise ValueError(f"{path}: an array of dtype object cannot be stored")
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    if type(leaf) in (bool, int, float, str):
        return type(leaf).__name__
    raise ValueError(f"{path}: a leaf of type {type(leaf).__name__} cannot be stored")


def pack(tree: PyTree) -> tuple[dict[str, np.ndarray], dict[str, dict]]:
    """Copies a pytree to host memory.

    Nothing of `tree` is referred to afterwards, so that its buffers may be donated.

    Args:
      tree: leaves are JAX arrays (sharded over the devices of this process, or not), typed PRNG
        keys, NumPy arrays and scalars of any dtype but object, bool, int, float, str.

    Returns:
      Arrays by path (without empty ones, which orbax refuses), and the description, which holds
      the values of Python scalars.

    Raises:
      ValueError: a leaf is something else.

    >>> arrays, description = pack({"w": np.zeros(2, np.float32), "n": 3})
    >>> description["kinds"]
    {"['n']": 'int', "['w']": 'float32[2]'}
    """
    named = _named_leaves(tree)
    kinds = {path: _kind(path, leaf) for path, leaf in named}
    for _, leaf in named:  # all transfers start before the first is waited for
        if isinstance(leaf, jax.Array) and not _is_key(leaf):
            leaf.copy_to_host_async()
    arrays, scalars, key_impls = {}, {}, {}
    for path, leaf in named:
        if not hasattr(leaf, "dtype"):
            scalars[path] = leaf
            continue
        if _is_key(leaf):
            key_impls[path] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        host = np.array(leaf)  # a copy: on CPU, np.asarray would look into the buffer itself
        if host.nbytes:
            native = str(host.dtype) in _NATIVE
            arrays[path] = host if native else np.frombuffer(host.tobytes(), np.uint8)
    return arrays, {"kinds": kinds, "scalars": scalars, "key_impls": key_impls}


def find_difference(template: PyTree, description: dict[str, dict]) -> str | None:
    """The first leaf in which a template and a stored tree differ, with both kinds; or None.

    >>> _, description = pack({"w": np.zeros(2)})
    >>> find_difference({"w": np.zeros(3)}, description)
    "['w'] is float64[2] in the checkpoint and float64[3] here"
    """
    stored = description["kinds"]
    wanted = {path: _kind(path, leaf) for path, leaf in _named_leaves(template)}
    for path in [*wanted, *(path for path in stored if path not in wanted)]:
        there, here = stored.get(path, "absent"), wanted.get(path, "absent")
        if there != here:
            return f"{path} is {there} in the checkpoint and {here} here"
    return None


def _place(value: Any, template: Any) -> jax.Array:
    """On the template's devices, and with what else jit looks at: commitment and weak type."""
    if getattr(template, "weak_type", False):
        zero = jnp.asarray(np.zeros((), template.dtype).item())  # weak, as Python numbers are
        if zero.dtype == template.dtype:
            value = jnp.broadcast_to(zero, template.shape).at[...].set(value)
    sharding = template.sharding
    if isinstance(template, jax.Array) and not template.committed:
        sharding = None  # to bind it to one device would forbid its use beside sharded arrays
    return jax.device_put(value, sharding)


def unpack(template: PyTree, arrays: dict[str, np.ndarray], description: dict[str, dict]) -> PyTree:
    """Rebuilds a packed tree in the likeness of `template`.

    Args:
      template: the tree's structure, kinds and shardings; its values are not read, and its
        buffers may have been donated. `jax.ShapeDtypeStruct` stands for a JAX array.
      arrays, description: what `pack` returned; `find_difference` must be None.

    Returns:
      The tree: JAX arrays where the template has such, NumPy arrays and scalars likewise.

    >>> tree = {"key": jax.random.key(3), "n": np.uint64(2**63)}
    >>> unpack(tree, *pack(tree))["n"]
    np.uint64(9223372036854775808)
    """

    def rebuild(path: str, leaf: Any) -> Any:
        if path in description["scalars"]:
            return description["scalars"][path]
        if _is_key(leaf):
            data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
        else:
            data = leaf
        dtype = np.dtype(data.dtype)
        array = arrays[path] if path in arrays else np.zeros(data.shape, dtype)
        if array.dtype != dtype:
            array = array.view(dtype).reshape(data.shape)
        if _is_key(leaf):
            impl = description["key_impls"][path]
            return _place(jax.random.wrap_key_data(jnp.asarray(array), impl=impl), leaf)
        if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
            return _place(array, leaf)
        return array[()] if isinstance(leaf, np.generic) else array

    leaves = [rebuild(path, leaf) for path, leaf in _named_leaves(template)]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)
