"""The gradient of tiles of logits on a TPU: dz = p (a + b log p) + 1[v = token] c.

Vectors of a block of rows come packed, [8, rows], one field after the other (`pack`).
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from kernels_pallas.records import NEVER
from kernels_pallas.tpu import mosaic
from kernels_pallas.tpu.mosaic import LANES, LN2, LOG2E, Rows

FIELDS = ("peak", "log_sum", "a", "b", "c", "valid")


def pack(
    peak: Array, log_sum: Array, abc: tuple[Array, Array | None, Array], scales: Any, rows: Rows
) -> Array:
    """[blocks, 8, rows] of what `d_logits` reads; scales are (z of u, dz/du before softcap)."""
    scale, slope = scales
    a, b, c = abc
    b = jnp.zeros_like(a) if b is None else b * (LN2 * slope)
    vectors = (peak / scale, log_sum * LOG2E, a * slope, b, c * slope)
    cut = [mosaic.cut(x, rows) for x in vectors]
    valid = rows.valid[:, None, :]
    return jnp.concatenate([*cut, valid, *[jnp.zeros_like(valid)] * 2], axis=1)


def d_logits(
    logits: Array, fields: dict[str, Array], hit: Array, scale: Array, softcap: bool, edge: bool
) -> Array:
    """The gradient of h · W of a tile, from its raw logits; fields are vectors that broadcast."""
    log_p = (logits - fields["peak"]) * scale - fields["log_sum"]  # to base 2
    slope = fields["a"]
    if "b" in fields:
        log_p = jnp.maximum(log_p, NEVER)  # 0 · (-inf) must not arise
        slope = slope + fields["b"] * log_p
    gradient = jnp.exp2(log_p) * slope
    gradient = jnp.where(hit, gradient + fields["c"], gradient)
    if softcap:
        tanh = jnp.maximum(logits, -1.0) if edge else logits  # -inf beyond the vocabulary
        gradient = gradient * (1.0 - tanh * tanh)
    return jnp.where(fields["valid"] > 0, gradient, 0.0) if edge else gradient


def names(entropy: bool) -> list[str]:
    return [name for name in FIELDS if entropy or name != "b"]


def columns_of(vectors_ref: Any, tokens_ref: Any, columns: dict[str, Any], places_ref: Any) -> None:
    """Turns the vectors of a block down its rows; places as in the forward pass."""
    for name, ref in columns.items():
        index = FIELDS.index(name)
        ref[...] = mosaic.down(vectors_ref[0, index : index + 1, :])
    lanes = lax.broadcasted_iota(jnp.int32, places_ref.shape, 1)
    places_ref[...] = mosaic.down(tokens_ref[0]) - lanes


def tiles_of_gradient(
    logits: Array,
    fields: dict[str, Array],
    places: Array,
    scale: Array,
    softcap: bool,
    edge: bool,
) -> Array:
    """dz of a strip [rows, width], 128 columns at a time."""
    tiles = []
    for first in range(0, logits.shape[1], LANES):
        tile = logits[:, first : first + LANES]
        tiles.append(d_logits(tile, fields, places == first, scale, softcap, edge))
    return jnp.concatenate(tiles, axis=1)
