"""The off-policy loop for pure-JAX environments: act, add to the replay, learn from it, again.

One update is `unroll_length` steps of B environments and `gradient_steps` steps of the algorithm,
each on a batch of its own, all in one jitted, donated call. Before the first one the replay is
filled by `warm_up`. `off_policy_host.py` gives the same `Loop` for environments of the host.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rljax import sharding
from rljax.data.replay import Replay
from rljax.data.rollout import episode_sums, make_rollout
from rljax.envs.vector import vectorize
from rljax.loops.compiled import compiled_loop
from rljax.loops.evaluate import evaluate
from rljax.loops.loop import Loop, RunState, first_keys, update_keys
from rljax.types import (
    Array,
    Box,
    Env,
    EnvSpec,
    Experience,
    Key,
    Metrics,
    OffPolicyAlgo,
    PyTree,
    Transition,
)


def jax_loop(
    env: Env,
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
    num_devices: int = 1,
) -> Loop:
    """The loop for a pure-JAX environment.

    Args:
      env, algo, replay: what to run; the replay is made for B environments.
      num_envs: B.
      unroll_length: T, steps of each environment between two phases of learning.
      gradient_steps: U of one phase; U / (T·B) is the update-to-data ratio.
      batch_size: N of one gradient step.
      warmup_steps: random steps before the first update, of all environments together; rounded up
        to a multiple of B.
      max_updates: the most updates that one `advance` does.
      eval_episodes: environments, and so episodes, of one evaluation.
      noise_hold: steps for which one draw of the policy's noise is kept.
      save_replay: False keeps it out of the checkpoint; a resumed run warms up again.
      seed: of the first run; run s of `num_seeds` uses seed + s.
      num_seeds: runs side by side, divisible by the number of devices if above 1.
      num_devices: over which the seeds are split; one seed runs on one device.

    Raises:
      ValueError: if the seeds cannot be split evenly, or there are too few devices.
    """
    mesh = sharding.make_mesh(num_devices if num_seeds > 1 else 1)
    envs = vectorize(env, num_envs)
    warmup_length = -(-warmup_steps // num_envs)
    first_step = warmup_length * num_envs

    def warm_up(key: Key, state: RunState) -> RunState:
        """The replay filled with random actions; nothing is learned."""
        action_key, env_key = jax.random.split(key)
        actions = random_actions(action_key, env.spec, (warmup_length, num_envs))

        def step(carry: tuple[PyTree, Array], randomness: tuple) -> tuple:
            env_state, observation = carry
            action, draws = randomness
            env_state, transition = envs.step(draws, env_state, action)
            return (env_state, transition.observation), experience(observation, action, transition)

        (env_state, observation), steps = jax.lax.scan(
            step, (state.env, state.observation), (actions, envs.draw(env_key, warmup_length))
        )
        return state._replace(
            env=env_state, observation=observation, replay=replay.add(replay.init(), steps)
        )

    def init_one(key: Key) -> RunState:
        env_key, algo_key, run_key = first_keys(key)
        reset_key, warmup_key = jax.random.split(env_key)
        env_state, observation = envs.reset(reset_key)
        memory = algo.begin(num_envs)
        state = RunState(
            *(algo.init(algo_key), env_state, observation, run_key, jnp.int32(0)), memory=memory
        )
        return warm_up(warmup_key, state)

    def refill_one(state: RunState) -> RunState:
        _, _, key = act_keys(state.key, state.step)
        return warm_up(key, state._replace(memory=algo.begin(num_envs)))

    def update_one(state: RunState, step: Array) -> tuple[RunState, Metrics]:
        _, update_key, _ = update_keys(state.key, step)
        env_key, _, _ = act_keys(state.key, step)

        def act(carry: tuple, randomness: tuple) -> tuple:
            env_state, observation, memory = carry
            t, noise, draws = randomness
            steps_done = first_step + (step * unroll_length + t) * num_envs
            action, memory = algo.act(noise, memory, state.algo, observation, steps_done)
            env_state, transition = envs.step(draws, env_state, action)
            done = transition.terminated | transition.truncated
            memory = begin_again(algo.begin(num_envs), memory, done)
            return (env_state, transition.observation, memory), (observation, action, transition)

        kept = (step * unroll_length + jnp.arange(unroll_length)) // noise_hold
        (env_state, observation, memory), (observations, actions, transitions) = jax.lax.scan(
            act,
            (state.env, state.observation, state.memory),
            (
                jnp.arange(unroll_length),
                jax.vmap(partial(noise_at, algo, state.key, num_envs=num_envs))(kept),
                envs.draw(env_key, unroll_length),
            ),
        )
        # Always; but as a branch, which XLA cannot fuse with the reading: it would copy the replay.
        stored = jax.lax.cond(
            step >= 0,
            replay.add,
            lambda stored, _: stored,
            *(state.replay, experience(observations, actions, transitions)),
        )
        algo_state, metrics = learn(
            update_key,
            *(algo, state.algo, replay, stored, step),
            gradient_steps=gradient_steps,
            batch_size=batch_size,
        )
        rollout = make_rollout(observations, actions, (), transitions)
        state = RunState(
            algo_state, env_state, observation, state.key, state.step + 1, stored, memory
        )
        return state, {**metrics, **episode_sums(rollout)}

    def evaluate_one(state: RunState) -> tuple[Array, Array]:
        _, _, eval_key = update_keys(state.key, state.step)
        return evaluate(eval_key, env, partial(algo.act_greedy, state.algo), episodes=eval_episodes)

    return compiled_loop(
        init_one,
        update_one,
        evaluate_one,
        mesh=mesh,
        shardings_of_one=lambda shapes: sharding.like(shapes, sharding.replicated(mesh)),
        max_updates=max_updates,
        eval_episodes=eval_episodes,
        steps_per_update=num_envs * unroll_length,
        first_step=first_step,
        seed=seed,
        num_seeds=num_seeds,
        dropped=() if save_replay else ("replay",),
        refill_one=refill_one,
    )


def act_keys(key: Key, number: Array) -> tuple[Key, Key, Key]:
    """For the environments of update `number`, for draw `number` of noise, for a warm-up then."""
    act_key, _, _ = update_keys(key, number)
    env_key, noise_key, warmup_key = jax.random.split(act_key, 3)
    return env_key, noise_key, warmup_key


def noise_at(algo: OffPolicyAlgo, key: Key, number: Array, *, num_envs: int) -> PyTree:
    """What is random in acting, by the run's key and the number of the draw."""
    _, noise_key, _ = act_keys(key, number)
    return algo.draw(noise_key, (num_envs,))


