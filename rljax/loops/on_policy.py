"""The on-policy loop for pure-JAX environments: act, update, again, in one jitted, donated call.

`on_policy_host.py` gives the same `Loop` for environments of the host.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rljax import sharding
from rljax.data.rollout import episode_sums, unroll
from rljax.envs.vector import vectorize
from rljax.loops.compiled import compiled_loop
from rljax.loops.evaluate import evaluate
from rljax.loops.loop import Loop, RunState, first_keys, update_keys
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
    if num_seeds == 1:
        sharding.check_divisible("config.env.num_envs", num_envs, mesh)
    envs = transform(vectorize(env, num_envs))

    def init_one(key: Key) -> RunState:
        env_key, algo_key, run_key = first_keys(key)
        env_state, observation = envs.reset(env_key)
        return RunState(algo.init(algo_key), env_state, observation, run_key, jnp.int32(0))

    def update_one(state: RunState, step: Array) -> tuple[RunState, Metrics]:
        act_key, update_key, _ = update_keys(state.key, step)
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

    return compiled_loop(
        init_one,
        update_one,
        evaluate_one,
        mesh=mesh,
        shardings_of_one=partial(run_shardings, mesh),
        max_updates=max_updates,
        eval_episodes=eval_episodes,
        steps_per_update=num_envs * unroll_length,
        seed=seed,
        num_seeds=num_seeds,
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
