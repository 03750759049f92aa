"""The on-policy loop for pure-JAX environments: act, update, again, in one jitted, donated call.

`on_policy_host.py` gives the same `Loop` for environments of the host.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from rljax import sharding
from rljax.data.rollout import episode_sums, unroll
from rljax.envs.vector import vectorize
from rljax.loops.evaluate import evaluate, summarize
from rljax.loops.loop import Loop, RunState, check_updates, first_keys, seed_keys, update_keys
from rljax.types import Algo, Array, Env, Key, Metrics, VectorEnv


def jax_loop(
    env: Env,
    algo: Algo,
    *,
    num_envs: int,
    unroll_length: int,
    max_updates: int,
    eval_episodes: int,
    seed: int = 0,
    num_seeds: int = 1,
    num_devices: int = 1,
    noise_hold: int = 1,
    transform: Callable[[VectorEnv], VectorEnv] = lambda envs: envs,
) -> Loop:
    """The loop for a pure-JAX environment: `advance` is one call of one compiled program.

    One seed's environments are split over the mesh's `data` axis, with its parameters on every
    device; of several seeds each device has some as a whole. The numbers do not depend on the
    number of devices beyond float rounding.

    Args:
      env, algo: what to run.
      num_envs: B; with one seed divisible by the number of devices.
      unroll_length: T.
      max_updates: the most updates that one `advance` does.
      eval_episodes: environments, and so episodes, of one evaluation.
      seed: of the first run; run s of `num_seeds` uses seed + s.
      num_seeds: runs side by side, divisible by the number of devices if above 1.
      num_devices: 0 takes all there are.
      noise_hold: steps for which one draw of the policy's noise is kept.
      transform: of the environments to train in; evaluation sees `env` as it is.

    Raises:
      ValueError: if B or the seeds cannot be split evenly, or there are too few devices.
    """
    mesh = sharding.make_mesh(num_devices)
    envs = transform(vectorize(env, num_envs))
    if num_seeds > 1:
        sharding.check_divisible("config.num_seeds", num_seeds, mesh)
    else:
        sharding.check_divisible("config.env.num_envs", num_envs, mesh)
    vmap = jax.vmap if num_seeds > 1 else lambda f: f

    def init_one(key: Key) -> RunState:
        env_key, algo_key, run_key = first_keys(key)
        env_state, observation = envs.reset(env_key)
        return RunState(algo.init(algo_key), env_state, observation, run_key, jnp.int32(0))

    def update_one(state: RunState) -> tuple[RunState, Metrics]:
        act_key, update_key, _ = update_keys(state.key, state.step)
        env_state, observation, rollout = unroll(
            act_key,
            envs,
            algo.draw,
            lambda noise, observation: algo.act(noise, state.algo, observation),
            state.env,
            state.observation,
            length=unroll_length,
            hold=noise_hold,
        )
        algo_state, metrics = algo.update(update_key, state.algo, rollout)
        state = RunState(algo_state, env_state, observation, state.key, state.step + 1)
        return state, {**metrics, **episode_sums(rollout)}

    def evaluate_one(state: RunState) -> tuple[Array, Array]:
        _, _, eval_key = update_keys(state.key, state.step)
        return evaluate(eval_key, env, partial(algo.act_greedy, state.algo), episodes=eval_episodes)

    make_keys = partial(seed_keys, seed, num_seeds)
    state_shapes = jax.eval_shape(vmap(init_one), jax.eval_shape(make_keys))
    metric_shapes = jax.eval_shape(vmap(update_one), state_shapes)[1]

    def advance_some(state: RunState, num_updates: Array) -> tuple[RunState, Metrics]:
        def body(i: Array, carry: tuple[RunState, Metrics]) -> tuple[RunState, Metrics]:
            state, rows = carry
            state, metrics = vmap(update_one)(state)
            return state, jax.tree.map(lambda all, row: all.at[i].set(row), rows, metrics)

        shape = (max_updates, *state.step.shape)  # of the seeds on this device
        rows = jax.tree.map(lambda m: jnp.zeros(shape, m.dtype), metric_shapes)
        return jax.lax.fori_loop(0, num_updates, body, (state, rows))

    if num_seeds > 1:
        # Runs have nothing to say to each other: each device goes through its own by itself.
        shardings = sharding.like(state_shapes, sharding.along_data(mesh))
        over_seeds = partial(jax.shard_map, mesh=mesh, check_vma=False)
        seeds, whole = PartitionSpec(sharding.DATA), PartitionSpec()
        rows = PartitionSpec(None, sharding.DATA)
        advance_some = over_seeds(advance_some, in_specs=(seeds, whole), out_specs=(seeds, rows))
        evaluate_some = over_seeds(vmap(evaluate_one), in_specs=seeds, out_specs=seeds)
        advance_jit = jax.jit(advance_some, donate_argnums=0)
    else:
        shardings = run_shardings(mesh, state_shapes)
        whole = sharding.replicated(mesh)
        advance_jit = jax.jit(advance_some, donate_argnums=0, out_shardings=(shardings, whole))
        evaluate_some = evaluate_one
    init_jit = jax.jit(vmap(init_one), out_shardings=shardings)
    evaluate_jit = jax.jit(evaluate_some)

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

    return Loop(
        init=lambda: init_jit(make_keys()),
        advance=advance,
        evaluate=evaluate_all,
        save=lambda state: state,
        load=lambda saved: saved,
        template=jax.tree.map(
            lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
            state_shapes,
            shardings,
        ),
        metric_names=tuple(metric_shapes),
        steps_per_update=num_envs * unroll_length,
    )


def run_shardings(mesh: jax.sharding.Mesh, shapes: RunState) -> RunState:
    """Environments along `data`, all else replicated, statistics over environments too."""
    whole: Any = sharding.replicated(mesh)
    split: Any = sharding.along_data(mesh)
    return RunState(
        algo=sharding.like(shapes.algo, whole),
        env=jax.tree.map(lambda leaf: split if leaf.ndim else whole, shapes.env),
        observation=split,
        key=whole,
        step=whole,
    )
