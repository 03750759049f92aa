"""KL(p‖q) over strips of logits on a TPU, kept per lane until the end, and its gradients.

Each lane holds the largest logits, the sums s_p and s_q, and the moment t = Σ exp(z_p - peak_p)
((z_p - peak_p) - (z_q - peak_q)); KL = t / s_p + log(s_q / s_p). `impossible` is 1 where p may
give a token that q may not: there the divergence is infinite.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array

from kernels_pallas.records import KLStats
from kernels_pallas.tpu import mosaic
from kernels_pallas.tpu.mosaic import LANES, LN2, LOG2E, LOWEST, Rows

CARRIED = ("peak_p", "total_p", "peak_q", "total_q", "moment", "impossible")
FIELDS = KLStats._fields
PACKED = (*FIELDS, "g")


def begin(carried: dict[str, Any]) -> None:
    for name, ref in carried.items():
        ref[...] = jnp.full(ref.shape, LOWEST if "peak" in name else 0.0, ref.dtype)


def tiles_of(logits: Array) -> list[Array]:
    return [logits[:, first : first + LANES] for first in range(0, logits.shape[1], LANES)]


def update(state: dict[str, Array], logits_p: Array, logits_q: Array) -> dict[str, Array]:
    """One more strip of logits [rows, width] of both sides."""
    tiles = list(zip(tiles_of(logits_p), tiles_of(logits_q)))
    peak_p = functools.reduce(jnp.maximum, [p for p, _ in tiles], state["peak_p"])
    peak_q = functools.reduce(jnp.maximum, [q for _, q in tiles], state["peak_q"])
    change_p = jnp.maximum(state["peak_p"] - peak_p, LOWEST)
    change_q = jnp.maximum(state["peak_q"] - peak_q, LOWEST)
    impossible = state["impossible"]
    weights, moments = {"p": [], "q": []}, []
    for p, q in tiles:
        weights["p"].append(jnp.exp(p - peak_p))
        weights["q"].append(jnp.exp(q - peak_q))
        both = (p > -jnp.inf) & (q > -jnp.inf)
        moments.append(weights["p"][-1] * jnp.where(both, (p - peak_p) - (q - peak_q), 0.0))
        impossible = jnp.where((p > -jnp.inf) & (q == -jnp.inf), 1.0, impossible)
    # A strip by itself first: long sums of numbers that are all alike round the same way each time.
    total_p, total_q = (
        state[f"total_{side}"] * jnp.exp(change) + functools.reduce(jnp.add, weights[side])
        for side, change in (("p", change_p), ("q", change_q))
    )
    moment = _moved(state["moment"], state["total_p"], state["total_q"], change_p, change_q)
    moment += functools.reduce(jnp.add, moments)
    values = (peak_p, total_p, peak_q, total_q, moment, impossible)
    return dict(zip(CARRIED, values))


def _moved(
    moment: Array, total_p: Array, total_q: Array, change_p: Array, change_q: Array
) -> Array:
    """The moment, seen from peaks that rose. Without a q so far it counts nothing of it."""
    change_q = jnp.where(total_q > 0, change_q, 0.0)
    change = jnp.where(total_p > 0, change_p - change_q, 0.0)
    return (moment + change * total_p) * jnp.exp(change_p)


def join_lanes(state: dict[str, Array], out: dict[str, Any]) -> None:
    """The sums over lanes; results lie along lanes."""
    state = {name: each.T for name, each in state.items()}  # [128, rows]
    peaks, changes = {}, {}
    for side in "pq":
        lanes = state[f"peak_{side}"]
        peaks[side] = jnp.max(lanes, axis=0, keepdims=True)
        changes[side] = jnp.maximum(lanes - peaks[side], LOWEST)
    moment = _moved(state["moment"], state["total_p"], state["total_q"], changes["p"], changes["q"])
    totals, some = {}, {}
    for side in "pq":
        lanes = state[f"total_{side}"] * jnp.exp(changes[side])
        totals[side] = jnp.sum(lanes, axis=0, keepdims=True)
        alive = totals[side] > 0
        some[side] = jnp.where(alive, totals[side], 1.0)
        out[f"peak_{side}"][0] = jnp.where(alive, peaks[side], 0.0)
        out[f"log_sum_{side}"][0] = jnp.where(alive, jnp.log(some[side]), -jnp.inf)
    moment = jnp.sum(moment, axis=0, keepdims=True) / some["p"]
    # One logarithm, not the difference of two: as small as KL where p is about q.
    kl = jnp.where(totals["p"] > 0, moment + jnp.log(some["q"] / some["p"]), 0.0)
    impossible = jnp.max(state["impossible"], axis=0, keepdims=True) > 0
    out["kl"][0] = jnp.where(impossible, jnp.inf, kl)


def pack(stats: KLStats, g: Array, rows: Rows) -> Array:
    """[blocks, 8, rows] of what `gradients` reads: peaks, sums of logarithm to base 2, KL, g."""
    vectors = (
        stats.peak_p,
        stats.log_sum_p * LOG2E,
        stats.peak_q,
        stats.log_sum_q * LOG2E,
        stats.kl * LOG2E,
        g,
    )
    cut = [mosaic.cut(x, rows) for x in vectors]
    valid = rows.valid[:, None, :]
    return jnp.concatenate([*cut, valid, jnp.zeros_like(valid)], axis=1)


def columns_of(vectors_ref: Any, columns: dict[str, Any]) -> None:
    """Turns the vectors of a block down its rows."""
    for index, name in enumerate((*PACKED, "valid")):
        columns[name][...] = mosaic.down(vectors_ref[0, index : index + 1, :])


def gradients(
    logits_p: Array, logits_q: Array, fields: dict[str, Array], edge: bool
) -> tuple[Array, Array]:
    """g p (log p - log q - KL) and g (q - p) of a strip [rows, width]."""
    of_p, of_q = [], []
    for z_p, z_q in zip(tiles_of(logits_p), tiles_of(logits_q)):
        log_p = (z_p - fields["peak_p"]) * LOG2E - fields["log_sum_p"]
        log_q = (z_q - fields["peak_q"]) * LOG2E - fields["log_sum_q"]
        p, q = jnp.exp2(log_p), jnp.exp2(log_q)
        # Where p > 0, log q may be any number below 0; only -inf, where p is 0, must go.
        log_p, log_q = jnp.maximum(log_p, -1e38), jnp.maximum(log_q, -1e38)
        d_p = fields["g"] * p * ((log_p - log_q - fields["kl"]) * LN2)
        d_q = fields["g"] * (q - p)
        if edge:
            d_p = jnp.where(fields["valid"] > 0, d_p, 0.0)
            d_q = jnp.where(fields["valid"] > 0, d_q, 0.0)
        of_p.append(d_p)
        of_q.append(d_q)
    return jnp.concatenate(of_p, axis=1), jnp.concatenate(of_q, axis=1)
