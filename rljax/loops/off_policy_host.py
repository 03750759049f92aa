"""The off-policy loop around environments of the host, which are stepped while the device learns.

    device:  act u | learn u ............ | add u | act u+1 | learn u+1 ...
    host:           | step environments u          |         | step u+1 ...

Acting and learning of an update start from the same parameters, and learning from what the replay
held before its steps: the numbers are the same whether or not the two overlap.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.data.replay import Replay, cut_episodes
from rljax.loops.host import TRAIN, host_seeds, join_seeds, make_evaluate, split_seeds
from rljax.loops.loop import Loop, RunState, check_updates, first_keys, seed_keys, update_keys
from rljax.loops.off_policy import (
    act_keys,
    begin_again,
    experience,
    learn,
    noise_at,
    random_actions,
)
from rljax.types import (
    Array,
    Experience,
    HostVectorEnv,
    Key,
    OffPolicyAlgo,
    PyTree,
    Transition,
)

NOISES = 64  # draws of what is random in acting, made in one call


def host_loop(
    make_env: Callable[[int], HostVectorEnv],
    algo: OffPolicyAlgo,
    replay: Replay,
    *,
    num_envs: int,
    unroll_length: int,
    gradient_steps: int,
    batch_size: int,
    warmup_steps: int,
    max_updates: int,
    eval_episodes: int,
    noise_hold: int = 1,
    save_replay: bool = True,
    seed: int = 0,
    num_seeds: int = 1,
) -> Loop:
    """The loop for host environments: acting, learning and adding are jitted.

    Args:
      make_env: number of environments -> the environments. The S·B of all seeds are stepped as one.
      algo, replay: what to run; the replay is that of one seed.
      The others are as in `off_policy.jax_loop`, on one device.
    """
    env = make_env(num_seeds * num_envs)
    eval_env = make_env(num_seeds * eval_episodes)
    seeds = np.arange(seed, seed + num_seeds)
    warmup_length = -(-warmup_steps // num_envs)
    first_step = warmup_length * num_envs
    split = partial(split_seeds, num_seeds=num_seeds)
    join = partial(join_seeds, num_seeds=num_seeds)

    def init_one(key: Key) -> tuple[PyTree, Key, PyTree, PyTree]:
        _, algo_key, run_key = first_keys(key)
        return algo.init(algo_key), run_key, replay.init(), algo.begin(num_envs)

    def random_one(key: Key, step: Array) -> Array:
        _, _, warmup_key = act_keys(key, step)
        return random_actions(warmup_key, env.spec, (warmup_length, num_envs))

    def noise_one(key: Key, first: Array) -> PyTree:
        """Draws in bulk, where they are cheap."""
        numbers = first + jnp.arange(NOISES)
        return jax.vmap(lambda number: noise_at(algo, key, number, num_envs=num_envs))(numbers)

    def learn_one(algo_state: PyTree, stored: PyTree, key: Key, step: Array):
        _, update_key, _ = update_keys(key, step)
        return learn(
            update_key,
            *(algo, algo_state, replay, stored, step),
            gradient_steps=gradient_steps,
            batch_size=batch_size,
        )

    def vmap(f: Callable, in_axes: tuple[int | None, ...]) -> Callable:
        return jax.vmap(f, in_axes) if num_seeds > 1 else f

    init_jit = jax.jit(vmap(init_one, (0,)))
    random_jit = jax.jit(vmap(random_one, (0, None)))
    noise_jit = jax.jit(vmap(noise_one, (0, None)))
    act_jit = jax.jit(vmap(algo.act, (0, 0, 0, 0, None)))
    # Later steps of the same update still act with the parameters of before.
    donated = (0,) if unroll_length == 1 else ()
    learn_jit = jax.jit(vmap(learn_one, (0, 0, 0, None)), donate_argnums=donated)
    add_jit = jax.jit(vmap(replay.add, (0, 1, 1)), donate_argnums=0)
    begin_jit = jax.jit(vmap(partial(begin_again, algo.begin(num_envs)), (0, 0)))
    greedy_jit = jax.jit(vmap(algo.act_greedy, (0, 0)))
    cut_jit = jax.jit(vmap(cut_episodes, (0,)))

    make_keys = partial(seed_keys, seed, num_seeds)
    algo_shapes, run_keys, replay_shapes, memory_shapes = jax.eval_shape(
        init_jit, jax.eval_shape(make_keys)
    )
    step_shape = jax.ShapeDtypeStruct((), jnp.int32)
    metric_shapes = jax.eval_shape(learn_jit, algo_shapes, replay_shapes, run_keys, step_shape)[1]
    metric_names = (*metric_shapes, "episode/count", "episode/return_sum", "episode/length_sum")

    def add(stored: PyTree, steps: list[Experience], masks: list[Any]) -> PyTree:
        """Steps [S·B, ...] in their order."""
        chunk = jax.tree.map(lambda *xs: split(np.stack(xs), axis=1), *steps)
        return add_jit(stored, chunk, split(np.stack(masks), axis=1))

    def warm_up(state: RunState) -> RunState:
        actions = np.asarray(random_jit(state.key, state.step))
        steps, masks, observation = [], [], state.observation
        for t in range(warmup_length):
            action = join(actions[:, t] if num_seeds > 1 else actions[t])
            transition = env.step(action)
            steps.append(experience(observation, action, transition))
            masks.append(transition.mask)
            observation = np.asarray(transition.observation)
        return state._replace(observation=observation, replay=add(state.replay, steps, masks))

    def first_observation() -> np.ndarray:
        return env.reset(host_seeds(seeds, 0, TRAIN, num_envs))

    def init() -> RunState:
        algo_state, run_keys, stored, memory = init_jit(make_keys())
        state = RunState(algo_state, (), first_observation(), run_keys, jnp.int32(0))
        return warm_up(state._replace(replay=stored, memory=memory))

    def make_noise(key: Key) -> Callable[[int], PyTree]:
        """By the number of the draw, which must not fall."""
        drawn: dict[int, PyTree] = {}

        def noise(number: int) -> PyTree:
            first = number - number % NOISES
            if first not in drawn:
                drawn.clear()
                drawn[first] = jax.tree.map(np.asarray, noise_jit(key, np.int32(first)))
            t = number - first
            return jax.tree.map(lambda x: x[:, t] if num_seeds > 1 else x[t], drawn[first])

        return noise

    def advance_one(
        state: RunState, step: int, noise: Callable[[int], PyTree]
    ) -> tuple[RunState, dict[str, Any]]:
        steps, masks, sums = [], [], np.zeros((3, env.num_envs), np.float32)
        observation, memory = state.observation, state.memory
        algo_state, metrics = state.algo, {}
        for t in range(unroll_length):
            number = step * unroll_length + t
            steps_done = np.int32(first_step + number * num_envs)
            chosen, memory = act_jit(
                noise(number // noise_hold), memory, state.algo, split(observation), steps_done
            )
            if t == 0:  # returns at once; the device learns while the environments are stepped
                algo_state, metrics = learn_jit(state.algo, state.replay, state.key, np.int32(step))
            action = join(chosen)
            transition = env.step(action)
            if jax.tree.leaves(memory):
                done = transition.terminated | transition.truncated
                memory = begin_jit(memory, split(done | ~np.asarray(transition.mask)))
            steps.append(experience(observation, action, transition))
            masks.append(transition.mask)
            sums += episode_sums_of(transition)
            observation = np.asarray(transition.observation)
        count, return_sum, length_sum = sums.reshape(3, num_seeds, -1).sum(-1)
        state = state._replace(
            algo=algo_state,
            observation=observation,
            step=np.int32(step + 1),
            replay=add(state.replay, steps, masks),
            memory=memory,
        )
        return state, {
            **metrics,
            "episode/count": count,
            "episode/return_sum": return_sum,
            "episode/length_sum": length_sum,
        }

    def advance(state: RunState, num_updates: int) -> tuple[RunState, dict[str, np.ndarray]]:
        check_updates(num_updates, max_updates)
        rows, first, noise = [], int(state.step), make_noise(state.key)
        for i in range(num_updates):
            state, metrics = advance_one(state, first + i, noise)
            rows.append(metrics)
        return state, {
            name: np.stack([row[name] for row in rows]).reshape(num_updates, num_seeds)
            for name in metric_names
        }

    def save(state: RunState) -> RunState:
        return state._replace(env=env.snapshot(), replay=state.replay if save_replay else ())

    def load(saved: RunState) -> RunState:
        observation = env.restore(saved.env)  # as saved, unless fresh episodes are all there is
        state = saved._replace(env=(), observation=observation)
        if save_replay and env.exact:
            return state
        _, _, empty, memory = init_jit(make_keys())
        state = state._replace(memory=memory)
        if save_replay:
            return state._replace(replay=cut_jit(state.replay))
        return warm_up(state._replace(replay=empty))

    def template() -> RunState:
        state = RunState(algo_shapes, (), first_observation(), run_keys, step_shape)
        return save(state._replace(replay=replay_shapes, memory=memory_shapes))

    return Loop(
        init=init,
        advance=advance,
        evaluate=make_evaluate(eval_env, greedy_jit, seeds=seeds, episodes=eval_episodes),
        save=save,
        load=load,
        template=template(),
        metric_names=metric_names,
        steps_per_update=num_envs * unroll_length,
        first_step=first_step,
    )


def episode_sums_of(transition: Transition) -> np.ndarray:
    """[3, B]: whether an episode ended in this step, its return and its length, else 0."""
    done = np.asarray(transition.terminated) | np.asarray(transition.truncated)
    done &= np.asarray(transition.mask)
    values = (done, transition.episode_return, transition.episode_length)
    return np.where(done, np.stack([np.asarray(x, np.float32) for x in values]), 0)
