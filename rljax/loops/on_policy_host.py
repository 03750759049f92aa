"""The on-policy loop around environments of the host: only policy and update are jitted."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.data.rollout import collect, draw_noise, episode_sums
from rljax.loops.host import TRAIN, host_seeds, join_seeds, make_evaluate, split_seeds
from rljax.loops.loop import Loop, RunState, check_updates, first_keys, seed_keys, update_keys
from rljax.types import Algo, Array, Discrete, HostVectorEnv, Key, Metrics, PyTree, Rollout


def host_loop(
    make_env: Callable[[int], HostVectorEnv],
    algo: Algo,
    *,
    num_envs: int,
    unroll_length: int,
    max_updates: int,
    eval_episodes: int,
    seed: int = 0,
    num_seeds: int = 1,
    noise_hold: int = 1,
    transform: Callable[[HostVectorEnv], HostVectorEnv] = lambda env: env,
) -> Loop:
    """The loop for host environments: policy and update are jitted, the stepping is the host's.

    Args:
      make_env: number of environments -> the environments. The S·B of all seeds are stepped as one.
      algo: what to run; the others are as in `jax_loop`, on one device.
      transform: of the S·B environments to train in; evaluation sees them as they are.
    """
    env = transform(make_env(num_seeds * num_envs))
    eval_env = make_env(num_seeds * eval_episodes)
    seeds = np.arange(seed, seed + num_seeds)
    make_keys = partial(seed_keys, seed, num_seeds)
    batched = num_seeds > 1

    def init_one(key: Key) -> tuple[PyTree, Key]:
        _, algo_key, run_key = first_keys(key)
        return algo.init(algo_key), run_key

    def noise_one(key: Key, step: Array) -> PyTree:
        act_key, _, _ = update_keys(key, step)
        return draw_noise(act_key, algo.draw, num_envs, length=unroll_length, hold=noise_hold)

    def update_one(algo_state: PyTree, key: Key, step: Array, rollout: Rollout):
        _, update_key, _ = update_keys(key, step)
        algo_state, metrics = algo.update(update_key, algo_state, rollout)
        return algo_state, {**metrics, **episode_sums(rollout)}

    def vmap(f: Callable, in_axes: tuple[int | None, ...]) -> Callable:
        return jax.vmap(f, in_axes) if batched else f

    init_jit = jax.jit(vmap(init_one, (0,)))
    noise_jit = jax.jit(vmap(noise_one, (0, None)))
    act_jit = jax.jit(vmap(algo.act, (0, 0, 0)))
    act_greedy_jit = jax.jit(vmap(algo.act_greedy, (0, 0)))
    update_jit = jax.jit(vmap(update_one, (0, 0, None, 1)), donate_argnums=0)

    split = partial(split_seeds, num_seeds=num_seeds)
    join = partial(join_seeds, num_seeds=num_seeds)
    algo_shapes, run_keys = jax.eval_shape(init_jit, jax.eval_shape(make_keys))
    metric_shapes = jax.eval_shape(
        vmap(update_one, (0, 0, None, 1)),
        algo_shapes,
        run_keys,
        jnp.int32(0),
        jax.eval_shape(
            lambda x: jax.tree.map(partial(split, axis=1), x),
            rollout_shapes(env, unroll_length),
        ),
    )[1]
    metric_names = tuple(metric_shapes)

    def first_observation() -> np.ndarray:
        return env.reset(host_seeds(seeds, 0, TRAIN, num_envs))

    def init() -> RunState:
        algo_state, run_keys = init_jit(make_keys())
        return RunState(algo_state, (), first_observation(), run_keys, jnp.int32(0))

    def advance_one(state: RunState) -> tuple[RunState, Metrics]:
        # In bulk and as NumPy's: one program and one transfer for all steps of the rollout.
        noise = jax.tree.map(np.asarray, noise_jit(state.key, state.step))

        def act(t: int, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            noise_t = jax.tree.map(lambda x: x[:, t] if batched else x[t], noise)
            outputs = act_jit(noise_t, state.algo, split(observation))
            return jax.tree.map(join, outputs)

        observation, rollout = collect(env, act, state.observation, length=unroll_length)
        rollout = jax.tree.map(partial(split, axis=1), rollout)
        algo_state, metrics = update_jit(state.algo, state.key, state.step, rollout)
        return RunState(algo_state, (), observation, state.key, state.step + 1), metrics

    def advance(state: RunState, num_updates: int) -> tuple[RunState, dict[str, np.ndarray]]:
        check_updates(num_updates, max_updates)
        rows = []
        for _ in range(num_updates):
            state, metrics = advance_one(state)
            rows.append(metrics)
        return state, {
            name: np.stack([row[name] for row in rows]).reshape(num_updates, num_seeds)
            for name in metric_names
        }

    def load(saved: RunState) -> RunState:
        observation = env.restore(saved.env)  # as saved, unless fresh episodes are all there is
        return saved._replace(env=(), observation=observation)

    def template() -> RunState:
        observation = first_observation()
        step = jax.ShapeDtypeStruct((), jnp.int32)
        return RunState(algo_shapes, env.snapshot(), observation, run_keys, step)

    return Loop(
        init=init,
        advance=advance,
        evaluate=make_evaluate(eval_env, act_greedy_jit, seeds=seeds, episodes=eval_episodes),
        save=lambda state: state._replace(env=env.snapshot()),
        load=load,
        template=template(),
        metric_names=metric_names,
        steps_per_update=num_envs * unroll_length,
    )


def rollout_shapes(env: HostVectorEnv, length: int) -> Rollout:
    """What `collect` will return, as shapes and dtypes."""
    spec, batch = env.spec, (length, env.num_envs)

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((*batch, *shape), dtype)

    def actions() -> Any:
        if isinstance(spec.action_space, Discrete):
            return array(np.int32)
        return array(np.float32, len(spec.action_space.low))

    observations = array(spec.observation_dtype, *spec.observation_shape)
    return Rollout(
        observations=observations,
        actions=actions(),
        behaviour_log_probs=array(np.float32),
        rewards=array(np.float32),
        terminated=array(bool),
        truncated=array(bool),
        next_observations=observations,
        episode_returns=array(np.float32),
        episode_lengths=array(np.int32),
        mask=array(bool),
    )