def learn(
    key: Key,
    algo: OffPolicyAlgo,
    state: PyTree,
    replay: Replay,
    stored: PyTree,
    step: Array,
    *,
    gradient_steps: int,
    batch_size: int,
) -> tuple[PyTree, Metrics]:
    """`gradient_steps` of update `step`, each on a batch of its own; the means of their metrics."""
    draw_key, key = jax.random.split(key)
    places = replay.draw(draw_key, stored, (gradient_steps, batch_size))

    def learn_one(state: PyTree, inputs: tuple) -> tuple[PyTree, Metrics]:
        u, key, places = inputs
        return algo.update(key, state, replay.read(stored, places), step * gradient_steps + u)

    inputs = (jnp.arange(gradient_steps), jax.random.split(key, gradient_steps), places)
    state, metrics = jax.lax.scan(learn_one, state, inputs)
    return state, jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)


def experience(observation: Any, action: Any, transition: Transition) -> Experience:
    return Experience(
        observation=observation,
        action=action,
        reward=transition.reward,
        terminated=transition.terminated,
        truncated=transition.truncated,
        next_observation=transition.next_observation,
    )


def begin_again(start: PyTree, memory: PyTree, done: Array) -> PyTree:
    """The memory [B, ...] of exploration, with that of `start` where an episode is done [B]."""

    def select(first: Array, now: Array) -> Array:
        return jnp.where(done.reshape(done.shape + (1,) * (now.ndim - 1)), first, now)

    return jax.tree.map(select, start, memory)


def random_actions(key: Key, spec: EnvSpec, shape: tuple[int, ...]) -> Array:
    """Uniform over the action space, [*shape] or [*shape, A]."""
    space = spec.action_space
    if isinstance(space, Box):
        return jax.random.uniform(
            key, (*shape, len(space.low)), minval=space.low, maxval=space.high
        )
    return jax.random.randint(key, shape, 0, space.num_actions)


def example_of(spec: EnvSpec) -> Any:
    """One `Experience` of an environment, as shapes and dtypes: what its replay stores."""

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    observation = array(spec.observation_dtype, *spec.observation_shape)
    space = spec.action_space
    return Experience(
        observation=observation,
        action=array(jnp.float32, len(space.low)) if isinstance(space, Box) else array(jnp.int32),
        reward=array(jnp.float32),
        terminated=array(jnp.bool_),
        truncated=array(jnp.bool_),
        next_observation=observation,
    )
