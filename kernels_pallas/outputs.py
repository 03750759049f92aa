"""From what a forward pass gives to the statistics, and from their gradients to those of logits."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels_pallas.records import NEVER, ShardStats, TokenStats


def combine(stats: ShardStats, axis: str) -> ShardStats:
    """The statistics of the whole vocabulary, from those of its shards along a mesh axis.

    With l_k = peak_k - peak + log_sum_k: log_sum = log Σ_k exp l_k, and with w_k = exp(l_k -
    log_sum) entropy = log_sum + Σ_k w_k (entropy_k - l_k). Two all-reduces, a maximum and a sum.
    """
    dead = stats.log_sum == -jnp.inf
    peak = lax.pmax(jnp.where(dead, -jnp.inf, stats.peak), axis)
    peak = jnp.where(peak == -jnp.inf, 0.0, peak)
    part = jnp.where(dead, NEVER, stats.peak - peak + stats.log_sum)
    weight = jnp.where(dead, 0.0, jnp.exp(part))
    terms = [weight, stats.chosen]
    if stats.entropy is not None:
        terms.append(weight * (stats.entropy - part))
    total, chosen, *moment = lax.psum(jnp.stack(terms), axis)
    alive = jnp.where(total == 0, 1.0, total)
    log_sum = jnp.log(alive)
    return ShardStats(
        peak,
        jnp.where(total == 0, -jnp.inf, log_sum),
        chosen,
        log_sum + moment[0] / alive if moment else None,
    )


def token_stats_of(stats: ShardStats, inside: Array, mask: Array | None) -> TokenStats:
    """The statistics as users see them; `inside` says which tokens are in the vocabulary."""
    dead = stats.log_sum == -jnp.inf
    log_probs = (stats.chosen - stats.peak) - jnp.where(dead, 0.0, stats.log_sum)
    log_probs = jnp.where(dead | ~inside, -jnp.inf, log_probs)
    entropy = None if stats.entropy is None else jnp.where(dead, 0.0, stats.entropy)
    fields = TokenStats(log_probs, entropy, stats.peak + stats.log_sum)
    if mask is None:
        return fields
    return jax.tree.map(lambda x: jnp.where(mask, x, 0.0), fields)


def coefficients(
    stats: TokenStats, gradients: TokenStats, mask: Array | None
) -> tuple[Array, Array | None, Array]:
    """a, b, c [N] of dz_v = p_v (a + b log p_v) + 1[v = token] c, given the statistics' gradients.

    d log p_y = 1[v = y] - p_v, d logsumexp = p_v, d entropy = -p_v (log p_v + entropy). Rows
    that are masked or have nothing but -inf get 0, and log-probabilities of -inf pass nothing on.
    """
    alive = stats.logsumexp != -jnp.inf
    alive = alive if mask is None else alive & mask
    c = jnp.where(alive & (stats.log_probs != -jnp.inf), gradients.log_probs, 0.0)
    a, b = gradients.logsumexp - c, None
    if stats.entropy is not None and gradients.entropy is not None:
        a -= gradients.entropy * stats.entropy
        b = jnp.where(alive, -gradients.entropy, 0.0)
    return jnp.where(alive, a, 0.0), b, c
