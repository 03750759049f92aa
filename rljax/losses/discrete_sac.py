"""Soft actor-critic over discrete actions: expectations over all actions in place of samples.

A logit of -inf marks an action that cannot be taken; its Q may be anything.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Integer, Real, Shaped

from rljax.losses.sac import sac_critic_loss, sac_temperature_loss
from rljax.ops.bellman import bellman_targets
from rljax.ops.categorical import categorical_entropy, categorical_expectation
from rljax.ops.checks import Scalar, as_float32, check_more_axes, check_same_shape
from rljax.ops.masked import keep, masked_mean
from rljax.types import Metrics


def discrete_sac_targets(
    rewards: Real[ArrayLike, "*S"],
    terminated: Shaped[ArrayLike, "*S"],
    next_q1: Real[ArrayLike, "*S A"],
    next_q2: Real[ArrayLike, "*S A"],
    next_logits: Real[ArrayLike, "*S A"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
    temperature: Scalar,
) -> Float[Array, "*S"]:
    """What both critics should say: the policy's mean of the smaller one, and its entropy.

    y = r + γ (1 - terminated) (Σ_a π(a|s') min(Q'₁(s', a), Q'₂(s', a)) + α H(π(·|s'))), held
    constant. What is next is not read where terminated.

    Args:
        rewards: r [*S].
        terminated: [*S], bool or 0/1; not set by truncation.
        next_q1: Q'₁(s', ·) [*S, A], s' the observation before any reset.
        next_q2: Q'₂(s', ·) [*S, A].
        next_logits: of π(·|s') [*S, A], the trained policy.
        discount: γ in [0, 1], a scalar or of the trailing shape.
        temperature: α >= 0, in the unit of rewards per nat.

    Returns:
        [*S] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> q1, q2, logits = jnp.array([[4.0, 6.0]]), jnp.array([[8.0, 2.0]]), jnp.zeros((1, 2))
        >>> discrete_sac_targets(jnp.ones(1), jnp.zeros(1), q1, q2, logits, discount=0.5,
        ...     temperature=0.0).tolist()
        [2.5]

    Source: Christodoulou (2019), Soft Actor-Critic for Discrete Action Settings, equation 10.
    """
    check_same_shape(rewards=rewards, terminated=terminated)
    check_more_axes(1, next_q1=next_q1, rewards=rewards)
    check_same_shape(next_q1=next_q1, next_q2=next_q2, next_logits=next_logits)
    smaller = jnp.minimum(*as_float32(next_q1, next_q2))
    next_values = categorical_expectation(next_logits, smaller)
    next_values += temperature * categorical_entropy(next_logits)
    targets = bellman_targets(rewards, terminated, next_values, discount=discount)
    return jax.lax.stop_gradient(targets)


def discrete_sac_critic_loss(
    q1: Real[ArrayLike, "*S A"],
    q2: Real[ArrayLike, "*S A"],
    actions: Integer[ArrayLike, "*S"],
    targets: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """`sac_critic_loss` of the actions taken.

    loss = Σ_i ½ ((Q₁(s_i, a_i) - y_i)² + (Q₂(s_i, a_i) - y_i)²) / denominator, over the unmasked i.
    The targets y are held constant.

    Args:
        q1: Q₁(s, ·) [*S, A], float.
        q2: Q₂(s, ·) [*S, A], float.
        actions: a [*S], integers in 0 ... A-1.
        targets: y [*S], float, from `discrete_sac_targets`.
        mask: [*S], bool or 0/1; None keeps everything.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics of `td3_critic_loss`: `loss/critic`, `q/mean`, `q/target_mean`,
        `q/abs_error` and `q/gap`, all of the actions taken.

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> q1, q2 = jnp.array([[1.0, 9.0]]), jnp.array([[4.0, 9.0]])
        >>> discrete_sac_critic_loss(q1, q2, jnp.array([0]), jnp.array([2.0]))[0].item()
        2.5

    Source: Christodoulou (2019), Soft Actor-Critic for Discrete Action Settings, algorithm 1.
    """
    check_more_axes(1, q1=q1, actions=actions)
    check_same_shape(q1=q1, q2=q2)
    check_same_shape(actions=actions, targets=targets, mask=mask)
    index = jnp.asarray(actions)[..., None]
    q1, q2 = (jnp.take_along_axis(q, index, axis=-1)[..., 0] for q in as_float32(q1, q2))
    return sac_critic_loss(q1, q2, targets, mask, denominator=denominator)


def discrete_sac_actor_loss(
    q1: Real[ArrayLike, "*S A"],
    q2: Real[ArrayLike, "*S A"],
    logits: Real[ArrayLike, "*S A"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    temperature: Scalar,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """The actor's divergence from the Boltzmann policy of the smaller critic, up to a constant.

    loss = -Σ_i (Σ_a π(a|s_i) min(Q₁(s_i, a), Q₂(s_i, a)) + α H(π(·|s_i))) / denominator, over the
    unmasked i; least where π ∝ exp(min(Q₁, Q₂)/α). Both Q and α are held constant.

    Args:
        q1: Q₁(s, ·) [*S, A], float.
        q2: Q₂(s, ·) [*S, A], float.
        logits: of π(·|s) [*S, A], float.
        mask: [*S], bool or 0/1; None keeps everything.
        temperature: α >= 0.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics `loss/actor` (the same number) and `policy/entropy` (mean of H).

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> q1, q2, logits = jnp.array([[4.0, 6.0]]), jnp.array([[8.0, 2.0]]), jnp.zeros((1, 2))
        >>> discrete_sac_actor_loss(q1, q2, logits, temperature=0.0)[0].item()
        -3.0

    Source: Christodoulou (2019), Soft Actor-Critic for Discrete Action Settings, equation 12.
    """
    check_same_shape(q1=q1, q2=q2, logits=logits)
    if mask is not None:
        check_more_axes(1, logits=logits, mask=mask)
        kept = jnp.broadcast_to((jnp.asarray(mask) != 0)[..., None], jnp.shape(logits))
        q1, q2, logits = keep(q1, kept), keep(q2, kept), keep(logits, kept)
    temperature, smaller = jax.lax.stop_gradient(
        (jnp.asarray(temperature, jnp.float32), jnp.minimum(*as_float32(q1, q2)))
    )
    entropy = categorical_entropy(logits)
    objective = categorical_expectation(logits, smaller) + temperature * entropy
    loss = -masked_mean(objective, mask, denominator=denominator)
    entropy = masked_mean(entropy, mask, denominator=denominator)
    return loss, {"loss/actor": loss, "policy/entropy": entropy}


def discrete_sac_temperature_loss(
    log_temperature: Scalar,
    logits: Real[ArrayLike, "*S A"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    target_entropy: Scalar,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """`sac_temperature_loss` with the policy's entropy in place of a sample of it.

    loss = log α · Σ_i (H(π(·|s_i)) - H̄) / denominator, over the unmasked i. The policy is held
    constant.

    Args:
        log_temperature: log α, a scalar, float.
        logits: of π(·|s) [*S, A], float.
        mask: [*S], bool or 0/1; None keeps everything.
        target_entropy: H̄ in nats, below log A; 0.98 log A in the paper's code.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metric `loss/temperature` (the same number).

    Raises:
        ValueError: if the shapes do not fit or log_temperature is no scalar.

    Example:
        >>> logits = jnp.zeros((1, 2))  # entropy log 2 = 0.693
        >>> round(discrete_sac_temperature_loss(1.0, logits, target_entropy=0.5)[0].item(), 3)
        0.193

    Source: Christodoulou (2019), Soft Actor-Critic for Discrete Action Settings, equation 11.
    """
    if mask is not None:
        check_more_axes(1, logits=logits, mask=mask)
    log_probs = -categorical_entropy(jax.lax.stop_gradient(jnp.asarray(logits, jnp.float32)))
    return sac_temperature_loss(
        log_temperature, log_probs, mask, target_entropy=target_entropy, denominator=denominator
    )
