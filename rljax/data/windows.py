"""What is read from a replay at the place that was drawn: one step, n of them, or a sequence.

A window sees the transitions of one environment in their order, from a start on. It never meets
the write position (it is told how many steps there are) and never goes on after an episode's end.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.ops.returns import n_step as n_step_returns
from rljax.types import Array, NStepBatch, PyTree

# select, offsets -> what `select` takes of the stored transitions, that many steps after the start
Fetch = Callable[[Callable[[Any], PyTree], Array], PyTree]


class Window(NamedTuple):
    """How to read. `available` is the number of steps kept from a start on, itself included."""

    span: int  # the most steps that it covers
    whole: bool  # True: only places with `span` steps from there on are starts
    read: Callable[[Fetch, Array], PyTree]  # fetch, available [*S] -> batch [*S, ...]


def one_step() -> Window:
    """The stored transition as it is, whatever its fields.

    >>> one_step().span
    1
    """
    return Window(1, False, lambda fetch, available: fetch(lambda x: x, jnp.zeros_like(available)))


def n_step(n: int, *, discount: float) -> Window:
    """Discounted sums of up to n rewards, and what to bootstrap them with.

    R = Σ_{i<k} γ^i r_{t+i}; k ≤ n is cut short after the first terminated or truncated step and at
    the newest step of the environment: a start fewer than n steps before the write position is
    drawn like any other and bootstraps earlier. As `rljax.ops.returns.n_step` of what is stored.

    Args:
      n: the most rewards to sum, at least 1.
      discount: γ in [0, 1].

    Returns:
      A window over stored `Experience` (or any record with its fields) whose batch is `NStepBatch`.

    Raises:
      ValueError: if n < 1 or the discount is outside [0, 1].

    >>> n_step(3, discount=0.99).span
    3
    """
    if n < 1:
        raise ValueError(f"n is {n}: it must be at least 1")
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"discount is {discount}: it must be in 0.0 ... 1.0")

    def read(fetch: Fetch, available: Array) -> NStepBatch:
        offsets, newest = _offsets(n, available)
        rewards, terminated, truncated = fetch(
            lambda x: (x.reward, x.terminated, x.truncated), offsets
        )
        returns, discounts, last_steps = n_step_returns(
            rewards, terminated, (truncated != 0) | newest, discount=discount, n=n
        )
        first = fetch(lambda x: (x.observation, x.action), jnp.zeros_like(available))
        last = fetch(lambda x: (x.next_observation, x.terminated, x.truncated), last_steps[0])
        return NStepBatch(
            observation=first[0],
            action=first[1],
            reward=returns[0],
            discount=discounts[0],
            next_observation=last[0],
            terminated=last[1],
            truncated=last[2],
        )

    return Window(n, False, read)


class Sequences(NamedTuple):
    """Steps of one environment in their order, the time axis last of the batch's axes.

    `mask` is 1 up to and with the first terminated or truncated step. What stands after it repeats
    that step, so that nothing of the next episode is there to leak.
    """

    steps: PyTree  # [*S, L, ...]
    mask: Array  # bool [*S, L]


def sequences(length: int) -> Window:
    """L steps in a row, masked after an episode's end.

    Starts are the places with L steps from there to the newest one, whether or not an episode ends
    among them; so no sequence meets the write position.

    Args:
      length: L, at least 1.

    Returns:
      A window over stored records with fields `terminated` and `truncated`, its batch `Sequences`.

    Raises:
      ValueError: if the length is below 1.

    >>> sequences(8).span
    8
    """
    if length < 1:
        raise ValueError(f"length is {length}: it must be at least 1")

    def read(fetch: Fetch, available: Array) -> Sequences:
        offsets, _ = _offsets(length, available)
        terminated, truncated = fetch(lambda x: (x.terminated, x.truncated), offsets)
        ended = (terminated != 0) | (truncated != 0)
        before = jnp.cumsum(ended, axis=0) - ended  # ends before this step
        last = jnp.sum(before == 0, axis=0) - 1
        steps = fetch(lambda x: x, jnp.minimum(offsets, last[None]))
        return jax.tree.map(
            lambda x: jnp.moveaxis(x, 0, available.ndim), Sequences(steps, before == 0)
        )

    return Window(length, True, read)


def _offsets(length: int, available: Array) -> tuple[Array, Array]:
    """Steps 0 ... length - 1 after the start [length, *S], none past the newest; which are that."""
    steps = jax.lax.broadcasted_iota(jnp.int32, (length, *available.shape), 0)
    newest = available[None] - 1
    return jnp.minimum(steps, newest), steps >= newest
