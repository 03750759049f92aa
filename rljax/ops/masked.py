"""Reductions over the unmasked elements of an array.

Masks are bool or 0/1 of any dtype, and None means that everything counts. The masked elements
are replaced before any arithmetic, so they may be NaN or inf and change neither value nor gradient.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Integer, Shaped

from rljax.ops.checks import Scalar, check_same_shape, check_shape

Axis = int | tuple[int, ...] | None


def keep(
    x: Shaped[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    otherwise: Scalar = 0.0,
) -> Float[Array, "*S"]:
    """x in float32 where the mask is set, `otherwise` elsewhere.

    Use it before exp, log or division, with an `otherwise` that the operation can take. The
    gradient to a masked x_i is exactly 0.

    Args:
        x: [*S], any real dtype.
        mask: [*S], bool or 0/1; None keeps everything.
        otherwise: what stands in the masked places.

    Returns:
        [*S] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> keep(jnp.array([1.0, jnp.nan]), jnp.array([1, 0])).tolist()
        [1.0, 0.0]
    """
    check_same_shape(x=x, mask=mask)
    x = jnp.asarray(x, jnp.float32)
    return x if mask is None else jnp.where(jnp.asarray(mask) != 0, x, otherwise)


def masked_count(
    x: Shaped[ArrayLike, "*S"], mask: Shaped[ArrayLike, "*S"] | None = None, axis: Axis = None
) -> Float[Array, "..."]:
    """The number of unmasked elements of x; only the shape of x is read.

    Σ_i [mask_i ≠ 0], added in int32, so that it keeps counting beyond 2^24.

    Args:
        x: [*S], any dtype.
        mask: [*S], bool or 0/1; None counts everything.
        axis: axes to reduce; None is all.

    Returns:
        float32, the shape of x without `axis`.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> masked_count(jnp.ones((2, 3)), jnp.array([[1, 1, 0], [0, 0, 0]]), axis=1).tolist()
        [2.0, 0.0]
    """
    check_same_shape(x=x, mask=mask)
    kept = jnp.ones(jnp.shape(x), bool) if mask is None else jnp.asarray(mask) != 0
    return jnp.sum(kept, axis=axis, dtype=jnp.int32).astype(jnp.float32)


def masked_sum(
    x: Shaped[ArrayLike, "*S"], mask: Shaped[ArrayLike, "*S"] | None = None, axis: Axis = None
) -> Float[Array, "..."]:
    """Sum of the unmasked elements, Σ_i mask_i x_i, by selection and not by product.

    Args:
        x: [*S], any real dtype; may be anything where masked.
        mask: [*S], bool or 0/1; None keeps everything.
        axis: axes to reduce; None is all.

    Returns:
        float32, the shape of x without `axis`; 0 where nothing is unmasked.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> masked_sum(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([1, 1, 0])).item()
        3.0
    """
    return jnp.sum(keep(x, mask), axis=axis)


def masked_mean(
    x: Shaped[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    axis: Axis = None,
    denominator: Shaped[ArrayLike, "..."] | None = None,
) -> Float[Array, "..."]:
    """Mean of the unmasked elements, Σ_i mask_i x_i / denominator.

    With the global count as `denominator`, the results of micro-batches and of devices add up to
    the mean over the whole batch, however it was split.

    Args:
        x: [*S], any real dtype; may be anything where masked.
        mask: [*S], bool or 0/1; None keeps everything.
        axis: axes to reduce; None is all.
        denominator: a scalar, or the shape of the result; None is the number of unmasked elements.

    Returns:
        float32, the shape of x without `axis`; 0, with gradient 0, where nothing is unmasked.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> x, mask = jnp.array([[1.0, 2.0], [3.0, jnp.nan]]), jnp.array([[1, 1], [1, 0]])
        >>> masked_mean(x, mask).item(), masked_mean(x, mask, axis=1).tolist()
        (2.0, [1.5, 3.0])
    """
    total = masked_sum(x, mask, axis)
    count = masked_count(x, mask, axis)
    if denominator is None:
        denominator = count
    check_shape("denominator", denominator, *{(), total.shape})
    # The total is 0 where nothing counts. A 0 beside a mask that is not empty is the caller's error
    # and shows as inf.
    return total / jnp.where(count == 0, 1.0, jnp.asarray(denominator, jnp.float32))


def _largest(x: ArrayLike, mask: ArrayLike | None, axis: Axis) -> Array:
    """The largest unmasked element, with the axes kept; -inf where nothing is unmasked."""
    return jnp.max(keep(x, mask, -math.inf), axis=axis, keepdims=True, initial=-math.inf)


def masked_all_equal(
    x: Shaped[ArrayLike, "*S"], mask: Shaped[ArrayLike, "*S"] | None = None, axis: Axis = None
) -> Bool[Array, "..."]:
    """Whether all unmasked elements are the same number, max = min; exact, as a variance is not.

    Args:
        x: [*S], any real dtype.
        mask: [*S], bool or 0/1; None keeps everything.
        axis: axes to reduce; None is all.

    Returns:
        bool, the shape of x without `axis`; True where nothing is unmasked, False with a NaN.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> masked_all_equal(jnp.array([2.0, 2.0, 5.0]), jnp.array([1, 1, 0])).item()
        True
    """
    # Not max == min: XLA on CPU may drop a NaN in max, and a NaN must not pass for "equal".
    same = jnp.asarray(x, jnp.float32) == jnp.broadcast_to(_largest(x, mask, axis), jnp.shape(x))
    return jnp.all(same if mask is None else same | (jnp.asarray(mask) == 0), axis=axis)


def masked_centre(
    x: Shaped[ArrayLike, "*S"], mask: Shaped[ArrayLike, "*S"] | None = None, axis: Axis = None
) -> Float[Array, "*S"]:
    """x minus the mean of its unmasked elements, also where the mean is large and the spread small.

    y_i = (x_i - a) - mean(x - a), a the largest unmasked element, which is held constant.

    Args:
        x: [*S], any real dtype; may be anything where masked.
        mask: [*S], bool or 0/1; None keeps everything.
        axis: axes over which the mean is taken; None is all.

    Returns:
        [*S] float32; 0 where masked.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> masked_centre(jnp.array([[1.0, 3.0], [5.0, 9.0]]), axis=1).tolist()
        [[-1.0, 1.0], [-2.0, 2.0]]
    """
    # An element, not a mean, as the first shift: it is exact, whereas a compiler may round a mean
    # in one place and fuse it in another, and near 10^6 that is a difference of 0.06.
    shift = jax.lax.stop_gradient(_largest(x, mask, axis))
    x = keep(jnp.asarray(x, jnp.float32) - jnp.broadcast_to(shift, jnp.shape(x)), mask)
    mean = masked_mean(x, mask, axis)
    mean = mean if axis is None else jnp.expand_dims(mean, axis)
    return keep(x - jnp.broadcast_to(mean, x.shape), mask)


def masked_whiten(
    x: Shaped[ArrayLike, "*S"], mask: Shaped[ArrayLike, "*S"] | None = None, eps: Scalar = 1e-8
) -> Float[Array, "*S"]:
    """x shifted to mean 0 and scaled to variance 1 over all unmasked elements of all axes.

    y_i = (x_i - mean) / sqrt(var + eps), var = mean((x - mean)²), ddof 0.

    Args:
        x: [*S], any real dtype; may be anything where masked.
        mask: [*S], bool or 0/1; None keeps everything.
        eps: added to the variance, in the unit of x squared.

    Returns:
        [*S] float32; 0 where masked, and 0 everywhere if the unmasked elements are all equal.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> masked_whiten(jnp.array([1.0, 3.0, 99.0]), jnp.array([1, 1, 0]), eps=0.0).tolist()
        [-1.0, 1.0, 0.0]
    """
    equal = masked_all_equal(x, mask)
    centred = masked_centre(jnp.where(equal, 0.0, keep(x, mask)), mask)
    spread = masked_mean(jnp.square(centred), mask) + eps
    # 0 only if all are equal or differ by less than float32 can square; centred is (nearly) 0 then.
    return centred * jax.lax.rsqrt(jnp.where(spread == 0, 1.0, spread))


def explained_variance(
    targets: Shaped[ArrayLike, "*S"],
    predictions: Shaped[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
) -> Float[Array, ""]:
    """The share of the targets' variance that the predictions explain.

    1 - Var(y - ŷ) / Var(y): 1 is perfect, 0 no better than a constant, below 0 worse than one.

    Args:
        targets: y [*S], any real dtype; may be anything where masked.
        predictions: ŷ [*S], likewise.
        mask: [*S], bool or 0/1; None keeps everything.

    Returns:
        float32 scalar; exactly 0 if the unmasked targets are all equal or nothing is unmasked.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> explained_variance(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.5, 2.0, 2.5])).item()
        0.75
    """
    check_same_shape(targets=targets, predictions=predictions, mask=mask)
    equal = masked_all_equal(targets, mask)
    targets = jnp.where(equal, 0.0, keep(targets, mask))
    error = targets - jnp.where(equal, 0.0, keep(predictions, mask))
    spread = masked_mean(jnp.square(masked_centre(targets, mask)), mask)
    unexplained = masked_mean(jnp.square(masked_centre(error, mask)), mask)
    return jnp.where(spread == 0, 0.0, 1.0 - unexplained / jnp.where(spread == 0, 1.0, spread))


def last_index(mask: Shaped[ArrayLike, "*B L"]) -> Int[Array, "*B"]:
    """The largest index whose mask is set, whichever side of the row is padded.

    i_b = max{i : mask_bi ≠ 0}.

    Args:
        mask: [*B, L], bool or 0/1.

    Returns:
        [*B] int32; -1 for a row without any: select before you index with it.

    Example:
        >>> last_index(jnp.array([[1, 1, 0], [0, 1, 1], [0, 0, 0]])).tolist()
        [1, 2, -1]
    """
    mask = jnp.asarray(mask)
    position = jax.lax.broadcasted_iota(jnp.int32, mask.shape, mask.ndim - 1)
    return jnp.max(jnp.where(mask != 0, position, -1), axis=-1, initial=-1)


def length_mask(lengths: Integer[ArrayLike, "*B"], max_length: int) -> Bool[Array, "*B L"]:
    """Marks the first `lengths` positions of each row, whatever tokens stand there.

    mask_bi = i < lengths_b. Never ask `token != pad`: padding and end of sequence may share an id.

    Args:
        lengths: [*B] integers.
        max_length: L, the width of the rows; static.

    Returns:
        [*B, L] bool.

    Example:
        >>> length_mask(jnp.array([2, 0]), 3).tolist()
        [[True, True, False], [False, False, False]]
    """
    lengths = jnp.asarray(lengths)
    shape = (*lengths.shape, max_length)
    position = jax.lax.broadcasted_iota(jnp.int32, shape, lengths.ndim)
    return position < jnp.broadcast_to(lengths[..., None], shape)
