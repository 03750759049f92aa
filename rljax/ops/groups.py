"""Advantages of the completions of one prompt against each other.

Rewards are prompt-major, `[P, G]`: row p holds the G completions of prompt p. A flat `[P·G]` vector
is refused, because nothing in it tells which completions belong together.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real, Shaped

from rljax.ops.checks import Scalar, check_same_shape
from rljax.ops.masked import masked_all_equal, masked_centre, masked_count, masked_sum


def _centred_groups(rewards: ArrayLike, valid: ArrayLike | None) -> tuple[Array, Array, Array]:
    """r - mean over the valid members of each row, what is valid [P, G], and how many [P, 1].

    A row from which nothing can be learnt (all valid rewards equal, or fewer than two) is exactly 0
    and has no valid member.
    """
    check_same_shape(rewards=rewards, valid=valid)
    if jnp.ndim(rewards) != 2:
        raise ValueError(f"rewards must be [prompts, group], got shape {jnp.shape(rewards)}")
    rewards = jnp.asarray(rewards, jnp.float32)
    ok = ~jnp.isnan(rewards)
    ok = ok if valid is None else ok & (jnp.asarray(valid) != 0)
    # Asked of the rewards themselves: after rounding, a mean may differ from the equal numbers it
    # is the mean of, and dividing that by a tiny spread would make an advantage out of nothing.
    ok = ok & ~jnp.broadcast_to(masked_all_equal(rewards, ok, axis=1)[:, None], ok.shape)
    centred = masked_centre(rewards, ok, axis=1)
    return centred, ok, masked_count(rewards, ok, axis=1)[:, None]


def group_advantages(
    rewards: Real[ArrayLike, "P G"],
    *,
    valid: Shaped[ArrayLike, "P G"] | None = None,
    scale: str = "std",
    ddof: int = 0,
    eps: Scalar = 1e-6,
) -> Float[Array, "P G"]:
    """How much better a completion is than its group, in units of the group's spread.

    A_i = (r_i - mean(r)) / (std(r) + eps) over the valid members of the row;
    with scale="none" A_i = r_i - mean(r).

    Args:
        rewards: [P, G], prompt-major; NaN counts as invalid.
        valid: [P, G], bool or 0/1; None is all.
        scale: "std" or "none"; "none" does not favour prompts on which all rewards are close.
        ddof: 0 divides the sum of squares by the number of valid members n, 1 by n - 1.
        eps: added to the standard deviation, in the unit of the rewards.

    Returns:
        [P, G] float32; exactly 0 for invalid members and in groups whose valid rewards are all
        equal or fewer than two.

    Raises:
        ValueError: if rewards are not [P, G], the shapes differ, or scale or ddof is unknown.

    Example:
        >>> group_advantages(jnp.array([[0.0, 2.0], [5.0, 5.0]]), eps=0.0).tolist()
        [[-1.0, 1.0], [0.0, 0.0]]

    Source: Shao et al., 2024 (DeepSeekMath), section 4.1.2, eps is ours; scale="none": Liu et al.,
    2025 (Dr. GRPO).
    """
    if scale not in ("std", "none"):
        raise ValueError(f'scale must be "std" or "none", got {scale!r}')
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    centred, ok, count = _centred_groups(rewards, valid)
    if scale == "none":
        return centred
    squares = masked_sum(jnp.square(centred), ok, axis=1)[:, None]
    variance = squares / jnp.where(count == 0, 1.0, count - ddof)
    # 0 only where centred is 0 too, or too small for float32 to square.
    spread = jnp.sqrt(jnp.where(variance == 0, 1.0, variance)) + eps
    return centred / jnp.broadcast_to(spread, centred.shape)


def leave_one_out_advantages(
    rewards: Real[ArrayLike, "P G"], *, valid: Shaped[ArrayLike, "P G"] | None = None
) -> Float[Array, "P G"]:
    """How much better a completion is than the mean of the others of its group (RLOO).

    A_i = r_i - 1/(n-1) Σ_{j≠i} r_j = n/(n-1) (r_i - mean(r)) over the n valid members of the row.

    Args:
        rewards: [P, G], prompt-major; NaN counts as invalid.
        valid: [P, G], bool or 0/1; None is all.

    Returns:
        [P, G] float32; exactly 0 for invalid members and in groups whose valid rewards are all
        equal or fewer than two.

    Raises:
        ValueError: if rewards are not [P, G] or the shapes differ.

    Example:
        >>> leave_one_out_advantages(jnp.array([[1.0, 2.0, 6.0]])).tolist()
        [[-3.0, -1.5, 4.5]]

    Source: Kool, van Hoof and Welling, 2019 (Buy 4 REINFORCE samples, get a baseline for free).
    """
    centred, _, count = _centred_groups(rewards, valid)
    factor = count / jnp.where(count == 0, 1.0, count - 1.0)
    return centred * jnp.broadcast_to(factor, centred.shape)
