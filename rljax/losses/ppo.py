"""The clipped surrogate of proximal policy optimisation."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real, Shaped

from rljax.losses.trpo import policy_ratio
from rljax.ops.checks import Scalar, check_same_shape
from rljax.ops.masked import keep, masked_mean
from rljax.types import Metrics


def ppo_loss(
    log_probs: Real[ArrayLike, "*S"],
    behaviour_log_probs: Real[ArrayLike, "*S"],
    advantages: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    clip: Scalar,
    clip_high: Scalar | None = None,
    dual_clip: Scalar | None = None,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Policy improvement that gains nothing from moving the ratio out of a band around 1.

    loss = -Σ_i min(ρ_i A_i, clip(ρ_i, 1-ε, 1+ε') A_i) / denominator, over the unmasked i, with
    ρ = π(a|s)/π⁰(a|s) as in `policy_ratio`. Where A_i < 0, `dual_clip` c makes the summand
    max(min(...), c·A_i). The behaviour policy π⁰ and A are held constant.

    Args:
        log_probs: log π(a|s) [*S] of the actions taken, float.
        behaviour_log_probs: log π⁰(a|s) [*S], float: as they were before the batch's first update.
        advantages: A [*S], float.
        mask: [*S], bool or 0/1; None keeps everything.
        clip: ε >= 0; from 1 on nothing is clipped below, at inf nothing at all.
        clip_high: ε' >= 0 where the band is not symmetric; None is `clip`.
        dual_clip: c > 1; None sets no such floor.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics `loss/policy` (the same number), `policy/clip_fraction` (share of the
        ratios outside the band) and `policy/behaviour_kl` (mean of exp(l) - 1 - l, l the log-ratio:
        an estimate of KL(π⁰‖π), never negative, fit to stop the epochs on).

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> log_probs, advantages = jnp.log(jnp.array([0.5, 0.25])), jnp.array([1.0, -1.0])
        >>> ppo_loss(log_probs, jnp.log(jnp.array([0.25, 0.25])), advantages, clip=0.5)[0].item()
        -0.25

    Source: Schulman et al. (2017), Proximal Policy Optimization Algorithms, equation 7. clip_high:
    Yu et al. (2025), DAPO, section 3.1. dual_clip: Ye et al. (2020), Mastering Complex Control in
    MOBA Games with Deep Reinforcement Learning, equation 5.
    """
    check_same_shape(
        log_probs=log_probs,
        behaviour_log_probs=behaviour_log_probs,
        advantages=advantages,
        mask=mask,
    )
    ratio, kl = policy_ratio(log_probs, behaviour_log_probs, mask)
    advantages = jax.lax.stop_gradient(keep(advantages, mask))
    low, high = 1.0 - clip, 1.0 + (clip if clip_high is None else clip_high)
    unclipped, clipped = ratio * advantages, jnp.clip(ratio, low, high) * advantages
    # A select, not minimum: that would halve the gradient of a ratio on the edge of the band.
    objective = jnp.where(clipped < unclipped, clipped, unclipped)
    if dual_clip is not None:
        floor = dual_clip * advantages
        objective = jnp.where((advantages < 0) & (objective < floor), floor, objective)

    loss = -masked_mean(objective, mask, denominator=denominator)
    outside = (ratio < low) | (ratio > high)
    return loss, {
        "loss/policy": loss,
        "policy/clip_fraction": masked_mean(outside, mask, denominator=denominator),
        "policy/behaviour_kl": masked_mean(kl, mask, denominator=denominator),
    }
