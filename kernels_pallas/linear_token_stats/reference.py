"""The statistics in plain jnp: what they mean, not how to compute them fast.

It materialises the logits [N, V] in float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class TokenStats(NamedTuple):
    """Of each row's distribution over the vocabulary; all float32 [N]."""

    log_probs: Array  # of the row's token
    entropy: Array | None  # None if it was not asked for
    logsumexp: Array  # of the logits after softcap and temperature


def reference(
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    mask: Array | None,
    bias: Array | None,
    temperature: Array,
    softcap: float | None,
    entropy: bool,
) -> TokenStats:
    """hidden [N, D], unembedding [D, V], tokens int [N], mask bool [N], bias [V]."""
    hidden, unembedding = hidden.astype(jnp.float32), unembedding.astype(jnp.float32)
    if mask is not None:
        # Before the product: 0 · NaN would carry a masked row into the unembedding's gradient.
        hidden = jnp.where(mask[:, None], hidden, 0.0)
        tokens = jnp.where(mask, tokens, 0)
    logits = jnp.dot(hidden, unembedding, precision=jax.lax.Precision.HIGHEST)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)[None, :]
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    logits = logits / temperature

    logsumexp = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    fields = [chosen - logsumexp, logsumexp]
    if entropy:
        probs = jax.nn.softmax(logits, axis=-1)
        finite = jnp.where(logits == -jnp.inf, 0.0, logits)  # 0 · log 0 = 0
        fields.append(logsumexp - jnp.sum(probs * finite, axis=-1))
    if mask is not None:
        fields = [jnp.where(mask, field, 0.0) for field in fields]
    return TokenStats(fields[0], fields[2] if entropy else None, fields[1])
