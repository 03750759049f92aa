"""KL(p‖q) of given logits in plain jnp: the definition."""

import jax.numpy as jnp
from jax import Array, lax


def _log_softmax(logits: Array) -> tuple[Array, Array]:
    """log softmax(logits), 0 where the logit is -inf, and where it is not."""
    live = logits != -jnp.inf
    peak = lax.stop_gradient(jnp.max(logits, axis=1, keepdims=True))
    shifted = jnp.where(live, logits - jnp.where(peak == -jnp.inf, 0.0, peak), 0.0)
    total = jnp.sum(jnp.where(live, jnp.exp(shifted), 0.0), axis=1, keepdims=True)
    return jnp.where(live, shifted - jnp.log(jnp.where(total == 0, 1.0, total)), 0.0), live


def divergence(logits_p: Array, logits_q: Array) -> Array:
    """[N] float32 of logits [N, V] float32: Σ_v p_v (log p_v - log q_v), nothing where p_v = 0.

    +inf, with gradient 0, where a token is possible under p and not under q; 0 if none is under p.
    """
    log_p, live_p = _log_softmax(logits_p)
    log_q, live_q = _log_softmax(logits_q)
    p = jnp.where(live_p, jnp.exp(log_p), 0.0)
    terms = jnp.where(live_p, p * (log_p - log_q), 0.0)
    return jnp.where(jnp.any(live_p & ~live_q, axis=1), jnp.inf, jnp.sum(terms, axis=1))
