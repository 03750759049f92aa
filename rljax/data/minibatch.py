"""Splitting one batch into shuffled minibatches."""

import jax
import jax.numpy as jnp

from rljax.types import Array, Key, PyTree


def shuffled_minibatches(key: Key, batch: PyTree, *, num_minibatches: int) -> PyTree:
    """Every leaf [N, ...] becomes [num_minibatches, N / num_minibatches, ...] in one random order.

    The order comes from one sort of random 32-bit numbers. Two of N equal numbers keep their
    order, which biases a pair of places by about N²/2^33: nothing for learning, and much cheaper
    than the several rounds of `jax.random.permutation`.

    Args:
      key: consumed.
      batch: a pytree of arrays that agree in their first axis, N.
      num_minibatches: a divisor of N.

    Returns:
      The same tree with the first axis split in two.

    Raises:
      ValueError: if N is not divisible by `num_minibatches`, or the first axes differ.

    >>> parts = shuffled_minibatches(jax.random.key(0), {"x": jnp.arange(6)}, num_minibatches=2)
    >>> parts["x"].shape
    (2, 3)
    """
    size, *others = (x.shape[0] for x in jax.tree.leaves(batch))
    if any(other != size for other in others):
        raise ValueError(f"the leaves of a batch have {size} and {others} rows: they must agree")
    if num_minibatches < 1 or size % num_minibatches:
        raise ValueError(
            f"a batch of {size} cannot be split into {num_minibatches} equal minibatches"
        )
    order = jnp.argsort(jax.random.bits(key, (size,), jnp.uint32))

    def split(x: Array) -> Array:
        return x[order].reshape(num_minibatches, size // num_minibatches, *x.shape[1:])

    return jax.tree.map(split, batch)
