"""The statistics in plain jnp: what they mean, not how to compute them fast.

It materialises the logits [N, V] in float32, and JAX differentiates it as it stands, any number of
times and in both modes.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels_pallas.records import Static, TokenStats
from kernels_pallas.token_stats.reference import stats_of_logits


def reference(
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    mask: Array | None,
    bias: Array | None,
    inverse_temperature: Array,
    static: Static,
    vocab_axis: str | None,
) -> TokenStats:
    """hidden [N, D], unembedding [D, V] or [V, D], tokens int [N], mask bool [N], bias [V]."""
    if static.transposed:
        unembedding = unembedding.T
    hidden, unembedding = hidden.astype(jnp.float32), unembedding.astype(jnp.float32)
    if mask is not None:
        # Before the product: 0 · NaN would carry a masked row into the unembedding's gradient.
        hidden = jnp.where(mask[:, None], hidden, 0.0)
        tokens = jnp.where(mask, tokens, 0)
    logits = jnp.dot(hidden, unembedding, precision=lax.Precision.HIGHEST)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)[None, :]
    if static.softcap is not None:
        logits = static.softcap * jnp.tanh(logits / static.softcap)
    logits = logits * lax.stop_gradient(inverse_temperature)
    stats = stats_of_logits(logits, tokens, static.entropy, vocab_axis)
    if mask is None:
        return stats
    return jax.tree.map(lambda x: jnp.where(mask, x, 0.0), stats)
