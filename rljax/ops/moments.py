"""Running mean and variance of a stream of batches; parts can be merged.

Plain float32 sums fail quietly in a long run: 2^24 + 1 = 2^24, and a mean near 10^6 can move only
in steps of 0.06. So `count`, `mean` and `var` are each held as two float32 numbers: the nearest
one, and in `rest` what rounding has left over. Each field alone is right to float32 rounding, and
together they go on counting exactly to 2^48 and keep a variance of 1 around a mean of 10^6.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real, Shaped

from rljax.ops.checks import check_shape
from rljax.ops.masked import keep, masked_count, masked_mean


class Moments(NamedTuple):
    """Statistics of all samples seen so far: a pytree to keep in the state of a run."""

    count: Array  # float32 [], the number of samples
    mean: Array  # float32 [*shape]
    var: Array  # float32 [*shape], ddof 0
    rest: tuple[Array, Array, Array]  # what rounding has left over from the three above


def _add(high: Array, low: Array, increment: Array) -> tuple[Array, Array]:
    """high + low + increment as the nearest float32 number and the rest (Knuth's two-sum)."""
    # The barrier keeps the compiler from merging these sums with others around them.
    high, increment = jax.lax.optimization_barrier((high, increment + low))
    total = high + increment
    part = total - high
    return total, (high - (total - part)) + (increment - part)


def init_moments(shape: tuple[int, ...]) -> Moments:
    """Moments of no samples: count 0, mean 0, variance 0.

    Args:
        shape: of one sample.

    Returns:
        Moments.

    Example:
        >>> init_moments((3,)).mean.tolist()
        [0.0, 0.0, 0.0]
    """
    scalar, array = jnp.zeros(()), jnp.zeros(shape)
    return Moments(scalar, array, array, (scalar, array, array))


def merge_moments(a: Moments, b: Moments) -> Moments:
    """The moments of the joined data of two parts, in either order.

    With w = n_b / (n_a + n_b) and δ = mean_b - mean_a:
    mean = mean_a + w δ,  var = var_a + w (var_b - var_a + (1 - w) δ²).

    Args:
        a: moments of samples of some shape.
        b: moments of other samples of that shape.

    Returns:
        Moments.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> parts = [update_moments(init_moments(()), jnp.array(x)) for x in ([1.0, 2.0], [6.0])]
        >>> joined = merge_moments(*parts)
        >>> joined.count.item(), joined.mean.item(), round(variance(joined).item(), 4)
        (3.0, 3.0, 4.6667)

    Source: Chan, Golub and LeVeque, 1979, the pairwise formula, divided by the counts.
    """
    check_shape("the mean of b", b.mean, a.mean.shape)
    # The smaller part is added to the larger: rounding then touches only the smaller change.
    swap = b.count > a.count
    a, b = (jax.tree.map(lambda x, y: jnp.where(swap, y, x), *pair) for pair in ((a, b), (b, a)))
    n_a, n_b = a.count + a.rest[0], b.count + b.rest[0]
    total = jnp.maximum(n_a + n_b, 1.0)
    share_a, share_b = n_a / total, n_b / total
    delta = (b.mean - a.mean) + (b.rest[1] - a.rest[1])
    change = (b.var - a.var) + (b.rest[2] - a.rest[2]) + share_a * jnp.square(delta)
    sums = (
        _add(a.count, a.rest[0], n_b),
        _add(a.mean, a.rest[1], share_b * delta),
        _add(a.var, a.rest[2], share_b * change),
    )
    (count, mean, var), rest = zip(*sums)
    return Moments(count, mean, var, rest)


def update_moments(
    moments: Moments,
    batch: Real[ArrayLike, "..."],
    mask: Shaped[ArrayLike, "..."] | None = None,
) -> Moments:
    """Moments with a batch of samples added, as if all samples had come at once.

    The mean and variance of the batch, in two passes, then `merge_moments`.

    Args:
        moments: of samples of some `shape`.
        batch: [*N, *shape], any real dtype; the leading axes are the batch.
        mask: [*N], bool or 0/1; samples outside may be anything. None keeps all.

    Returns:
        Moments.

    Raises:
        ValueError: if batch does not end in `shape`, or mask does not cover its leading axes.

    Example:
        >>> moments = update_moments(init_moments((2,)), jnp.array([[1.0, 5.0], [3.0, 5.0]]))
        >>> moments.mean.tolist(), variance(moments).tolist()
        ([2.0, 5.0], [1.0, 0.0])

    Source: Chan, Golub and LeVeque, 1979, the pairwise formula.
    """
    batch = jnp.asarray(batch, jnp.float32)
    shape = moments.mean.shape
    leading = batch.ndim - len(shape)
    if leading < 0 or batch.shape[leading:] != shape:
        raise ValueError(f"batch must have shape [..., *{shape}], got {batch.shape}")
    kept = jnp.ones(batch.shape[:leading], bool) if mask is None else jnp.asarray(mask) != 0
    check_shape("mask", kept, batch.shape[:leading])
    axes = tuple(range(leading))
    everywhere = jnp.broadcast_to(
        jnp.expand_dims(kept, tuple(range(leading, batch.ndim))), batch.shape
    )

    def mean_of(x):
        mean = masked_mean(x, everywhere, axis=axes)
        return mean, keep(x - jnp.broadcast_to(mean, x.shape), everywhere)

    rough, centred = mean_of(batch)
    correction, centred = mean_of(centred)
    mean, mean_rest = _add(rough, jnp.zeros(shape), correction)
    var = masked_mean(jnp.square(centred), everywhere, axis=axes)
    zero, zeros = jnp.zeros(()), jnp.zeros(shape)
    new = Moments(masked_count(kept, kept), mean, var, (zero, mean_rest, zeros))
    return merge_moments(moments, new)


def variance(moments: Moments) -> Float[Array, "..."]:
    """The variance of all samples seen so far, mean((x - mean)²), ddof 0.

    Args:
        moments: of samples of some `shape`.

    Returns:
        `shape`, float32, never negative; 0 where no sample has been seen.

    Example:
        >>> variance(update_moments(init_moments(()), jnp.array([1.0, 3.0]))).item()
        1.0
    """
    return jnp.maximum(moments.var, 0.0)
