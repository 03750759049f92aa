"""Twin delayed DDPG: the smaller of two critics is believed.

Its actor's loss is `ddpg_actor_loss` of the first critic, and the noise on the target actor's
actions is `noisy_actions` of `rljax.ops.noise` with its `clip`.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real, Shaped

from rljax.ops.bellman import bellman_targets
from rljax.ops.checks import Scalar, as_float32, check_same_shape
from rljax.ops.masked import keep, masked_mean
from rljax.types import Metrics


def td3_targets(
    rewards: Real[ArrayLike, "*S"],
    terminated: Shaped[ArrayLike, "*S"],
    next_q1: Real[ArrayLike, "*S"],
    next_q2: Real[ArrayLike, "*S"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
) -> Float[Array, "*S"]:
    """What both critics should say, by the more pessimistic of the two target critics.

    y = r + γ (1 - terminated) min(Q'₁(s', a'), Q'₂(s', a')), held constant, with a' the target
    actor's action and its clipped noise. Next values are not read where terminated.

    Args:
        rewards: r [*S].
        terminated: [*S], bool or 0/1; not set by truncation.
        next_q1: Q'₁(s', a') [*S], s' the observation before any reset.
        next_q2: Q'₂(s', a') [*S], of the same action.
        discount: γ in [0, 1], a scalar or of the trailing shape (`n_step` gives one [*S]).

    Returns:
        [*S] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> next_q = jnp.array([8.0, 8.0]), jnp.array([6.0, 6.0])
        >>> td3_targets(jnp.ones(2), jnp.array([0, 1]), *next_q, discount=0.5).tolist()
        [4.0, 1.0]

    Source: Fujimoto, van Hoof and Meger (2018), Addressing Function Approximation Error in
    Actor-Critic Methods, algorithm 1.
    """
    check_same_shape(rewards=rewards, terminated=terminated, next_q1=next_q1, next_q2=next_q2)
    next_values = jnp.minimum(*as_float32(next_q1, next_q2))
    targets = bellman_targets(rewards, terminated, next_values, discount=discount)
    return jax.lax.stop_gradient(targets)


def td3_critic_loss(
    q1: Real[ArrayLike, "*S"],
    q2: Real[ArrayLike, "*S"],
    targets: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Half the mean squared errors of two critics with one target, added up.

    loss = Σ_i ½ ((Q₁_i - y_i)² + (Q₂_i - y_i)²) / denominator, over the unmasked i. The targets y
    are held constant.

    Args:
        q1: Q₁(s, a) [*S] of the stored actions, float.
        q2: Q₂(s, a) [*S], likewise.
        targets: y [*S], float.
        mask: [*S], bool or 0/1; None keeps everything.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics `loss/critic` (the same number), `q/mean` (of both critics),
        `q/target_mean` (of y; critics that run away show in both), `q/abs_error` (mean |Q - y| of
        both) and `q/gap` (mean |Q₁ - Q₂|: what is gained by having two).

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> q1, q2, targets = jnp.array([1.0, 3.0]), jnp.array([2.0, 1.0]), jnp.array([2.0, 3.0])
        >>> td3_critic_loss(q1, q2, targets)[0].item()
        1.25

    Source: Fujimoto, van Hoof and Meger (2018), algorithm 1; the half is ours.
    """
    check_same_shape(q1=q1, q2=q2, targets=targets, mask=mask)
    q1, q2, targets = keep(q1, mask), keep(q2, mask), jax.lax.stop_gradient(keep(targets, mask))

    def mean(x: Array) -> Array:
        return masked_mean(x, mask, denominator=denominator)

    loss = 0.5 * mean(jnp.square(q1 - targets) + jnp.square(q2 - targets))
    return loss, {
        "loss/critic": loss,
        "q/mean": mean(0.5 * (q1 + q2)),
        "q/target_mean": mean(targets),
        "q/abs_error": mean(0.5 * (jnp.abs(q1 - targets) + jnp.abs(q2 - targets))),
        "q/gap": mean(jnp.abs(q1 - q2)),
    }
