"""Drawing from N weights that change: a tree of partial sums, four levels deep whatever N is.

A node has k children, k the smallest number with k^4 >= N, and is always summed anew from all of
them: no rounding builds up, and a part whose weights are all 0 sums to exactly 0. Four wide levels
rather than log2 N narrow ones: on every machine a few rows of k numbers cost less than as many
scattered ones, and the price of a draw does not grow with N but for the memory's own latency.
"""

import jax.numpy as jnp

from rljax.types import Array

LEVELS = 4
SumTree = tuple[Array, ...]  # float32 [rows, k] from the root to the leaves; row i is node i's


def empty_tree(size: int) -> SumTree:
    """All weights 0.

    >>> [level.shape for level in empty_tree(10_000)]
    [(1, 10), (10, 10), (100, 10), (1000, 10)]
    """
    k = 2
    while k**LEVELS < size:
        k += 1
    return tuple(jnp.zeros((-(-size // k**i), k)) for i in range(LEVELS, 0, -1))


def total_weight(tree: SumTree) -> Array:
    return jnp.sum(tree[0])


def weights_at(tree: SumTree, places: Array) -> Array:
    leaves = tree[-1]
    k = leaves.shape[1]
    return leaves.at[places // k, places % k].get(mode="clip")


def set_weights(tree: SumTree, places: Array, weights: Array) -> SumTree:
    """The tree with new weights [M] at places [M]; of equal places the largest weight counts.

    Places above 2^30 are dropped.

    >>> tree = set_weights(empty_tree(3), jnp.array([2, 0, 2]), jnp.array([1.0, 4.0, 3.0]))
    >>> weights_at(tree, jnp.arange(3)).tolist(), float(total_weight(tree))
    ([4.0, 0.0, 3.0], 7.0)
    """
    *above, leaves = tree
    k = leaves.shape[1]
    node, child = places // k, places % k
    leaves = leaves.at[node, child].set(0.0, mode="drop").at[node, child].max(weights, mode="drop")
    levels = [leaves]
    for level in reversed(above):
        sums = jnp.sum(levels[0].at[node].get(mode="clip"), axis=-1)
        node, child = node // k, node % k
        levels.insert(0, level.at[node, child].set(sums, mode="drop"))
    return tuple(levels)


def draw_places(uniforms: Array, tree: SumTree) -> tuple[Array, Array]:
    """Places [*S], each drawn with probability weight / total, never one of weight 0; and weights.

    Every level has random numbers of its own: one number for all would have too few bits to tell
    a million weights apart.

    Args:
      uniforms: [*S, LEVELS] in [0, 1).
      tree: with at least one weight above 0.

    >>> tree = set_weights(empty_tree(3), jnp.array([1]), jnp.array([0.5]))
    >>> [x.tolist() for x in draw_places(jnp.array([[0.0, 0.1, 0.5, 0.9]]), tree)]
    [[1], [0.5]]
    """
    node, weight = jnp.zeros(uniforms.shape[:-1], jnp.int32), total_weight(tree)
    for i, level in enumerate(tree):
        weights = level.at[node].get(mode="clip")
        sums = jnp.cumsum(weights, axis=-1)
        above = (weights > 0) & (sums > uniforms[..., i, None] * sums[..., -1:])
        # Rounding may leave none above; a child of weight 0 is no answer even then.
        above = jnp.where(jnp.any(above, axis=-1, keepdims=True), above, weights > 0)
        child = jnp.argmax(above, axis=-1).astype(jnp.int32)
        weight = jnp.take_along_axis(weights, child[..., None], axis=-1, mode="clip")[..., 0]
        node = node * level.shape[1] + child
    # Always so; but what changes the tree at these places now has to wait until it has been read.
    # A read that XLA may put after the change would make it copy the whole tree.
    return jnp.where(weight >= 0, node, 0), weight
