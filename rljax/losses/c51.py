"""Categorical distributional Q-learning: the return is a distribution over fixed atoms."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Float, Integer, Real, Shaped

from rljax.ops.bellman import bootstrap_discounts
from rljax.ops.categorical import categorical_expectation
from rljax.ops.checks import Scalar, as_float32, check_more_axes, check_same_shape, check_shape
from rljax.ops.masked import keep, masked_mean
from rljax.types import Metrics


def _atoms(support: ArrayLike, logits: ArrayLike) -> Array:
    """The support in float32, if it can be one for the last axis of `logits`."""
    check_shape("support", support, jnp.shape(logits)[-1:])
    if not isinstance(support, Tracer):
        values = np.asarray(support, np.float32)
        if len(values) < 2 or not (np.isfinite(values).all() and (np.diff(values) > 0).all()):
            raise ValueError(
                f"support must be at least 2 finite, rising numbers, got {values.tolist()}"
            )
    return jnp.asarray(support, jnp.float32)


def _of_action(logits: ArrayLike, actions: ArrayLike) -> Array:
    """[*S, A, N], [*S] -> float32 [*S, N]."""
    index = jnp.asarray(actions)[..., None, None]
    return jnp.take_along_axis(jnp.asarray(logits, jnp.float32), index, axis=-2)[..., 0, :]


def c51_q_values(
    support: Real[ArrayLike, "N"], logits: Real[ArrayLike, "*S A N"]
) -> Float[Array, "*S A"]:
    """The mean return of each action, Q(s, a) = Σ_i z_i p_i(s, a).

    Args:
        support: the atoms z [N].
        logits: of p(s, a) [*S, A, N], any real dtype.

    Returns:
        [*S, A] float32.

    Raises:
        ValueError: if the last axis of logits is not that of support.

    Example:
        >>> c51_q_values(jnp.array([0.0, 8.0]), jnp.array([[1.0, 1.0], [-99.0, 99.0]])).tolist()
        [4.0, 8.0]
    """
    support = _atoms(support, logits)
    return categorical_expectation(logits, jnp.broadcast_to(support, jnp.shape(logits)))


def c51_project(
    support: Real[ArrayLike, "N"],
    probs: Real[ArrayLike, "*S N"],
    rewards: Real[ArrayLike, "*S"],
    terminated: Shaped[ArrayLike, "*S"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
) -> Float[Array, "*S N"]:
    """The distribution of r + γ Z, put back on the atoms of Z, held constant.

    Atom j moves to t_j = r + γ (1 - terminated) z_j, bounded to [z_1, z_N]; its mass is split
    between the two atoms around t_j so that the mean stays where it is:
    m_i = Σ_j p_j max(0, min((t_j - z_{i-1}) / (z_i - z_{i-1}), (z_{i+1} - t_j) / (z_{i+1} - z_i))).
    A t_j on an atom gives it everything: nothing is rounded to a bin, so none can be missed.
    `probs` are not read where terminated.

    Args:
        support: the atoms z [N], finite, rising, N >= 2; they need not be equally far apart.
        probs: p [*S, N], the distribution of the return from the next observation on.
        rewards: r [*S].
        terminated: [*S], bool or 0/1; not set by truncation.
        discount: γ in [0, 1], a scalar or of the trailing shape (`n_step` gives one [*S]).

    Returns:
        m [*S, N] float32, with the sum of p (1 where terminated).

    Raises:
        ValueError: if the shapes differ, or support does not rise (known only outside jit).

    Example:
        >>> support, probs = jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.0, 0.0, 1.0]])
        >>> c51_project(support, probs, jnp.array([0.5]), jnp.zeros(1), discount=0.5).tolist()
        [[0.0, 0.5, 0.5]]

    Source: Bellemare, Dabney and Munos (2017), A Distributional Perspective on Reinforcement
    Learning, equation 7.
    """
    check_same_shape(rewards=rewards, terminated=terminated)
    check_more_axes(1, probs=probs, rewards=rewards)
    z = _atoms(support, probs)
    rewards, probs = as_float32(rewards, probs)
    discount = bootstrap_discounts(terminated, discount)[..., None]
    # Without a future all atoms move to the reward: which of them has the mass does not matter.
    first = (jnp.arange(z.shape[0]) == 0).astype(jnp.float32)
    probs = jnp.where(discount == 0, jnp.broadcast_to(first, probs.shape), probs)
    moved = rewards[..., None] + discount * jnp.broadcast_to(z, probs.shape)
    moved = jnp.clip(moved, z[0], z[-1])

    # [*S, i, j]: how far t_j is from the neighbours of atom i. The outer two lack one: nothing can
    # come from there, for t_j is bounded.
    gaps, end, one = jnp.diff(z), jnp.full(1, jnp.inf), jnp.ones(1)
    left, left_gap = jnp.concatenate([-end, z[:-1]]), jnp.concatenate([one, gaps])
    right, right_gap = jnp.concatenate([z[1:], end]), jnp.concatenate([gaps, one])
    column = (1,) * (probs.ndim - 1) + (z.shape[0], 1)
    moved = jnp.expand_dims(moved, -2)
    rising = (moved - left.reshape(column)) / left_gap.reshape(column)
    falling = (right.reshape(column) - moved) / right_gap.reshape(column)
    share = jnp.maximum(jnp.minimum(rising, falling), 0.0)
    projected = jnp.sum(share * jnp.expand_dims(probs, -2), axis=-1)
    return jax.lax.stop_gradient(projected)


def c51_targets(
    support: Real[ArrayLike, "N"],
    rewards: Real[ArrayLike, "*S"],
    terminated: Shaped[ArrayLike, "*S"],
    next_logits: Real[ArrayLike, "*S A N"],
    *,
    discount: Scalar | Real[ArrayLike, "..."],
    next_logits_online: Real[ArrayLike, "*S A N"] | None = None,
) -> Float[Array, "*S N"]:
    """The distribution that the action taken should have: `c51_project` of the best next action's.

    The best action has the largest mean by the target network, or, where `next_logits_online` is
    given, by the trained one, as in double Q-learning. Held constant.

    Args:
        support: the atoms z [N].
        rewards: r [*S].
        terminated: [*S], bool or 0/1; not set by truncation.
        next_logits: [*S, A, N] from the target network, of the observation before any reset.
        discount: γ in [0, 1], a scalar or of the trailing shape.
        next_logits_online: [*S, A, N] from the trained network.

    Returns:
        [*S, N] float32.

    Raises:
        ValueError: if the shapes differ, or support does not rise (known only outside jit).

    Example:
        >>> support, next_logits = jnp.array([0.0, 1.0]), jnp.array([[[9.0, -9.0], [-99.0, 99.0]]])
        >>> c51_targets(support, jnp.zeros(1), jnp.zeros(1), next_logits, discount=0.5).tolist()
        [[0.5, 0.5]]

    Source: Bellemare, Dabney and Munos (2017), algorithm 1.
    """
    check_same_shape(rewards=rewards, terminated=terminated)
    check_more_axes(2, next_logits=next_logits, rewards=rewards)
    check_same_shape(next_logits=next_logits, next_logits_online=next_logits_online)
    picker = next_logits if next_logits_online is None else next_logits_online
    best = jnp.argmax(c51_q_values(support, picker), axis=-1)
    probs = jax.nn.softmax(_of_action(next_logits, best), axis=-1)
    return c51_project(support, probs, rewards, terminated, discount=discount)


def c51_loss(
    logits: Real[ArrayLike, "*S A N"],
    actions: Integer[ArrayLike, "*S"],
    target_probs: Real[ArrayLike, "*S N"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    weights: Real[ArrayLike, "*S"] | None = None,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Cross-entropy of the distribution of the action taken under its target.

    loss = -Σ_i w_i Σ_k m_ik log p_k(s_i, a_i) / denominator, over the unmasked i, 0 log 0 = 0. The
    target m and the weights w are held constant.

    Args:
        logits: of p(s, ·) [*S, A, N], float.
        actions: a [*S], integers in 0 ... A-1.
        target_probs: m [*S, N], from `c51_targets`.
        mask: [*S], bool or 0/1; None keeps everything.
        weights: w [*S], float: the importance weights of prioritised replay; None is 1.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics `loss/critic` (the same number) and `q/kl` (mean of KL(m‖p), without
        weights: what is left of the loss is the entropy of the targets, which no critic can lower).

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> logits, target = jnp.zeros((1, 3, 2)), jnp.array([[0.0, 1.0]])
        >>> round(c51_loss(logits, jnp.array([2]), target)[0].item(), 4)  # log 2
        0.6931

    Source: Bellemare, Dabney and Munos (2017), algorithm 1.
    """
    check_more_axes(2, logits=logits, actions=actions)
    check_more_axes(1, target_probs=target_probs, actions=actions)
    check_same_shape(actions=actions, mask=mask, weights=weights)
    check_shape("target_probs", target_probs, jnp.shape(actions) + jnp.shape(logits)[-1:])
    kept = None
    if mask is not None:
        kept = jnp.broadcast_to((jnp.asarray(mask) != 0)[..., None], jnp.shape(target_probs))
    target = jax.lax.stop_gradient(keep(target_probs, kept))
    log_probs = jax.nn.log_softmax(keep(_of_action(logits, actions), kept), axis=-1)
    some = target != 0
    cross_entropy = -jnp.sum(target * jnp.where(some, log_probs, 0.0), axis=-1)
    entropy = -jnp.sum(target * jnp.log(jnp.where(some, target, 1.0)), axis=-1)
    element = cross_entropy
    if weights is not None:
        element = jax.lax.stop_gradient(keep(weights, mask)) * cross_entropy
    loss = masked_mean(element, mask, denominator=denominator)
    kl = masked_mean(cross_entropy - entropy, mask, denominator=denominator)
    return loss, {"loss/critic": loss, "q/kl": kl}
