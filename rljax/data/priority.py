"""Prioritised replay: places are drawn in proportion to their priorities.

P(i) = p_i^α / Σ_k p_k^α, and each drawn transition is weighted by (N · P(i))^-β, divided by the
largest weight of its batch. A new transition has the largest priority ever set, so that it is seen
soon; α is how much priorities count, β how much of the bias is corrected (β grows to 1 over a run).

Draws are independent, where the paper draws one from each of as many strata as the batch is large;
and the largest weight is that of the batch, as in most implementations, not that of the whole ring.

Source: Schaul, Quan, Antonoglou and Silver, 2016, section 3.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.data import replay as ring
from rljax.data.memory import check_memory, num_bytes
from rljax.data.replay import ReplayState
from rljax.data.sum_tree import (
    LEVELS,
    SumTree,
    draw_places,
    empty_tree,
    set_weights,
    total_weight,
)
from rljax.data.windows import Window, one_step
from rljax.types import Array, Key, PyTree

MAX_WEIGHT = 1e28  # 2^30 of them still add up in float32


class PrioritisedState(NamedTuple):
    """All there is of a prioritised replay; part of the run's state."""

    ring: ReplayState
    tree: SumTree  # p^α of every place; 0 where nothing can start
    largest: Array  # float32 []: the largest p^α that was ever set, 1 at first


class PrioritisedSample(NamedTuple):
    batch: PyTree  # what the window reads, [N, ...]
    places: Array  # int32 [N], for `set_priorities`
    weights: Array  # float32 [N] in (0, 1]: multiply the loss of each


class PrioritisedReplay(NamedTuple):
    """As `Replay`, but one minibatch at a time: what was learned from one changes the next."""

    init: Callable[[], PrioritisedState]
    add: Callable[..., PrioritisedState]  # state, transitions, mask=None -> state
    sample: Callable[..., PrioritisedSample]  # key, state, batch_size, beta=None -> sample
    # state, places [N], priorities [N] -> state
    set_priorities: Callable[[PrioritisedState, Array, Array], PrioritisedState]
    can_sample: Callable[..., Array]  # state, min_size=1 -> bool []
    num_bytes: int  # of the state


def make_prioritised_replay(
    example: PyTree,
    *,
    capacity: int,
    num_envs: int,
    alpha: float,
    beta: float,
    window: Window | None = None,
    memory_limit: int | None = None,
) -> PrioritisedReplay:
    """A replay from which transitions are drawn in proportion to priority^α.

    Priorities are what the caller makes of the errors, |δ| + ε as a rule: one of exactly 0 is
    never drawn again. Of a place that was drawn twice the larger priority counts; one that is NaN,
    infinite or negative counts as the largest so far. Places at which, by now, nothing can start
    are left at 0.

    Args:
      example, capacity, num_envs, window, memory_limit: as in `make_replay`.
      alpha: in [0, 1]; 0 draws uniformly.
      beta: in [0, 1]; the `beta` of `sample`, which may be traced, takes its place.

    Returns:
      `PrioritisedReplay`.

    Raises:
      ValueError: as `make_replay`, or if α or β are outside their range.

    >>> replay = make_prioritised_replay(
    ...     jnp.float32(0), capacity=2, num_envs=2, alpha=1.0, beta=1.0
    ... )
    >>> state = replay.add(replay.init(), jnp.array([3.0, 7.0]))
    >>> state = replay.set_priorities(state, jnp.array([0]), jnp.array([0.0]))
    >>> replay.sample(jax.random.key(0), state, 2).batch.tolist()
    [7.0, 7.0]
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} is {value}: it must be in 0.0 ... 1.0")
    window = window or one_step()
    num_steps = ring.check_ring(capacity, num_envs, window)

    def empty() -> PrioritisedState:
        state = ring.empty_state(example, capacity, num_envs)
        return PrioritisedState(state, empty_tree(capacity), jnp.ones(()))

    shapes = jax.eval_shape(empty)

    def init() -> PrioritisedState:
        what = f"a prioritised replay of {capacity:,} transitions"
        check_memory(what, num_bytes(shapes), memory_limit)
        return empty()

    def put(state: PrioritisedState, places: Array, weights: Array) -> SumTree:
        _, _, available = ring.locate(state.ring, places)
        can_start = available >= (window.span if window.whole else 1)
        return set_weights(state.tree, places, jnp.where(can_start, weights, 0.0))

    def add(state: PrioritisedState, transitions: PyTree, mask: Any = None) -> PrioritisedState:
        kept, places = ring.add_steps(state.ring, transitions, mask)
        places = places.reshape(-1)
        if window.whole and window.span > 1:  # a step also completes the window of an earlier one
            earlier = ring.wrap(places // num_envs - (window.span - 1), num_steps)
            earlier = earlier * num_envs + places % num_envs
            dropped = places >= ring.MAX_CAPACITY
            places = jnp.concatenate([places, jnp.where(dropped, places, earlier)])
        state = state._replace(ring=kept)
        weights = jnp.broadcast_to(state.largest, places.shape)
        return state._replace(tree=put(state, places, weights))

    def sample(
        key: Key, state: PrioritisedState, batch_size: int, beta: Any = beta
    ) -> PrioritisedSample:
        shape = ring.check_batch(batch_size, capacity)
        places, drawn = draw_places(jax.random.uniform(key, (*shape, LEVELS)), state.tree)
        places = jnp.minimum(places, capacity - 1)
        # (N P)^-β / max over the batch: N and the total are in all of them and cancel.
        smallest = jnp.min(drawn, axis=-1, keepdims=True)
        ratio = jnp.where(drawn > 0, smallest / jnp.where(drawn > 0, drawn, 1.0), 1.0)
        batch = ring.read_window(state.ring, places, window)
        return PrioritisedSample(batch, places, ratio**beta)

    def set_priorities(
        state: PrioritisedState, places: Array, priorities: Array
    ) -> PrioritisedState:
        weights = jnp.asarray(priorities, jnp.float32)
        fine = jnp.isfinite(weights) & (weights >= 0)
        weights = jnp.where(fine, jnp.where(fine, weights, 0.0) ** alpha, state.largest)
        weights = jnp.minimum(weights, MAX_WEIGHT)
        largest = jnp.maximum(state.largest, jnp.max(weights))
        return state._replace(tree=put(state, places, weights), largest=largest)

    def can_sample(state: PrioritisedState, min_size: int = 1) -> Array:
        enough = jnp.sum(ring.num_starts(state.ring, window)) >= min_size
        return enough & (total_weight(state.tree) > 0)

    return PrioritisedReplay(init, add, sample, set_priorities, can_sample, num_bytes(shapes))
