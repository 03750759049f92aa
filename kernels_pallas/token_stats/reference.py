"""The statistics of given logits in plain jnp: the definition."""

import jax.numpy as jnp
from jax import Array, lax

from kernels_pallas.records import TokenStats


def stats_of_logits(
    logits: Array, tokens: Array, entropy: bool = True, vocab_axis: str | None = None
) -> TokenStats:
    """logits [N, V] float32 (or this device's columns of them), tokens int [N].

    A token outside the vocabulary or with a logit of -inf has log-probability -inf. A row of
    nothing but -inf has log-probability and logsumexp -inf and entropy 0.
    """

    def total_of(x: Array) -> Array:
        x = jnp.sum(x, axis=1)
        return x if vocab_axis is None else lax.psum(x, vocab_axis)

    num_tokens, first = logits.shape[1], 0
    peak = lax.stop_gradient(jnp.max(logits, axis=1))
    if vocab_axis is not None:
        first = lax.axis_index(vocab_axis) * num_tokens
        peak = lax.pmax(peak, vocab_axis)
    peak = jnp.where(peak == -jnp.inf, 0.0, peak)

    live = logits != -jnp.inf
    shifted = jnp.where(live, logits - peak[:, None], 0.0)
    weights = jnp.where(live, jnp.exp(shifted), 0.0)
    total = total_of(weights)
    dead = total == 0
    total = jnp.where(dead, 1.0, total)
    log_sum = jnp.log(total)

    is_token = jnp.arange(num_tokens)[None, :] + first == tokens[:, None]
    possible = total_of(jnp.where(is_token & live, 1.0, 0.0)) > 0
    chosen = total_of(jnp.where(is_token & live, shifted, 0.0))
    return TokenStats(
        jnp.where(possible, chosen - log_sum, -jnp.inf),
        jnp.where(dead, 0.0, log_sum - total_of(weights * shifted) / total) if entropy else None,
        jnp.where(dead, -jnp.inf, peak + log_sum),
    )
