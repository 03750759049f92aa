"""A ring of transitions on the device, as pure functions over a plain pytree.

Each of the B environments has a ring of its own, `capacity / B` steps long. What is stored is a
whole transition, `next_observation` included: it costs a second observation per step, and is right
where an episode was cut. A call of an environment that took no step (mask 0) is not stored at all.

Row `slot · B + environment` of every leaf holds one transition. Positions count modulo the ring
and sizes stop at its length: there is no counter that could run over.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.data.memory import check_memory, num_bytes
from rljax.data.windows import Window, one_step
from rljax.types import Array, Key, PyTree

MAX_CAPACITY = 2**30  # sums of two positions still fit in int32


class ReplayState(NamedTuple):
    """All there is of a replay; part of the run's state."""

    storage: PyTree  # [capacity, ...] per leaf
    position: Array  # int32 [B]: the slot that the next step of each environment goes to
    size: Array  # int32 [B]: steps kept of each environment


class Replay(NamedTuple):
    """A replay as functions; `sample` is `draw`, then `read`.

    `draw` takes a batch size or a shape: the places of all minibatches of an update phase come
    cheapest in one call, [U, batch], to be read one minibatch at a time. Draws are independent,
    with replacement, each start equally likely. `add` takes one step [B, ...] or a chunk
    [T, B, ...] of the environments, and a mask [B] or [T, B] of the steps that were taken. Donate
    the state: it is then updated in place, under `scan` and `vmap` too, as long as one step of a
    program adds first and samples then. The other way round XLA sees no order between reading the
    storage and writing it, and copies it.
    """

    init: Callable[[], ReplayState]
    add: Callable[..., ReplayState]  # state, transitions, mask=None -> state
    draw: Callable[[Key, ReplayState, int | tuple[int, ...]], Array]  # -> places int32
    read: Callable[[ReplayState, Array], PyTree]  # state, places [*S] -> batch [*S, ...]
    sample: Callable[[Key, ReplayState, int | tuple[int, ...]], PyTree]
    # state, min_size=1 -> bool []: whether there are so many starts; before, samples mean nothing
    can_sample: Callable[..., Array]
    num_bytes: int  # of the state


def make_replay(
    example: PyTree,
    *,
    capacity: int,
    num_envs: int,
    window: Window | None = None,
    memory_limit: int | None = None,
) -> Replay:
    """A replay from which every kept transition is drawn with the same probability.

    Args:
      example: one transition without batch axes, of arrays or shapes and dtypes; each leaf is kept
        in its own dtype. Any pytree, if the window reads it.
      capacity: transitions kept, of all environments together; a multiple of `num_envs`.
      num_envs: B.
      window: what is read at a place: `one_step()` unless given, `n_step(...)`, `sequences(...)`.
      memory_limit: bytes that `init` may take; None asks the device what is left. Of S seeds under
        `vmap` it sees one: check S · num_bytes yourself.

    Returns:
      `Replay`. Its `init` raises a ValueError if there is not enough memory, before it allocates.

    Raises:
      ValueError: if the capacity is not a multiple of B or above 2^30, or a window does not fit.

    >>> replay = make_replay(jnp.float32(0), capacity=4, num_envs=2)
    >>> state = replay.add(replay.init(), jnp.array([1.0, 2.0]))
    >>> sorted(set(replay.sample(jax.random.key(0), state, 4).tolist())) in ([1], [2], [1, 2])
    True
    """
    window = window or one_step()
    num_steps = check_ring(capacity, num_envs, window)
    shapes = jax.eval_shape(lambda: empty_state(example, capacity, num_envs))

    def init() -> ReplayState:
        check_memory(f"a replay of {capacity:,} transitions", num_bytes(shapes), memory_limit)
        return empty_state(example, capacity, num_envs)

    def draw(key: Key, state: ReplayState, batch_size: int | tuple[int, ...]) -> Array:
        shape = check_batch(batch_size, capacity)
        starts = num_starts(state, window)
        ends = jnp.cumsum(starts)
        number = jax.random.randint(key, shape, 0, jnp.maximum(ends[-1], 1))
        env = jnp.searchsorted(ends, number, side="right", method="scan_unrolled")
        env = jnp.minimum(env, num_envs - 1).astype(jnp.int32)
        age = number - (ends - starts)[env]
        slot = wrap((state.position - state.size)[env] + age, num_steps)
        return slot * num_envs + env

    def read(state: ReplayState, places: Array) -> PyTree:
        return read_window(state, places, window)

    return Replay(
        init=init,
        add=lambda state, transitions, mask=None: add_steps(state, transitions, mask)[0],
        draw=draw,
        read=read,
        sample=lambda key, state, batch_size: read(state, draw(key, state, batch_size)),
        can_sample=lambda state, min_size=1: jnp.sum(num_starts(state, window)) >= min_size,
        num_bytes=num_bytes(shapes),
    )


