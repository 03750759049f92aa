"""Deep Q-learning: plain and double targets, squared or Huber error."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Integer, Real, Shaped

from rljax.ops.bellman import bellman_targets
from rljax.ops.checks import Scalar, as_float32, check_more_axes, check_same_shape
from rljax.ops.masked import keep, masked_mean
from rljax.types import Metrics


def dqn_targets(
    rewards: Real[ArrayLike, "*S"],
    terminated: Shaped[ArrayLike, "*S"],
    next_q: Real[ArrayLike, "*S A"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
    next_q_online: Real[ArrayLike, "*S A"] | None = None,
) -> Float[Array, "*S"]:
    """What Q of the action taken should be, by the target network's word on the next observation.

    y = r + γ (1 - terminated) Q'(s', a'), held constant. a' = argmax_a Q'(s', a), or, where
    `next_q_online` is given (double Q-learning), argmax_a Q(s', a): the trained network picks the
    action and the target network values it. Next values are not read where terminated.

    Args:
        rewards: r [*S].
        terminated: [*S], bool or 0/1; not set by truncation.
        next_q: Q'(s', ·) [*S, A] from the target network, s' the observation before any reset; -inf
            marks an action that cannot be taken.
        discount: γ in [0, 1], a scalar or of the trailing shape (`n_step` gives one [*S]).
        next_q_online: Q(s', ·) [*S, A] from the trained network.

    Returns:
        [*S] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> next_q, online = jnp.array([[4.0, 2.0]]), jnp.array([[0.0, 1.0]])
        >>> no = jnp.zeros(1, bool)
        >>> dqn_targets(jnp.ones(1), no, next_q, discount=0.5).item()
        3.0
        >>> dqn_targets(jnp.ones(1), no, next_q, discount=0.5, next_q_online=online).item()
        2.0

    Source: Mnih et al. (2015), Human-Level Control through Deep Reinforcement Learning,
    algorithm 1; van Hasselt, Guez and Silver (2016), Deep Reinforcement Learning with Double
    Q-learning, equation 4.
    """
    check_same_shape(rewards=rewards, terminated=terminated)
    check_more_axes(1, next_q=next_q, rewards=rewards)
    check_same_shape(next_q=next_q, next_q_online=next_q_online)
    (next_q,) = as_float32(next_q)
    if next_q_online is None:
        next_values = jnp.max(next_q, axis=-1)
    else:
        best = jnp.argmax(jnp.asarray(next_q_online, jnp.float32), axis=-1, keepdims=True)
        next_values = jnp.take_along_axis(next_q, best, axis=-1)[..., 0]
    targets = bellman_targets(rewards, terminated, next_values, discount=discount)
    return jax.lax.stop_gradient(targets)


def dqn_loss(
    q_values: Real[ArrayLike, "*S A"],
    actions: Integer[ArrayLike, "*S"],
    targets: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    huber_delta: Scalar | None = None,
    weights: Real[ArrayLike, "*S"] | None = None,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Squared or Huber error of Q of the action taken.

    loss = Σ_i w_i f(Q(s_i, a_i) - y_i) / denominator, over the unmasked i. f(e) = ½e²; with
    `huber_delta` δ, f(e) = δ(|e| - ½δ) where |e| > δ: the slope is e, bounded to ±δ.
    The targets y and the weights w are held constant.

    Args:
        q_values: Q(s, ·) [*S, A], float.
        actions: a [*S], integers in 0 ... A-1.
        targets: y [*S], float.
        mask: [*S], bool or 0/1; None keeps everything.
        huber_delta: δ > 0 in the unit of Q; None is the squared error.
        weights: w [*S], float: the importance weights of prioritised replay; None is 1.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics `loss/critic` (the same number), `q/mean` (of Q of the actions taken),
        `q/target_mean` (of y) and `q/abs_error` (mean |Q - y|), the last three without weights.

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> q_values, actions = jnp.array([[1.0, 9.0], [9.0, 2.0]]), jnp.array([0, 1])
        >>> dqn_loss(q_values, actions, jnp.array([4.0, 2.0]))[0].item()
        2.25
        >>> dqn_loss(q_values, actions, jnp.array([4.0, 2.0]), huber_delta=1.0)[0].item()
        1.25

    Source: Mnih et al. (2015), whose clipped error is f's slope with δ = 1; Huber (1964), Robust
    Estimation of a Location Parameter. Weights: Schaul et al. (2016), Prioritized Experience
    Replay, section 3.4.
    """
    check_more_axes(1, q_values=q_values, actions=actions)
    check_same_shape(actions=actions, targets=targets, mask=mask, weights=weights)
    index = jnp.asarray(actions)[..., None]
    q = keep(jnp.take_along_axis(jnp.asarray(q_values, jnp.float32), index, axis=-1)[..., 0], mask)
    targets = jax.lax.stop_gradient(keep(targets, mask))
    error = q - targets
    bounded = error
    if huber_delta is not None:
        bound = jnp.asarray(huber_delta, jnp.float32)
        bounded = jnp.clip(error, -bound, bound)
    # Both pieces of f at once; where the bound moves with the error, the rest has slope 0.
    element = bounded * (error - 0.5 * bounded)
    if weights is not None:
        element = jax.lax.stop_gradient(keep(weights, mask)) * element
    loss = masked_mean(element, mask, denominator=denominator)
    return loss, {
        "loss/critic": loss,
        "q/mean": masked_mean(q, mask, denominator=denominator),
        "q/target_mean": masked_mean(targets, mask, denominator=denominator),
        "q/abs_error": masked_mean(jnp.abs(error), mask, denominator=denominator),
    }
