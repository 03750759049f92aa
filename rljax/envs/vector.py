"""B copies of one pure-JAX environment, stepped together, reset where they end."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rljax.types import Array, Env, Key, PyTree, Transition, VectorEnv


class Draws(NamedTuple):
    key: Key  # for the step itself
    fresh: tuple[PyTree, Array]  # state and observation of the episode that may begin


class VectorState(NamedTuple):
    env: PyTree  # the environment's own state, [B, ...]
    episode_return: Array  # float32 [B]: rewards of the running episode so far
    episode_length: Array  # int32 [B]: steps of the running episode so far


def vectorize(env: Env, num_envs: int) -> VectorEnv:
    """Steps `num_envs` copies of `env` together; each is reset in the step that ends its episode.

    Each environment has keys of its own, so what it does depends neither on how many devices the B
    environments are spread over nor on the other environments.

    Args:
      env: the environment.
      num_envs: B, at least 1.

    Returns:
      A `VectorEnv`. `next_observation` of its transitions is the one before the reset; there is no
      mask, as every call is a step.

    Raises:
      ValueError: if `num_envs` is below 1.

    >>> from rljax.envs import make
    >>> envs = vectorize(make("CartPole-v1"), 3)
    >>> state, observation = envs.reset(jax.random.key(0))
    >>> observation.shape
    (3, 4)
    """
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}: it must be at least 1")

    def reset(key: Key) -> tuple[VectorState, Array]:
        env_state, observation = jax.vmap(env.reset)(jax.random.split(key, num_envs))
        return VectorState(
            env_state, jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32)
        ), observation

    def draw(key: Key, length: int) -> Draws:
        keys = jax.random.split(key, (2, length, num_envs))
        return Draws(keys[0], jax.vmap(jax.vmap(env.reset))(keys[1]))

    def step(draws: Draws, state: VectorState, actions: Array) -> tuple[VectorState, Transition]:
        return jax.vmap(step_one)(draws, state, actions)

    def step_one(draws: Draws, state: VectorState, action: Array) -> tuple[VectorState, Transition]:
        env_state, after = env.step(draws.key, state.env, action)
        done = after.terminated | after.truncated
        episode_return = state.episode_return + after.reward
        episode_length = state.episode_length + 1

        env_state, observation = jax.tree.map(
            lambda fresh, old: jnp.where(done, fresh, old),
            draws.fresh,
            (env_state, after.observation),
        )
        transition = Transition(
            observation=observation,
            next_observation=after.observation,
            reward=after.reward,
            terminated=after.terminated,
            truncated=after.truncated,
            episode_return=episode_return,
            episode_length=episode_length,
            mask=None,
        )
        running = VectorState(
            env_state,
            jnp.where(done, 0.0, episode_return),
            jnp.where(done, 0, episode_length),
        )
        return running, transition

    return VectorEnv(reset, draw, step, env.spec, num_envs)
