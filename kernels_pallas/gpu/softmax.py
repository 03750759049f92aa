"""The online softmax of a block of rows, and putting parts of the vocabulary together."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from kernels_pallas.gpu.triton import column, exp, finite
from kernels_pallas.records import NEVER, ShardStats


class Running(NamedTuple):
    """Of the logits seen so far, [rows] (or [parts, rows] afterwards)."""

    peak: Array  # max z; -inf before the first finite one
    total: Array  # Σ exp(z - peak)
    weighted: Array  # Σ exp(z - peak) (z - peak)
    chosen: Array  # z of the token, 0 if it was not among them

    @classmethod
    def empty(cls, rows: int) -> "Running":
        zeros = jnp.zeros(rows, jnp.float32)
        return cls(jnp.full(rows, -jnp.inf, jnp.float32), zeros, zeros, zeros)

    def add(
        self, z: Array, is_token: Array, entropy: bool, across: Callable[..., Array] = column
    ) -> "Running":
        """One more tile of logits, [rows, columns]; -inf counts as nothing.

        `across` makes a vector of rows broadcast with tiles.
        """
        peak = jnp.maximum(self.peak, jnp.max(z, axis=1))
        shift = finite(peak)
        below = z - across(shift)
        p = exp(below)
        step = finite(self.peak - shift)  # 0 while nothing was seen: the sums are 0 then
        shrink = exp(step)
        weighted = self.weighted
        if entropy:
            # 0 · -inf = 0 here, so the factor is cut where p is 0 in any case.
            added = jnp.sum(p * jnp.maximum(below, NEVER), axis=1)
            weighted = shrink * (self.weighted + step * self.total) + added
        return Running(
            peak,
            shrink * self.total + jnp.sum(p, axis=1),
            weighted,
            self.chosen + jnp.sum(jnp.where(is_token, z, 0.0), axis=1),
        )


def combine(parts: Running, mask: Array | None, entropy: bool) -> ShardStats:
    """The statistics from those of parts of the vocabulary, [parts, rows]."""
    peak = finite(jnp.max(parts.peak, axis=0))
    step = finite(parts.peak - peak[None, :])
    weight = jnp.exp(step)
    total = jnp.sum(weight * parts.total, axis=0)
    fields: list[Any] = [peak, jnp.log(total), jnp.sum(parts.chosen, axis=0)]
    if entropy:
        weighted = jnp.sum(weight * (parts.weighted + step * parts.total), axis=0)
        some = total > 0
        spread = jnp.log(jnp.where(some, total, 1.0)) - weighted / jnp.where(some, total, 1.0)
        fields.append(spread)
    if mask is not None:
        fields = [jnp.where(mask, field, 0.0) for field in fields]
    return ShardStats(fields[0], fields[1], fields[2], fields[3] if entropy else None)


def log_probs(z: Array, peak: Array, log_sum: Array) -> Array:
    """log p, cut where p is 0, so that p log p is; log_sum must be finite."""
    return jnp.maximum((z - peak) - log_sum, NEVER)
