"""The policy gradient (REINFORCE), and the four weights its log-probs are multiplied with."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real, Shaped

from rljax.ops.checks import Scalar, broadcast_trailing, check_same_shape
from rljax.ops.masked import keep, masked_mean
from rljax.ops.returns import gae, lambda_returns
from rljax.types import Metrics

WeightKind = Literal["return", "reward_to_go", "reward_to_go_baseline", "advantage"]


def vpg_loss(
    log_probs: Real[ArrayLike, "*S"],
    advantages: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """The loss whose gradient is the policy gradient.

    loss = -Σ_i log π(a_i|s_i) A_i / denominator, over the unmasked i. A is held constant.

    Args:
        log_probs: log π(a|s) [*S] of the actions taken, float.
        advantages: A [*S], float: any of `vpg_weights`.
        mask: [*S], bool or 0/1; None keeps everything.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metric `loss/policy` (the same number).

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> log_probs, advantages = jnp.array([-1.0, -2.0]), jnp.array([3.0, -1.0])
        >>> vpg_loss(log_probs, advantages)[0].item()
        0.5

    Source: Williams (1992), REINFORCE; Sutton et al. (2000), theorem 1.
    """
    check_same_shape(log_probs=log_probs, advantages=advantages, mask=mask)
    advantages = jax.lax.stop_gradient(keep(advantages, mask))
    loss = -masked_mean(keep(log_probs, mask) * advantages, mask, denominator=denominator)
    return loss, {"loss/policy": loss}


def vpg_weights(
    rewards: Real[ArrayLike, "T *B"],
    terminated: Shaped[ArrayLike, "T *B"],
    truncated: Shaped[ArrayLike, "T *B"],
    values: Real[ArrayLike, "T *B"] | None = None,
    next_values: Real[ArrayLike, "T *B"] | None = None,
    mask: Shaped[ArrayLike, "T *B"] | None = None,
    *,
    kind: WeightKind,
    discount: Scalar | Float[ArrayLike, "..."],
    lambda_: Scalar = 1.0,
) -> Float[Array, "T *B"]:
    """What log π(a_t|s_t) is multiplied with, from the noisiest choice to the calmest.

    With e the last step of t's episode in the array, s its first one there, and
    R_t = Σ_{k=t..e} γ^{k-t} r_k + γ^{e-t+1} V(s_{e+1}):
    `"return"` R_s, the same number for every step of the episode; `"reward_to_go"` R_t;
    `"reward_to_go_baseline"` R_t - V(s_t); `"advantage"` GAE, which is the former if λ = 1.

    V(s_{e+1}) is 0 after a terminated step. After a truncated one, and where the array ends, it is
    `next_values`; without `next_values` it is left out and R is the plain sum of the rewards seen.
    With γ < 1 the means of the first two differ: R_s discounts from the episode's first step on,
    R_t from step t on, as nearly everyone does. An episode that began before the array is seen
    from the array's first step on.

    Args:
        rewards: r [T, *B], float.
        terminated: [T, *B], bool or 0/1: the episode ended at this step.
        truncated: [T, *B], bool or 0/1: the episode was cut after this step.
        values: V(s_t) [T, *B], float; for the last two kinds.
        next_values: V(s_{t+1}) [T, *B] before any reset, float; `"advantage"` needs it.
        mask: [T, *B], bool or 0/1; 0 where no step was taken, which also ends an episode.
        kind: one of the four above.
        discount: γ in [0, 1], a scalar or of a trailing shape of rewards.
        lambda_: λ of GAE in [0, 1]; only for `"advantage"`.

    Returns:
        [T, *B] float32; 0 where masked.

    Raises:
        ValueError: if the shapes differ, the kind is unknown or a value that it needs is missing.

    Example:
        >>> rewards, no = jnp.array([1.0, 2.0, 4.0]), jnp.zeros(3, bool)
        >>> vpg_weights(rewards, no, no, kind="reward_to_go", discount=0.5).tolist()
        [3.0, 4.0, 4.0]

    Source: Schulman et al. (2016), High-Dimensional Continuous Control Using Generalized Advantage
    Estimation, section 2, items 1-3 and 5, and equation 16.
    """
    shapes = {"rewards": rewards, "terminated": terminated, "truncated": truncated, "mask": mask}
    given = {"values": values, "next_values": next_values}
    check_same_shape(**shapes, **given)
    if kind not in get_args(WeightKind):
        raise ValueError(f"kind must be one of {', '.join(get_args(WeightKind))}, got {kind!r}")
    needed = {"reward_to_go_baseline": ["values"], "advantage": ["values", "next_values"]}
    missing = [name for name in needed.get(kind, []) if given[name] is None]
    if missing:
        raise ValueError(f"kind {kind!r} needs {' and '.join(missing)}, got None")

    terminated, truncated = jnp.asarray(terminated) != 0, jnp.asarray(truncated) != 0
    if mask is not None:
        # A step not taken is an episode of its own, worth nothing, and cuts the one before it.
        absent = jnp.asarray(mask) == 0
        truncated |= jnp.concatenate([absent[1:], jnp.zeros_like(absent[:1])])
        terminated |= absent
    rewards = keep(rewards, mask)
    values = keep(jnp.zeros_like(rewards) if values is None else values, mask)
    next_values = jnp.zeros_like(rewards) if next_values is None else next_values

    if kind == "advantage":
        return gae(
            rewards, values, next_values, terminated, truncated, discount=discount, lambda_=lambda_
        )
    discounts = keep(broadcast_trailing("discount", discount, rewards.shape), ~terminated)
    # λ-returns with λ = 1 never bootstrap before the end of the array, with λ = 0 they do at once.
    to_go = lambda_returns(rewards, discounts, next_values, lambda_=jnp.where(truncated, 0.0, 1.0))
    if kind == "reward_to_go":
        return to_go
    if kind == "reward_to_go_baseline":
        return to_go - values
    return jnp.take_along_axis(to_go, _first_steps(terminated | truncated), axis=0)


def _first_steps(ended: Array) -> Array:
    """[T, *B] int32: the index of the first step of each step's episode in the array."""
    begins = jnp.concatenate([jnp.ones_like(ended[:1]), ended[:-1]])
    steps = jax.lax.broadcasted_iota(jnp.int32, ended.shape, 0)
    return jax.lax.cummax(jnp.where(begins, steps, 0), axis=0)
