"""A softmax over strips of logits on a TPU, kept per lane until the end.

State of a block of rows, each [rows, 128]: lane l has the largest logit, the sum, the moment
Σ exp(u - peak) (u - peak) and the chosen logit of columns l, l + 128, ... Logits come as u with
z = scale · u, scale > 0: differences are taken before they are scaled.

Source of the running maximum: Milakov and Gimelshein (2018), "Online normalizer calculation for
softmax", algorithm 3. Lanes and moment are ours.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels_pallas.tpu import mosaic
from kernels_pallas.tpu.mosaic import LANES, LN2, LOG2E, LOWEST, Blocks


def names(entropy: bool) -> tuple[str, ...]:
    return ("peak", "total", "chosen") + (("moment",) if entropy else ())


def visit_block(
    logits_of: Callable[[int, int, Any], Array],
    tokens: Array,
    scale: Array,
    carried: dict[str, Any],
    places_ref: Any,
    out: dict[str, Any],
    size: int,
    blocks: Blocks,
) -> None:
    """A step of a forward kernel, whose grid's last axis goes over blocks of the vocabulary.

    `logits_of(first, width, limit)` is a strip of this block, -inf from column `limit` of the block
    on (None: all exist).
    """
    j, last = pl.program_id(1), pl.num_programs(1) - 1

    @pl.when(j == 0)
    def _begin() -> None:
        begin(carried, places_ref, tokens)

    def visit(edge: bool) -> None:
        state = {name: ref[...] for name, ref in carried.items()}
        places = places_ref[...] - j * blocks.vocabulary
        limit = size - j * blocks.vocabulary if edge else None
        for first, width in mosaic.strips(blocks):
            logits = logits_of(first, width, limit)
            state = update(state, logits, places - first, scale * LOG2E, "moment" in carried)
        for name, ref in carried.items():
            ref[...] = state[name]

    mosaic.if_edge(j == last if size % blocks.vocabulary else False, visit)

    @pl.when(j == last)
    def _finish() -> None:
        join_lanes({name: ref[...] for name, ref in carried.items()}, scale, out)


def begin(carried: dict[str, Any], places_ref: Any, tokens: Array) -> None:
    """Before the first strip. tokens [1, rows]; one is hit in column c + l where place = c."""
    for name, ref in carried.items():
        ref[...] = jnp.full(ref.shape, LOWEST if name == "peak" else 0.0, ref.dtype)
    lanes = lax.broadcasted_iota(jnp.int32, places_ref.shape, 1)
    places_ref[...] = mosaic.down(tokens) - lanes


def update(
    state: dict[str, Array], logits: Array, places: Array, scale: Array, entropy: bool
) -> dict[str, Array]:
    """One more strip of logits [rows, width], 128 columns at a time."""
    tiles = [logits[:, c : c + LANES] for c in range(0, logits.shape[1], LANES)]
    peak = functools.reduce(jnp.maximum, tiles, state["peak"])
    # Cut where exp is 0 anyway, so that 0 · (-inf) does not arise below.
    shifted = [jnp.maximum(tile - peak, LOWEST) for tile in tiles]
    weights = [jnp.exp2(each * scale) for each in shifted]
    change = jnp.maximum(state["peak"] - peak, LOWEST)
    shrink = jnp.exp2(change * scale)
    total = state["total"] * shrink + functools.reduce(jnp.add, weights)
    chosen = state["chosen"]
    for index, tile in enumerate(tiles):
        chosen = jnp.where(places == index * LANES, tile, chosen)
    new = {"peak": peak, "total": total, "chosen": chosen}
    if entropy:
        moment = (state["moment"] + change * state["total"]) * shrink
        terms = [weight * each for weight, each in zip(weights, shifted)]
        new["moment"] = moment + functools.reduce(jnp.add, terms)
    return new


def join_lanes(state: dict[str, Array], scale: Array, out: dict[str, Any]) -> None:
    """The sums over lanes, by way of a transposition: the results lie along lanes."""
    state = {name: each.T for name, each in state.items()}  # [128, rows]
    peak = jnp.max(state["peak"], axis=0, keepdims=True)
    change = jnp.maximum(state["peak"] - peak, LOWEST)
    shrink = jnp.exp2(change * (scale * LOG2E))
    total = jnp.sum(state["total"] * shrink, axis=0, keepdims=True)
    alive = total > 0  # else nothing but -inf
    log_sum = jnp.log2(jnp.where(alive, total, 1.0)) * LN2
    out["peak"][0] = jnp.where(alive, peak * scale, 0.0)
    out["log_sum"][0] = jnp.where(alive, log_sum, -jnp.inf)
    out["chosen"][0] = jnp.sum(state["chosen"], axis=0, keepdims=True) * scale
    if "entropy" in out:
        moment = jnp.sum(
            (state["moment"] + change * state["total"]) * shrink, axis=0, keepdims=True
        )
        out["entropy"][0] = log_sum - moment * scale / jnp.where(alive, total, 1.0)
