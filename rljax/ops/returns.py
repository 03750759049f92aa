"""Returns and advantages along time, as reverse scans over `[T, *B]` (tokens: `[B, L]`).

`terminated`: nothing comes after, `next_values` there is not read and may be NaN. `truncated`: cut
from outside, `next_values` (the value of the observation before the reset) still counts, but the
step after belongs to another episode. All maths in float32; nothing here stops gradients.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Real, Shaped

from rljax.ops.checks import Scalar, as_float32, broadcast_trailing, check_same_shape, check_shape
from rljax.ops.masked import keep


def _scale(factor: Array, x: Array) -> Array:
    """factor · x, and 0 where the factor is 0, even if x, which nobody asked for, is NaN or inf."""
    return factor * jnp.where((factor == 0) & ~jnp.isfinite(x), 0.0, x)


def _accumulate(increments: Array, factors: Array, last: Array) -> Array:
    """G_t = increment_t + factor_t G_{t+1} for all t, from G_T = last."""

    def step(following, now):
        increment, factor = now
        total = increment + _scale(factor, following)
        return total, total

    return jax.lax.scan(step, last, (increments, factors), reverse=True)[1]


def discounted_returns(
    rewards: Real[ArrayLike, "T *B"],
    discounts: Real[ArrayLike, "T *B"],
    bootstrap_values: Real[ArrayLike, "*B"],
) -> Float[Array, "T *B"]:
    """Discounted sums of the rewards to come.

    G_t = r_t + d_t G_{t+1}, with G_T = bootstrap_values.

    Args:
        rewards: [T, *B].
        discounts: [T, *B], of what follows step t; 0 at an end, whatever then follows.
        bootstrap_values: [*B], the worth of what follows the last step.

    Returns:
        [T, *B] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> discounted_returns(jnp.ones(3), jnp.full(3, 0.5), jnp.array(8.0)).tolist()
        [2.75, 3.5, 5.0]

    Source: Sutton and Barto, 2018, equation 3.9.
    """
    check_same_shape(rewards=rewards, discounts=discounts)
    check_shape("bootstrap_values", bootstrap_values, jnp.shape(rewards)[1:])
    rewards, discounts, last = as_float32(rewards, discounts, bootstrap_values)
    return _accumulate(rewards, discounts, last)


def lambda_returns(
    rewards: Real[ArrayLike, "T *B"],
    discounts: Real[ArrayLike, "T *B"],
    next_values: Real[ArrayLike, "T *B"],
    *,
    lambda_: Scalar | Real[ArrayLike, "T *B"],
) -> Float[Array, "T *B"]:
    """Mixtures of the n-step returns of all n, the TD(λ) targets.

    G_t = r_t + d_t ((1 - λ_t) next_values_t + λ_t G_{t+1}), with G_T = next_values_{T-1}.

    Args:
        rewards: [T, *B].
        discounts: [T, *B]; 0 where terminated, whatever next_values then is.
        next_values: [T, *B], of the observation after step t and before any reset.
        lambda_: in [0, 1], a scalar or [T, *B]; 0 where truncated.

    Returns:
        [T, *B] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> one = jnp.ones(3)
        >>> lambda_returns(one, 0.5 * one, 8 * one, lambda_=0.0).tolist()
        [5.0, 5.0, 5.0]

    Source: Sutton and Barto, 2018, equation 12.18.
    """
    check_same_shape(rewards=rewards, discounts=discounts, next_values=next_values)
    check_shape("lambda_", lambda_, (), jnp.shape(rewards))
    rewards, discounts, next_values = as_float32(rewards, discounts, next_values)
    lambda_ = broadcast_trailing("lambda_", lambda_, rewards.shape)
    increments = rewards + _scale(discounts * (1.0 - lambda_), next_values)
    return _accumulate(increments, discounts * lambda_, next_values[-1])


def gae(
    rewards: Real[ArrayLike, "T *B"],
    values: Real[ArrayLike, "T *B"],
    next_values: Real[ArrayLike, "T *B"],
    terminated: Shaped[ArrayLike, "T *B"],
    truncated: Shaped[ArrayLike, "T *B"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
    lambda_: Scalar | Real[ArrayLike, "..."],
) -> Float[Array, "T *B"]:
    """Generalised advantage estimates; the targets of a value function are advantages + values.

    δ_t = r_t + γ (1 - terminated_t) next_values_t - values_t
    A_t = δ_t + γλ (1 - (terminated_t or truncated_t)) A_{t+1}, with A_T = 0.

    Args:
        rewards: [T, *B].
        values: [T, *B], of the observation at step t.
        next_values: [T, *B], of the observation after step t and before any reset.
        terminated: [T, *B], bool or 0/1: step t ended the episode.
        truncated: [T, *B], bool or 0/1: step t was the last before a cut from outside.
        discount: γ in [0, 1], a scalar or of the trailing shape.
        lambda_: λ in [0, 1], likewise.

    Returns:
        [T, *B] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> r, v, off = jnp.ones(2), jnp.zeros(2), jnp.zeros(2, bool)
        >>> gae(r, v, jnp.array([0.0, 4.0]), off, off, discount=0.5, lambda_=1.0).tolist()
        [2.5, 3.0]

    Source: Schulman, Moritz, Levine, Jordan and Abbeel, 2016, equation 16.
    """
    check_same_shape(
        rewards=rewards,
        values=values,
        next_values=next_values,
        terminated=terminated,
        truncated=truncated,
    )
    rewards, values = as_float32(rewards, values)
    discount = broadcast_trailing("discount", discount, rewards.shape)
    lambda_ = broadcast_trailing("lambda_", lambda_, rewards.shape)
    terminated = jnp.asarray(terminated) != 0
    ended = terminated | (jnp.asarray(truncated) != 0)
    deltas = rewards + _scale(discount, keep(next_values, ~terminated)) - values
    return _accumulate(deltas, keep(discount * lambda_, ~ended), jnp.zeros_like(deltas[0]))


def token_gae(
    rewards: Real[ArrayLike, "*B L"],
    values: Real[ArrayLike, "*B L"],
    mask: Shaped[ArrayLike, "*B L"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
    lambda_: Scalar | Real[ArrayLike, "..."],
) -> Float[Array, "*B L"]:
    """Generalised advantages over the kept tokens of each row, the last of them terminal.

    With j the next kept token after i, and nothing after the last one:
    δ_i = r_i + γ values_j - values_i,  A_i = δ_i + γλ A_j.
    Masked tokens (a tool's reply inside a completion, padding on either side) are taken out first:
    a gap costs no decay, and what stands in it is not read.

    Args:
        rewards: [*B, L]; may be anything where masked.
        values: [*B, L], of the state in which token i was chosen; likewise.
        mask: [*B, L], bool or 0/1: the tokens that the policy chose.
        discount: γ in [0, 1], a scalar or of the trailing shape.
        lambda_: λ in [0, 1], likewise.

    Returns:
        [*B, L] float32; 0 where masked.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> r, v = jnp.array([[0.0, jnp.nan, 4.0]]), jnp.array([[1.0, 9.0, 2.0]])
        >>> token_gae(r, v, jnp.array([[1, 0, 1]]), discount=1.0, lambda_=0.5).tolist()
        [[2.0, 0.0, 2.0]]

    Source: Schulman, Moritz, Levine, Jordan and Abbeel, 2016, equation 16; the mask is ours.
    """
    check_same_shape(rewards=rewards, values=values, mask=mask)
    rewards, values = keep(rewards, mask), keep(values, mask)
    discount = broadcast_trailing("discount", discount, rewards.shape)
    lambda_ = broadcast_trailing("lambda_", lambda_, rewards.shape)

    def step(following, now):
        reward, value, kept, discount, lambda_ = now
        following_advantage, following_value = following
        advantage = reward + discount * (following_value + lambda_ * following_advantage) - value
        nearest = (
            jnp.where(kept, advantage, following_advantage),
            jnp.where(kept, value, following_value),
        )
        return nearest, jnp.where(kept, advantage, 0.0)

    zeros = jnp.zeros(rewards.shape[:-1], jnp.float32)
    rows = (rewards, values, jnp.asarray(mask) != 0, discount, lambda_)
    tokens_first = tuple(jnp.moveaxis(row, -1, 0) for row in rows)
    _, advantages = jax.lax.scan(step, (zeros, zeros), tokens_first, reverse=True)
    return jnp.moveaxis(advantages, 0, -1)


def n_step(
    rewards: Real[ArrayLike, "T *B"],
    terminated: Shaped[ArrayLike, "T *B"],
    truncated: Shaped[ArrayLike, "T *B"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
    n: int,
) -> tuple[Float[Array, "T *B"], Float[Array, "T *B"], Int[Array, "T *B"]]:
    """Sums of up to n rewards from every start, and what to bootstrap them with.

    R_t = Σ_{i<k} γ^i r_{t+i}; k ≤ n is cut short after the first terminated or truncated step and
    at the end of the array. The target is R_t + bootstrap_discount_t · V(next_observation of step
    last_t), with bootstrap_discount_t = γ^k, or 0 where that step is terminated.

    Args:
        rewards: [T, *B].
        terminated: [T, *B], bool or 0/1.
        truncated: [T, *B], bool or 0/1.
        discount: γ in [0, 1], a scalar or of the trailing shape.
        n: the most rewards to sum, at least 1; static.

    Returns:
        returns R [T, *B] float32, bootstrap_discounts [T, *B] float32, and the indices along
        T of the last steps used, last_steps [T, *B] int32.

    Raises:
        ValueError: if the shapes differ or n < 1.

    Example:
        >>> off = jnp.zeros(3, bool)
        >>> [x.tolist() for x in n_step(jnp.ones(3), off, off, discount=0.5, n=2)]
        [[1.5, 1.5, 1.0], [0.25, 0.25, 0.5], [1, 2, 2]]

    Source: Sutton and Barto, 2018, equation 7.1.
    """
    check_same_shape(rewards=rewards, terminated=terminated, truncated=truncated)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    rewards = jnp.asarray(rewards, jnp.float32)
    num_steps = rewards.shape[0]
    n = min(n, num_steps)
    discount = broadcast_trailing("discount", discount, rewards.shape)
    terminated = jnp.asarray(terminated) != 0
    # The end of the array stops a window like a truncation, so that none reaches the padding.
    ended = (terminated | (jnp.asarray(truncated) != 0)).at[-1].set(True)

    def ahead(x, i):
        padded = jnp.pad(x, [(0, n - 1)] + [(0, 0)] * (x.ndim - 1))
        return jax.lax.dynamic_slice_in_dim(padded, i, num_steps)

    def step(window, i):
        running, returns, factor, last_steps = window
        returns = returns + _scale(factor, keep(ahead(rewards, i), running))
        factor = jnp.where(running, factor * ahead(discount, i), factor)
        factor = jnp.where(running & ahead(terminated, i), 0.0, factor)
        last_steps = last_steps + (running & (i > 0))
        return (running & ~ahead(ended, i), returns, factor, last_steps), None

    shape = rewards.shape
    starts = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    window = (jnp.ones(shape, bool), jnp.zeros(shape), jnp.ones(shape), starts)
    (_, returns, factor, last_steps), _ = jax.lax.scan(step, window, jnp.arange(n))
    return returns, factor, last_steps
