"""Deep deterministic policy gradient: one critic, and an actor that climbs it."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real, Shaped

from rljax.ops.bellman import bellman_targets
from rljax.ops.checks import Scalar, check_same_shape
from rljax.ops.masked import keep, masked_mean
from rljax.types import Metrics


def ddpg_targets(
    rewards: Real[ArrayLike, "*S"],
    terminated: Shaped[ArrayLike, "*S"],
    next_q: Real[ArrayLike, "*S"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
) -> Float[Array, "*S"]:
    """What the critic should say, by the target critic's word on the target actor's next action.

    y = r + γ (1 - terminated) Q'(s', μ'(s')), held constant. next_q is not read where terminated.

    Args:
        rewards: r [*S].
        terminated: [*S], bool or 0/1; not set by truncation.
        next_q: Q'(s', μ'(s')) [*S], s' the observation before any reset.
        discount: γ in [0, 1], a scalar or of the trailing shape (`n_step` gives one [*S]).

    Returns:
        [*S] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> ddpg_targets(jnp.ones(2), jnp.array([0, 1]), jnp.full(2, 8.0), discount=0.5).tolist()
        [5.0, 1.0]

    Source: Lillicrap et al. (2016), Continuous Control with Deep Reinforcement Learning,
    algorithm 1. The end of an episode, which its text leaves out, is ours.
    """
    check_same_shape(rewards=rewards, terminated=terminated, next_q=next_q)
    targets = bellman_targets(rewards, terminated, next_q, discount=discount)
    return jax.lax.stop_gradient(targets)


def ddpg_critic_loss(
    q: Real[ArrayLike, "*S"],
    targets: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Half the mean squared error of the critic.

    loss = Σ_i ½ (Q_i - y_i)² / denominator, over the unmasked i. The targets y are held constant.

    Args:
        q: Q(s, a) [*S] of the stored actions, float.
        targets: y [*S], float.
        mask: [*S], bool or 0/1; None keeps everything.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics `loss/critic` (the same number), `q/mean` (of Q), `q/target_mean`
        (of y; a critic that runs away shows in both) and `q/abs_error` (mean |Q - y|).

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> ddpg_critic_loss(jnp.array([1.0, 3.0]), jnp.array([2.0, 3.0]))[0].item()
        0.25

    Source: Lillicrap et al. (2016), algorithm 1; the half is ours.
    """
    check_same_shape(q=q, targets=targets, mask=mask)
    q, targets = keep(q, mask), jax.lax.stop_gradient(keep(targets, mask))
    error = q - targets
    loss = 0.5 * masked_mean(jnp.square(error), mask, denominator=denominator)
    return loss, {
        "loss/critic": loss,
        "q/mean": masked_mean(q, mask, denominator=denominator),
        "q/target_mean": masked_mean(targets, mask, denominator=denominator),
        "q/abs_error": masked_mean(jnp.abs(error), mask, denominator=denominator),
    }


def ddpg_actor_loss(
    q: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Minus the critic's value of the actor's own actions.

    loss = -Σ_i Q(s_i, μ(s_i)) / denominator, over the unmasked i. The gradient reaches the actor
    through the action; differentiate with respect to the actor's parameters only.

    Args:
        q: Q(s, μ(s)) [*S], float.
        mask: [*S], bool or 0/1; None keeps everything.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metric `loss/actor` (the same number).

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> ddpg_actor_loss(jnp.array([1.0, 3.0]))[0].item()
        -2.0

    Source: Silver et al. (2014), Deterministic Policy Gradient Algorithms, equation 9.
    """
    check_same_shape(q=q, mask=mask)
    loss = -masked_mean(q, mask, denominator=denominator)
    return loss, {"loss/actor": loss}
