"""A `Loop` whose updates are one compiled program, from what one run does in one update."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from rljax import sharding
from rljax.loops.evaluate import summarize
from rljax.loops.loop import Loop, RunState, check_updates, seed_keys
from rljax.types import Array, Key, Metrics


def compiled_loop(
    init_one: Callable[[Key], RunState],
    update_one: Callable[[RunState, Array], tuple[RunState, Metrics]],
    evaluate_one: Callable[[RunState], tuple[Array, Array]],
    *,
    mesh: jax.sharding.Mesh,
    shardings_of_one: Callable[[RunState], RunState],
    max_updates: int,
    eval_episodes: int,
    steps_per_update: int,
    first_step: int = 0,
    seed: int = 0,
    num_seeds: int = 1,
    dropped: tuple[str, ...] = (),
    refill_one: Callable[[RunState], RunState] = lambda state: state,
) -> Loop:
    """Many updates in one call, the state donated; seeds side by side, some of them on each device.

    Args:
      init_one: key of a run -> its state.
      update_one: state, its `step` as a number that all seeds share -> state, metrics.
      evaluate_one: state -> returns and lengths [eval_episodes].
      mesh: of the devices in use.
      shardings_of_one: shapes of the state of a single run -> how it is laid out over `mesh`.
      dropped: fields of the state that checkpoints do without.
      refill_one: puts something there again.
      The others are those of `Loop` and `jax_loop`.

    Raises:
      ValueError: if the seeds cannot be split evenly over the devices.
    """
    if num_seeds > 1:
        sharding.check_divisible("config.num_seeds", num_seeds, mesh)
    vmap: Any = jax.vmap if num_seeds > 1 else lambda f, in_axes=0: f
    make_keys = partial(seed_keys, seed, num_seeds)
    state_shapes = jax.eval_shape(vmap(init_one), jax.eval_shape(make_keys))
    step_shape = jax.ShapeDtypeStruct((), jnp.int32)
    update = vmap(update_one, in_axes=(0, None))
    metric_shapes = jax.eval_shape(update, state_shapes, step_shape)[1]

    def advance_some(state: RunState, num_updates: Array) -> tuple[RunState, Metrics]:
        def body(i: Array, carry: tuple[RunState, Metrics]) -> tuple[RunState, Metrics]:
            state, rows = carry
            state, metrics = update(state, jnp.ravel(state.step)[0])
            return state, jax.tree.map(lambda all, row: all.at[i].set(row), rows, metrics)

        shape = (max_updates, *state.step.shape)  # of the seeds on this device
        rows = jax.tree.map(lambda m: jnp.zeros(shape, m.dtype), metric_shapes)
        return jax.lax.fori_loop(0, num_updates, body, (state, rows))

    init_some, evaluate_some, refill_some = map(vmap, (init_one, evaluate_one, refill_one))
    if num_seeds > 1:
        # Runs have nothing to say to each other: each device goes through its own by itself.
        shardings = sharding.like(state_shapes, sharding.along_data(mesh))
        over_seeds = partial(jax.shard_map, mesh=mesh, check_vma=False)
        seeds, whole = PartitionSpec(sharding.DATA), PartitionSpec()
        rows = PartitionSpec(None, sharding.DATA)
        advance_some = over_seeds(advance_some, in_specs=(seeds, whole), out_specs=(seeds, rows))
        evaluate_some = over_seeds(evaluate_some, in_specs=seeds, out_specs=seeds)
        refill_some = over_seeds(refill_some, in_specs=seeds, out_specs=seeds)
        advance_jit = jax.jit(advance_some, donate_argnums=0)
    else:
        shardings = shardings_of_one(state_shapes)
        whole = sharding.replicated(mesh)
        advance_jit = jax.jit(advance_some, donate_argnums=0, out_shardings=(shardings, whole))
    init_jit = jax.jit(init_some, out_shardings=shardings)
    evaluate_jit = jax.jit(evaluate_some)
    refill_jit = jax.jit(refill_some)

    def advance(state: RunState, num_updates: int) -> tuple[RunState, dict[str, np.ndarray]]:
        check_updates(num_updates, max_updates)
        state, rows = advance_jit(state, np.int32(num_updates))
        return state, {
            name: np.asarray(x)[:num_updates].reshape(num_updates, num_seeds)
            for name, x in rows.items()
        }

    def evaluate_all(state: RunState) -> dict[str, np.ndarray]:
        returns, lengths = evaluate_jit(state)
        shape = (num_seeds, eval_episodes)
        return summarize(np.reshape(returns, shape), np.reshape(lengths, shape))

    def save(state: RunState) -> RunState:
        return state._replace(**dict.fromkeys(dropped, ()))

    template = jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        state_shapes,
        shardings,
    )
    return Loop(
        init=lambda: init_jit(make_keys()),
        advance=advance,
        evaluate=evaluate_all,
        save=save,
        load=refill_jit if dropped else lambda saved: saved,
        template=save(template),
        metric_names=tuple(metric_shapes),
        steps_per_update=steps_per_update,
        first_step=first_step,
    )