def cut_episodes(state: ReplayState) -> ReplayState:
    """The newest step of every environment becomes truncated.

    For environments that were begun afresh in the middle of an episode (some cannot be restored):
    no window then leads from the step before into the one after.
    """
    num_steps, num_envs = ring_shape(state)
    newest = wrap(state.position - 1, num_steps) * num_envs + jnp.arange(num_envs, dtype=jnp.int32)
    newest = jnp.where(state.size > 0, newest, MAX_CAPACITY)  # out of bounds is dropped
    truncated = state.storage.truncated.at[newest].set(True, mode="drop")
    return state._replace(storage=state.storage._replace(truncated=truncated))


# What `priority.py` shares.


def check_ring(capacity: int, num_envs: int, window: Window) -> int:
    """The number of steps that the ring keeps of each environment."""
    if num_envs < 1 or capacity < 1 or capacity % num_envs:
        raise ValueError(
            f"capacity is {capacity} transitions: it must be a multiple of the {num_envs} "
            "environments"
        )
    if capacity > MAX_CAPACITY:
        raise ValueError(f"capacity is {capacity} transitions: it can be at most {MAX_CAPACITY}")
    num_steps = capacity // num_envs
    if window.span > num_steps:
        raise ValueError(
            f"a window of {window.span} steps is longer than the {num_steps} steps kept of each "
            f"environment"
        )
    return num_steps


def check_batch(batch_size: int | tuple[int, ...], capacity: int) -> tuple[int, ...]:
    shape = tuple(batch_size) if isinstance(batch_size, tuple | list) else (int(batch_size),)
    if not 1 <= shape[-1] <= capacity:
        raise ValueError(f"the batch is {shape[-1]}: it must be in 1 ... capacity = {capacity}")
    return shape


def empty_state(example: PyTree, capacity: int, num_envs: int) -> ReplayState:
    def empty(leaf: Any) -> Array:
        leaf = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)
        return jnp.zeros((capacity, *leaf.shape), leaf.dtype)

    counts = jnp.zeros((2, num_envs), jnp.int32)
    return ReplayState(jax.tree.map(empty, example), counts[0], counts[1])


def ring_shape(state: ReplayState) -> tuple[int, int]:
    """Steps kept of each environment, and environments."""
    num_envs = state.size.shape[0]
    return jax.tree.leaves(state.storage)[0].shape[0] // num_envs, num_envs


def wrap(slot: Array, num_steps: int) -> Array:
    """`slot` modulo the ring, for -num_steps <= slot < 2 num_steps; no division."""
    slot = jnp.where(slot < 0, slot + num_steps, slot)
    return jnp.where(slot >= num_steps, slot - num_steps, slot)


def num_starts(state: ReplayState, window: Window) -> Array:
    """Places [B] of each environment that can be drawn: its oldest steps, so many."""
    return jnp.maximum(state.size - (window.span - 1), 0) if window.whole else state.size


