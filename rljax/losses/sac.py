"""Soft actor-critic over real actions; `discrete_sac` has the forms for discrete ones.

The temperature α is exp(log_temperature). It weighs log-densities of the environment's actions, so
their unit counts: a `target_entropy` of -A is meant for actions in [-1, 1].
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real, Shaped

from rljax.losses.td3 import td3_critic_loss
from rljax.ops.bellman import bellman_targets
from rljax.ops.checks import Scalar, as_float32, check_same_shape, check_shape
from rljax.ops.masked import keep, masked_mean
from rljax.types import Metrics


def sac_targets(
    rewards: Real[ArrayLike, "*S"],
    terminated: Shaped[ArrayLike, "*S"],
    next_q1: Real[ArrayLike, "*S"],
    next_q2: Real[ArrayLike, "*S"],
    next_log_probs: Real[ArrayLike, "*S"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
    temperature: Scalar,
) -> Float[Array, "*S"]:
    """What both critics should say: the smaller target critic and a bonus for surprise.

    y = r + γ (1 - terminated) (min(Q'₁(s', a'), Q'₂(s', a')) - α log π(a'|s')), held constant,
    with a' a sample of the trained policy. What is next is not read where terminated.

    Args:
        rewards: r [*S].
        terminated: [*S], bool or 0/1; not set by truncation.
        next_q1: Q'₁(s', a') [*S], s' the observation before any reset.
        next_q2: Q'₂(s', a') [*S], of the same action.
        next_log_probs: log π(a'|s') [*S], of the same action.
        discount: γ in [0, 1], a scalar or of the trailing shape (`n_step` gives one [*S]; its
            rewards then lack the bonuses in between).
        temperature: α >= 0, in the unit of rewards per nat.

    Returns:
        [*S] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> next_q, log_probs = (jnp.array([8.0]), jnp.array([6.0])), jnp.array([-4.0])
        >>> sac_targets(jnp.ones(1), jnp.zeros(1), *next_q, log_probs, discount=0.5,
        ...     temperature=0.5).tolist()
        [5.0]

    Source: Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications, equations 3
    and 5.
    """
    check_same_shape(
        rewards=rewards,
        terminated=terminated,
        next_q1=next_q1,
        next_q2=next_q2,
        next_log_probs=next_log_probs,
    )
    next_q1, next_q2, next_log_probs = as_float32(next_q1, next_q2, next_log_probs)
    next_values = jnp.minimum(next_q1, next_q2) - temperature * next_log_probs
    targets = bellman_targets(rewards, terminated, next_values, discount=discount)
    return jax.lax.stop_gradient(targets)


def sac_critic_loss(
    q1: Real[ArrayLike, "*S"],
    q2: Real[ArrayLike, "*S"],
    targets: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Half the mean squared errors of both critics, added up: `td3_critic_loss` with soft targets.

    loss = Σ_i ½ ((Q₁_i - y_i)² + (Q₂_i - y_i)²) / denominator, over the unmasked i. The targets y
    are held constant.

    Args:
        q1: Q₁(s, a) [*S] of the stored actions, float.
        q2: Q₂(s, a) [*S], likewise.
        targets: y [*S], float, from `sac_targets`.
        mask: [*S], bool or 0/1; None keeps everything.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics of `td3_critic_loss`: `loss/critic`, `q/mean`, `q/target_mean`,
        `q/abs_error` and `q/gap`.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> q1, q2, targets = jnp.array([1.0, 3.0]), jnp.array([2.0, 1.0]), jnp.array([2.0, 3.0])
        >>> sac_critic_loss(q1, q2, targets)[0].item()
        1.25

    Source: Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications, equation 5.
    """
    return td3_critic_loss(q1, q2, targets, mask, denominator=denominator)


def sac_actor_loss(
    q1: Real[ArrayLike, "*S"],
    q2: Real[ArrayLike, "*S"],
    log_probs: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    temperature: Scalar,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """The actor's divergence from the Boltzmann policy of the smaller critic, up to a constant.

    loss = Σ_i (α log π(a_i|s_i) - min(Q₁(s_i, a_i), Q₂(s_i, a_i))) / denominator, over the unmasked
    i, with a_i a reparameterised sample of the policy. The gradient reaches the actor through the
    actions and through log π; α is held constant. Differentiate with respect to the actor's
    parameters only.

    Args:
        q1: Q₁(s, a) [*S] of the sampled actions, float.
        q2: Q₂(s, a) [*S], likewise.
        log_probs: log π(a|s) [*S], float.
        mask: [*S], bool or 0/1; None keeps everything.
        temperature: α >= 0.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics `loss/actor` (the same number) and `policy/entropy` (mean of -log π:
        of the density, so that it may be negative).

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> q1, q2, log_probs = jnp.array([1.0]), jnp.array([3.0]), jnp.array([-2.0])
        >>> sac_actor_loss(q1, q2, log_probs, temperature=0.5)[0].item()
        -2.0

    Source: Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications, equation 9.
    """
    check_same_shape(q1=q1, q2=q2, log_probs=log_probs, mask=mask)
    temperature = jax.lax.stop_gradient(jnp.asarray(temperature, jnp.float32))
    q1, q2, log_probs = keep(q1, mask), keep(q2, mask), keep(log_probs, mask)
    element = temperature * log_probs - jnp.minimum(q1, q2)
    loss = masked_mean(element, mask, denominator=denominator)
    entropy = -masked_mean(log_probs, mask, denominator=denominator)
    return loss, {"loss/actor": loss, "policy/entropy": entropy}


def sac_temperature_loss(
    log_temperature: Scalar,
    log_probs: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    target_entropy: Scalar,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Raises the temperature while the policy's entropy is below its target, and lowers it above.

    loss = -log α · Σ_i (log π(a_i|s_i) + H̄) / denominator, over the unmasked i. Its slope in log α
    is the entropy less the target H̄. log π is held constant.

    Args:
        log_temperature: log α, a scalar, float.
        log_probs: log π(a|s) [*S] of actions sampled from the policy, float.
        mask: [*S], bool or 0/1; None keeps everything.
        target_entropy: H̄ in nats; -A is usual for A actions in [-1, 1], and the sum of the log
            half-widths more for those in another box.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metric `loss/temperature` (the same number).

    Raises:
        ValueError: if the shapes differ or log_temperature is no scalar.

    Example:
        >>> log_probs = jnp.array([1.0, 4.0])  # entropy -2.5, below the target: α must rise
        >>> loss_fn = lambda log_alpha: sac_temperature_loss(log_alpha, log_probs,
        ...     target_entropy=-2.0)[0]
        >>> jax.grad(loss_fn)(0.0).item()
        -0.5

    Source: Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications, equation 18,
    with log α in place of the factor α, as in the authors' code: the step in log α then depends on
    the gap alone.
    """
    check_same_shape(log_probs=log_probs, mask=mask)
    check_shape("log_temperature", log_temperature, ())
    gap = jax.lax.stop_gradient(keep(log_probs, mask)) + target_entropy
    loss = -jnp.asarray(log_temperature, jnp.float32) * masked_mean(
        gap, mask, denominator=denominator
    )
    return loss, {"loss/temperature": loss}
