"""The online divergence of a block of rows, and putting parts of the vocabulary together."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from kernels_pallas.gpu.triton import column, exp, finite
from kernels_pallas.records import KLStats


class RunningKL(NamedTuple):
    """Of the logits seen so far, [rows] (or [parts, rows] afterwards)."""

    peak_p: Array
    total_p: Array  # Σ exp(z_p - peak_p)
    peak_q: Array
    total_q: Array
    apart: Array  # Σ exp(z_p - peak_p) ((z_p - peak_p) - (z_q - peak_q))

    @classmethod
    def empty(cls, rows: int) -> "RunningKL":
        zeros, low = jnp.zeros(rows, jnp.float32), jnp.full(rows, -jnp.inf, jnp.float32)
        return cls(low, zeros, low, zeros, zeros)

    def add(self, z_p: Array, z_q: Array, across: Callable[..., Array] = column) -> "RunningKL":
        """One more tile of both logits, [rows, columns]; `across` as in `softmax`."""
        peak_p, peak_q = (
            jnp.maximum(peak, jnp.max(z, axis=1))
            for peak, z in ((self.peak_p, z_p), (self.peak_q, z_q))
        )
        shift_p, shift_q = finite(peak_p), finite(peak_q)
        step_p, step_q = finite(self.peak_p - shift_p), finite(self.peak_q - shift_q)
        below_p, below_q = z_p - across(shift_p), z_q - across(shift_q)
        p = exp(below_p)
        terms = jnp.where(z_q == -jnp.inf, jnp.inf, p * (below_p - below_q))
        added = jnp.sum(jnp.where(z_p == -jnp.inf, 0.0, terms), axis=1)
        shrink = exp(step_p)
        return RunningKL(
            peak_p,
            shrink * self.total_p + jnp.sum(p, axis=1),
            peak_q,
            exp(step_q) * self.total_q + jnp.sum(exp(below_q), axis=1),
            _move(self.apart, self.total_p, shrink, step_p - step_q) + added,
        )


def _move(apart: Array, total: Array, shrink: Array, step: Array) -> Array:
    """`apart` with its peaks moved; +inf (p > 0 = q) stays, however small p is now."""
    return jnp.where(apart == jnp.inf, jnp.inf, shrink * (apart + total * step))


def combine_kl(parts: RunningKL) -> KLStats:
    """The divergence from parts of the vocabulary, [parts, rows]."""
    peak_p, peak_q = finite(jnp.max(parts.peak_p, axis=0)), finite(jnp.max(parts.peak_q, axis=0))
    step_p, step_q = finite(parts.peak_p - peak_p[None, :]), finite(parts.peak_q - peak_q[None, :])
    weight = jnp.exp(step_p)
    total_p = jnp.sum(weight * parts.total_p, axis=0)
    total_q = jnp.sum(jnp.exp(step_q) * parts.total_q, axis=0)
    apart = jnp.sum(_move(parts.apart, parts.total_p, weight, step_p - step_q), axis=0)
    some_p, some_q = jnp.where(total_p > 0, total_p, 1.0), jnp.where(total_q > 0, total_q, 1.0)
    kl = apart / some_p + jnp.log(some_q / some_p)  # one logarithm: as small as KL where p is q
    kl = jnp.where(total_p > 0, kl, 0.0)
    return KLStats(peak_p, jnp.log(total_p), peak_q, jnp.log(total_q), kl)


def kl_gradients(
    z_p: Array, z_q: Array, stats: tuple[Array, ...], cotangent: Array
) -> tuple[Array, Array]:
    """dz_p = g p (log p - log q - KL), dz_q = g (q - p); `stats` and g are columns [rows, 1]."""
    peak_p, log_sum_p, peak_q, log_sum_q, kl = stats
    # Not above 0: where KL is infinite, g and the statistics come in as 0, and exp could be inf.
    log_p = jnp.minimum((z_p - peak_p) - finite(log_sum_p), 0.0)
    log_q = jnp.minimum((z_q - peak_q) - finite(log_sum_q), 0.0)
    p = exp(log_p)
    d_p = jnp.where(p > 0, p * (log_p - jnp.maximum(log_q, -1e38) - kl), 0.0)
    return cotangent * d_p, cotangent * (exp(log_q) - p)
