"""One-step targets of value functions; `returns` has those that look further ahead."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real, Shaped

from rljax.ops.checks import Scalar, as_float32, broadcast_trailing, check_same_shape
from rljax.ops.masked import keep


def bootstrap_discounts(
    terminated: Shaped[ArrayLike, "*S"], discount: Scalar | Real[ArrayLike, "..."]
) -> Float[Array, "*S"]:
    """What the value of the next observation is worth: γ (1 - terminated).

    Args:
        terminated: [*S], bool or 0/1: the task has ended. A truncated step is not terminated.
        discount: γ in [0, 1], a scalar or of the trailing shape, such as the [*S] bootstrap
            discounts of `n_step`.

    Returns:
        [*S] float32.

    Raises:
        ValueError: if discount does not fit.

    Example:
        >>> bootstrap_discounts(jnp.array([0, 1, 0]), 0.5).tolist()
        [0.5, 0.0, 0.5]
    """
    discount = broadcast_trailing("discount", discount, jnp.shape(terminated))
    return keep(discount, jnp.asarray(terminated) == 0)


def bellman_targets(
    rewards: Real[ArrayLike, "*S"],
    terminated: Shaped[ArrayLike, "*S"],
    next_values: Real[ArrayLike, "*S"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
) -> Float[Array, "*S"]:
    """The reward and the discounted value of what follows.

    y = r + γ (1 - terminated) V(s'). `terminated` alone stops the bootstrap; where it does, or
    where γ = 0, the next value is not read and may be NaN.

    Args:
        rewards: r [*S]; with n-step `discount` the sum of n discounted rewards.
        terminated: [*S], bool or 0/1.
        next_values: V(s') [*S], of the observation after the step and before any reset.
        discount: γ in [0, 1], a scalar or of the trailing shape.

    Returns:
        [*S] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> bellman_targets(jnp.ones(2), jnp.array([0, 1]), jnp.full(2, 8.0), discount=0.5).tolist()
        [5.0, 1.0]

    Source: Sutton and Barto, 2018, equation 6.3.
    """
    check_same_shape(rewards=rewards, terminated=terminated, next_values=next_values)
    rewards, next_values = as_float32(rewards, next_values)
    discount = bootstrap_discounts(terminated, discount)
    return rewards + discount * keep(next_values, discount != 0)
