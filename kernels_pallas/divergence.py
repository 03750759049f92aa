"""KL(p‖q) over blocks of the vocabulary, one after the other, and its gradients.

With s_p, s_q the sums of exp(z - peak) of both sides and t = Σ exp(z_p - peak_p) ((z_p - peak_p) -
(z_q - peak_q)), KL = t / s_p + log(s_q / s_p). Where the peaks rise by d_p and d_q, s_p exp(-d_p)
and (t - (d_p - d_q) s_p) exp(-d_p) take their places. One logarithm, not the difference of two: it
is as small as KL where p is about q.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from kernels_pallas.records import NEVER, KLStats


class RunningKL(NamedTuple):
    """Of rows [N], float32, over the blocks so far."""

    peak_p: Array  # -inf as long as there was no other logit
    total_p: Array
    peak_q: Array
    total_q: Array
    moment: Array  # t
    impossible: Array  # bool: some token that p may give and q may not


def begin_kl(num_rows: int) -> RunningKL:
    zeros, none = jnp.zeros(num_rows, jnp.float32), jnp.full(num_rows, -jnp.inf, jnp.float32)
    return RunningKL(none, zeros, none, zeros, zeros, jnp.zeros(num_rows, bool))


def _rise(peak: Array, logits: Array) -> tuple[Array, Array, Array]:
    """The new peak, a finite number in its place, and old - new (0 if there was no old one)."""
    new = jnp.maximum(peak, jnp.max(logits, axis=1))
    at = jnp.where(new == -jnp.inf, 0.0, new)
    return new, at, jnp.where(peak == -jnp.inf, 0.0, peak - at)


def update_kl(state: RunningKL, logits_p: Array, logits_q: Array) -> RunningKL:
    """One more block of logits [N, size] of both sides."""
    peak_p, at_p, change_p = _rise(state.peak_p, logits_p)
    peak_q, at_q, change_q = _rise(state.peak_q, logits_q)
    live_p, live_q = logits_p != -jnp.inf, logits_q != -jnp.inf
    shifted_p = jnp.maximum(logits_p - at_p[:, None], NEVER)
    shifted_q = logits_q - at_q[:, None]
    weights_p = jnp.exp(shifted_p)
    difference = jnp.where(live_p & live_q, shifted_p - shifted_q, 0.0)
    shrink = jnp.exp(change_p)
    # A q without a logit so far has no peak to have moved from: t counts nothing of it yet.
    moment = (state.moment + (change_p - change_q) * state.total_p) * shrink
    return RunningKL(
        peak_p,
        state.total_p * shrink + jnp.sum(weights_p, axis=1),
        peak_q,
        state.total_q * jnp.exp(change_q) + jnp.sum(jnp.exp(shifted_q), axis=1),
        moment + jnp.sum(weights_p * difference, axis=1),
        state.impossible | jnp.any(live_p & ~live_q, axis=1),
    )


def finish_kl(state: RunningKL) -> KLStats:
    dead_p, dead_q = state.total_p == 0, state.total_q == 0
    total_p = jnp.where(dead_p, 1.0, state.total_p)
    total_q = jnp.where(dead_q, 1.0, state.total_q)
    kl = state.moment / total_p + jnp.log(total_q / total_p)
    kl = jnp.where(state.impossible, jnp.inf, jnp.where(dead_p, 0.0, kl))
    return KLStats(
        jnp.where(dead_p, 0.0, state.peak_p),
        jnp.where(dead_p, -jnp.inf, jnp.log(total_p)),
        jnp.where(dead_q, 0.0, state.peak_q),
        jnp.where(dead_q, -jnp.inf, jnp.log(total_q)),
        kl,
    )


def d_divergence(logits_p: Array, logits_q: Array, stats: KLStats, g: Array) -> tuple[Array, Array]:
    """g p (log p - log q - KL) and g (q - p) for a block of logits [N, size]."""

    log_p = jnp.maximum((logits_p - stats.peak_p[:, None]) - stats.log_sum_p[:, None], NEVER)
    # Where p > 0, log q may be any number below 0; only -inf, where p is 0, must go.
    log_q = jnp.maximum((logits_q - stats.peak_q[:, None]) - stats.log_sum_q[:, None], -1e38)
    p, q = jnp.exp(log_p), jnp.exp(log_q)
    return g[:, None] * p * (log_p - log_q - stats.kl[:, None]), g[:, None] * (q - p)


def finite(stats: KLStats, g: Array) -> tuple[KLStats, Array]:
    """For the gradient, which is 0 in rows whose divergence is infinite, or without p or q.

    Peaks far above any logit make p and q 0 there, whatever the logits.
    """
    alive = (stats.log_sum_p != -jnp.inf) & (stats.log_sum_q != -jnp.inf) & (stats.kl != jnp.inf)
    instead = (1e38, 0.0, 1e38, 0.0, 0.0)
    kept = (jnp.where(alive, x, y) for x, y in zip(stats, instead))
    return KLStats(*kept), jnp.where(alive, g, 0.0)
