"""Categorical distributions over actions 0 ... A-1, given by logits.

A logit of -inf marks an action that cannot be taken: probability 0, and no gradient. Values and
gradients stay exact beside it. A row without any live action, as padding may have, gets
log-probability -inf, entropy 0 and divergence 0, all with gradient 0.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Integer, Real, Shaped

from rljax.ops.checks import check_same_shape, check_shape
from rljax.types import Key


def _log_softmax(
    logits: Real[ArrayLike, "*S A"],
) -> tuple[Float[Array, "*S A"], Bool[Array, "*S A"]]:
    """log softmax(logits), 0 where an action is not live, and which actions are live."""
    logits = jnp.asarray(logits, jnp.float32)
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    shifted = logits - jnp.where(top == -jnp.inf, 0.0, top)
    live = shifted != -jnp.inf  # a NaN counts as live, so that it shows in the result
    total = jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True)  # exp and its slope are 0 at -inf
    log_probs = shifted - jnp.log(jnp.where(total == 0, 1.0, total))
    return jnp.where(live, log_probs, 0.0), live


def mask_logits(
    logits: Real[ArrayLike, "*S A"], action_mask: Shaped[ArrayLike, "*S A"]
) -> Float[Array, "*S A"]:
    """Logits of the distribution over the allowed actions only.

    z_a if action_mask_a else -inf; the log-probabilities are renormalised over what is left.
    Mask in the same way for acting and for training, or the log-probabilities will not agree.

    Args:
        logits: z [*S, A], any real dtype; may be anything where masked, and gets no gradient there.
        action_mask: [*S, A], bool or 0/1; 0 forbids the action.

    Returns:
        [*S, A] float32.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> mask_logits(jnp.array([2.0, -1.0, 0.5]), jnp.array([1, 0, 1])).tolist()
        [2.0, -inf, 0.5]
    """
    check_same_shape(logits=logits, action_mask=action_mask)
    return jnp.where(jnp.asarray(action_mask) != 0, jnp.asarray(logits, jnp.float32), -jnp.inf)


def categorical_log_prob(
    logits: Real[ArrayLike, "*S A"], actions: Integer[ArrayLike, "*S"]
) -> Float[Array, "*S"]:
    """Log-probability of each action, log softmax(z)_a = z_a - log Σ_b exp(z_b).

    Args:
        logits: z [*S, A], any real dtype, may be -inf.
        actions: a [*S], integers in 0 ... A-1.

    Returns:
        [*S] float32; -inf, with gradient 0, for an action whose logit is -inf.

    Raises:
        ValueError: if actions is not of the shape of logits without the last axis.

    Example:
        >>> categorical_log_prob(jnp.array([[0.0, -jnp.inf]] * 2), jnp.array([0, 1])).tolist()
        [0.0, -inf]
    """
    check_shape("actions", actions, jnp.shape(logits)[:-1])
    log_probs, live = _log_softmax(logits)
    log_probs = jnp.where(live, log_probs, -jnp.inf)
    return jnp.take_along_axis(log_probs, jnp.asarray(actions)[..., None], axis=-1)[..., 0]


def categorical_entropy(logits: Real[ArrayLike, "*S A"]) -> Float[Array, "*S"]:
    """Entropy in nats, H = -Σ_a p_a log p_a with p = softmax(z) and 0 log 0 = 0.

    Args:
        logits: z [*S, A], any real dtype, may be -inf.

    Returns:
        [*S] float32, between 0 and log A.

    Example:
        >>> round(categorical_entropy(jnp.array([1.0, 1.0, -jnp.inf])).item(), 4)  # log 2
        0.6931
    """
    log_probs, live = _log_softmax(logits)
    return -jnp.sum(jnp.where(live, jnp.exp(log_probs) * log_probs, 0.0), axis=-1)


def categorical_expectation(
    logits: Real[ArrayLike, "*S A"], values: Real[ArrayLike, "*S A"]
) -> Float[Array, "*S"]:
    """The mean of a function of the action, E[x] = Σ_a p_a x_a with p = softmax(z).

    Args:
        logits: z [*S, A], any real dtype, may be -inf.
        values: x [*S, A], any real dtype; may be anything where the logit is -inf.

    Returns:
        [*S] float32; 0 for a row without any live action.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> logits = jnp.array([1.0, 1.0, -jnp.inf])
        >>> round(categorical_expectation(logits, jnp.array([2.0, 4.0, 9.0])).item(), 4)
        3.0
    """
    check_same_shape(logits=logits, values=values)
    log_probs, live = _log_softmax(logits)
    values = jnp.where(live, jnp.asarray(values, jnp.float32), 0.0)
    return jnp.sum(jnp.exp(log_probs) * values, axis=-1)


def categorical_kl(
    logits_p: Real[ArrayLike, "*S A"], logits_q: Real[ArrayLike, "*S A"]
) -> Float[Array, "*S"]:
    """KL(p‖q) = Σ_a p_a (log p_a - log q_a) in nats, over all actions.

    Both sides get gradients: hold the old policy fixed with `stop_gradient`.

    Args:
        logits_p: [*S, A], any real dtype, may be -inf: such actions add nothing.
        logits_q: [*S, A], likewise.

    Returns:
        [*S] float32; +inf, with gradient 0, where p_a > 0 and q_a = 0 for some action.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> p, q = jnp.array([0.0, -jnp.inf]), jnp.array([0.0, 0.0])
        >>> round(categorical_kl(p, q).item(), 4), categorical_kl(q, p).item()
        (0.6931, inf)
    """
    check_same_shape(logits_p=logits_p, logits_q=logits_q)
    log_p, live_p = _log_softmax(logits_p)
    log_q, live_q = _log_softmax(logits_q)
    p = jnp.where(live_p, jnp.exp(log_p), 0.0)
    impossible = jnp.any((p > 0) & ~live_q, axis=-1)
    return jnp.where(impossible, jnp.inf, jnp.sum(p * (log_p - log_q), axis=-1))


def categorical_sample(key: Key, logits: Real[ArrayLike, "*S A"]) -> Int[Array, "*S"]:
    """One action for each row, a ~ softmax(z).

    Args:
        key: consumed.
        logits: z [*S, A], any real dtype; an action whose logit is -inf is never drawn.

    Returns:
        [*S] int32 in 0 ... A-1; 0 for a row without any live action.

    Example:
        >>> categorical_sample(jax.random.key(0), jnp.array([[-jnp.inf, 5.0, -jnp.inf]])).tolist()
        [1]
    """
    return gumbel_max(jax.random.gumbel(key, jnp.shape(logits)), logits)


def gumbel_max(
    noise: Float[ArrayLike, "*S A"], logits: Real[ArrayLike, "*S A"]
) -> Int[Array, "*S"]:
    """argmax(z + g): a sample of softmax(z) if g is standard Gumbel noise.

    Args:
        noise: g [*S, A], from `jax.random.gumbel`.
        logits: z [*S, A], any real dtype; an action whose logit is -inf is never chosen.

    Returns:
        [*S] int32 in 0 ... A-1; 0 for a row without any live action.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> gumbel_max(jnp.array([0.5, 0.1]), jnp.array([0.0, 1.0])).item()
        1

    Source: Gumbel (1954), Statistical Theory of Extreme Values and Some Practical Applications.
    """
    check_same_shape(noise=noise, logits=logits)
    return jnp.argmax(jnp.asarray(logits, jnp.float32) + noise, axis=-1).astype(jnp.int32)
