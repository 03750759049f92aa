"""A softmax over blocks of the vocabulary, one after the other, and its gradient.

With s = Σ exp(z - peak) and t = Σ exp(z - peak) (z - peak), a peak that rises by d turns them into
s exp(-d) and (t - d s) exp(-d). At the end logsumexp = peak + log s and entropy = log s - t / s.

Source of the running maximum: Milakov and Gimelshein (2018), "Online normalizer calculation for
softmax", algorithm 3. The entropy beside it is ours.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from kernels_pallas.records import NEVER, ShardStats


class Running(NamedTuple):
    """Of rows [N], float32, over the blocks so far."""

    peak: Array  # -inf as long as there was no other logit
    total: Array  # s
    moment: Array | None  # t
    chosen: Array


def begin(num_rows: int, entropy: bool) -> Running:
    zeros = jnp.zeros(num_rows, jnp.float32)
    return Running(
        jnp.full(num_rows, -jnp.inf, jnp.float32), zeros, zeros if entropy else None, zeros
    )


def update(state: Running, logits: Array, tokens: Array) -> Running:
    """One more block of logits [N, size]; tokens [N] count from its first column."""
    peak = jnp.maximum(state.peak, jnp.max(logits, axis=1))
    at = jnp.where(peak == -jnp.inf, 0.0, peak)
    shifted = jnp.maximum(logits - at[:, None], NEVER)
    weights = jnp.exp(shifted)
    change = jnp.maximum(state.peak - at, NEVER)
    shrink = jnp.exp(change)
    total = state.total * shrink + jnp.sum(weights, axis=1)
    moment = state.moment
    if moment is not None:
        moment = (moment + change * state.total) * shrink + jnp.sum(weights * shifted, axis=1)
    here = (tokens >= 0) & (tokens < logits.shape[1])
    place = jnp.where(here, tokens, 0)[:, None]
    chosen = jnp.take_along_axis(logits, place, axis=1)[:, 0]
    return Running(peak, total, moment, jnp.where(here, chosen, state.chosen))


def finish(state: Running) -> ShardStats:
    dead = state.total == 0  # nothing but -inf
    total = jnp.where(dead, 1.0, state.total)
    log_sum = jnp.log(total)
    entropy = None if state.moment is None else log_sum - state.moment / total
    return ShardStats(
        jnp.where(dead, 0.0, state.peak),
        jnp.where(dead, -jnp.inf, log_sum),
        state.chosen,
        entropy,
    )


def d_logits(
    logits: Array,
    tokens: Array,
    peak: Array,
    log_sum: Array,
    a: Array,
    b: Array | None,
    c: Array,
) -> Array:
    """p (a + b log p) + 1[v = token] c for a block of logits [N, size]; tokens as in `update`."""
    log_p = jnp.maximum((logits - peak[:, None]) - log_sum[:, None], NEVER)
    slope = a[:, None] if b is None else a[:, None] + b[:, None] * log_p
    places = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :]
    return jnp.exp(log_p) * slope + jnp.where(places == tokens[:, None], c[:, None], 0.0)
