"""Running mean and variance of a stream of batches; parts can be merged.

Plain float32 fails quietly in a long run: 2^24 + 1 = 2^24, and a mean near 10^6 moves only in steps
of 0.06. So the count is held as two float32 numbers, `count` and what rounding has left over from
it, together exact to 2^48; and means are added up relative to `origin`, which is one of the
samples. That is exact (a difference from a rounded mean would not be: compilers round it in one
place and fuse it in another), and it keeps a variance of 1 around a mean of 10^6.
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
    count_rest: Array  # float32 [], the number of samples - count
    origin: Array  # float32 [*shape], one of the samples
    offset: Array  # float32 [*shape], mean - origin, without its rounding error


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as the nearest float32 number and what rounding has left over (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


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
    none, zeros = jnp.zeros(()), jnp.zeros(shape)
    return Moments(none, zeros, zeros, none, zeros, zeros)


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
    n_a, n_b = a.count + a.count_rest, b.count + b.count_rest
    total = jnp.maximum(n_a + n_b, 1.0)
    share_a, share_b = n_a / total, n_b / total
    delta = (b.origin - a.origin) + (b.offset - a.offset)
    offset = a.offset + share_b * delta
    var = a.var + share_b * ((b.var - a.var) + share_a * jnp.square(delta))
    count, rest = _two_sum(a.count, b.count)
    count, rest = _two_sum(count, rest + (a.count_rest + b.count_rest))
    return Moments(count, a.origin + offset, var, rest, a.origin, offset)


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
    samples = jnp.ones(batch.shape[:leading], bool) if mask is None else jnp.asarray(mask) != 0
    check_shape("mask", samples, batch.shape[:leading])
    axes, features = tuple(range(leading)), tuple(range(leading, batch.ndim))
    kept = jnp.broadcast_to(jnp.expand_dims(samples, features), batch.shape)

    largest = jnp.max(keep(batch, kept, -jnp.inf), axis=axes, initial=-jnp.inf)
    count = masked_count(samples, samples)
    origin = jnp.where(count == 0, 0.0, largest)
    shifted = keep(batch - jnp.broadcast_to(origin, batch.shape), kept)
    offset = masked_mean(shifted, kept, axis=axes)
    centred = keep(shifted - jnp.broadcast_to(offset, batch.shape), kept)
    var = masked_mean(jnp.square(centred), kept, axis=axes)
    new = Moments(count, origin + offset, var, jnp.zeros(()), origin, offset)
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