def locate(state: ReplayState, places: Array) -> tuple[Array, Array, Array]:
    """Slot, environment, and the number of steps kept from there on (0 or less: never written)."""
    num_steps, num_envs = ring_shape(state)
    slot, env = places // num_envs, places % num_envs
    oldest = wrap(state.position - state.size, num_steps)
    return slot, env, state.size[env] - wrap(slot - oldest[env], num_steps)


def add_steps(state: ReplayState, transitions: PyTree, mask: Any) -> tuple[ReplayState, Array]:
    """The state with the steps added, and the places [T, B] they went to; out of bounds if masked.

    The whole chunk is one scatter: rows of masked steps are sent out of bounds and so dropped.
    """
    num_steps, num_envs = ring_shape(state)
    transitions, length = _as_chunk(state, transitions)
    mask = jnp.ones((length, num_envs), jnp.int32) if mask is None else jnp.asarray(mask) != 0
    if mask.shape not in {(num_envs,), (length, num_envs)} or (mask.ndim == 1 and length != 1):
        raise ValueError(f"mask has shape {mask.shape}: the steps are {(length, num_envs)}")
    mask = mask.reshape(length, num_envs).astype(jnp.int32)
    slots = wrap(state.position[None] + jnp.cumsum(mask, axis=0) - mask, num_steps)
    rows = jax.lax.broadcasted_iota(jnp.int32, slots.shape, 0) * num_envs
    envs = jax.lax.broadcasted_iota(jnp.int32, slots.shape, 1)
    places = jnp.where(mask > 0, slots * num_envs + envs, MAX_CAPACITY + rows + envs)

    def write(storage: Array, new: Array) -> Array:
        return storage.at[places].set(new, mode="drop", unique_indices=True)

    taken = jnp.sum(mask, axis=0)
    state = ReplayState(
        storage=jax.tree.map(write, state.storage, transitions),
        position=wrap(state.position + taken, num_steps),
        size=jnp.minimum(state.size + taken, num_steps),
    )
    return state, places


def _as_chunk(state: ReplayState, transitions: PyTree) -> tuple[PyTree, int]:
    """Leaves [T, B, ...] that fit the storage, and T."""
    num_steps, num_envs = ring_shape(state)
    transitions = jax.tree.map(jnp.asarray, transitions)
    given, kept = (jax.tree.structure(tree) for tree in (transitions, state.storage))
    if given != kept:
        raise ValueError(f"transitions are {given}: this replay stores {kept}")
    first, stored = (jax.tree.leaves(tree)[0] for tree in (transitions, state.storage))
    axes = first.shape[:1] if first.ndim > stored.ndim else ()  # (T,), or () for a single step

    def check(path: Any, stored: Array, new: Array) -> None:
        wanted = (*axes, num_envs, *stored.shape[1:])
        if new.shape != wanted or new.dtype != stored.dtype:
            raise ValueError(
                f"transitions{jax.tree_util.keystr(path)} is {new.dtype}{list(new.shape)}: "
                f"this replay stores {stored.dtype}{list(wanted)}"
            )

    jax.tree_util.tree_map_with_path(check, state.storage, transitions)
    (length,) = axes or (1,)
    if length > num_steps:
        raise ValueError(f"{length} steps at once are more than the {num_steps} kept")
    return jax.tree.map(
        lambda x: x.reshape(length, num_envs, *x.shape[len(axes) + 1 :]), transitions
    ), length


def read_window(state: ReplayState, places: Array, window: Window) -> PyTree:
    num_steps, num_envs = ring_shape(state)
    slot, env, available = locate(state, places)

    def fetch(select: Callable[[Any], PyTree], offsets: Array) -> PyTree:
        ahead = (1,) * (offsets.ndim - slot.ndim) + slot.shape
        rows = wrap(slot.reshape(ahead) + offsets, num_steps) * num_envs + env.reshape(ahead)
        return jax.tree.map(lambda x: x.at[rows].get(mode="clip"), select(state.storage))

    return window.read(fetch, available)
