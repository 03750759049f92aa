"""Evaluation: the policy's mode in environments of its own, the first episode of each."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Array, Env, HostVectorEnv, Key, PyTree

ActGreedy = Callable[[Array], Array]  # observations [N, ...] -> actions [N, ...]


def evaluate(key: Key, env: Env, act: ActGreedy, *, episodes: int) -> tuple[Array, Array]:
    """Runs `episodes` copies of a pure-JAX environment until each has ended its first episode.

    One episode of each environment counts, however long the others take: taking the first N
    episodes to finish would favour short ones.

    Args:
      key: consumed.
      env: the environment; its episodes end by themselves.
      act: the policy.
      episodes: N, at least 1.

    Returns:
      Returns [N] float32 and lengths [N] int32.
    """
    reset_key, step_key = jax.random.split(key)
    state, observation = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))
    start = (
        jnp.int32(0),
        state,
        observation,
        jnp.ones(episodes, bool),
        jnp.zeros(episodes, jnp.float32),
        jnp.zeros(episodes, jnp.int32),
    )

    def running(carry) -> Array:
        return jnp.any(carry[3])

    def step(carry):
        t, state, observation, alive, returns, lengths = carry
        keys = jax.random.split(jax.random.fold_in(step_key, t), episodes)
        state, after = jax.vmap(env.step)(keys, state, act(observation))
        returns += jnp.where(alive, after.reward, 0.0)
        lengths += alive.astype(jnp.int32)
        alive &= ~(after.terminated | after.truncated)
        return t + 1, state, after.observation, alive, returns, lengths

    *_, returns, lengths = jax.lax.while_loop(running, step, start)
    return returns, lengths


def evaluate_host(
    seeds: Sequence[int], env: HostVectorEnv, act: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The same for host environments: returns [N] and lengths [N] of the first episode of each."""
    observation = env.reset(seeds)
    returns = np.zeros(env.num_envs, np.float32)
    lengths = np.zeros(env.num_envs, np.int32)
    alive = np.ones(env.num_envs, bool)
    while alive.any():
        transition = env.step(act(observation))
        observation = np.asarray(transition.observation)
        ended = alive & (transition.terminated | transition.truncated)
        returns = np.where(ended, transition.episode_return, returns)
        lengths = np.where(ended, transition.episode_length, lengths)
        alive &= ~ended
    return returns, lengths


def summarize(returns: PyTree, lengths: PyTree) -> dict[str, np.ndarray]:
    """[S, N] to [S]: mean, std (ddof 0), min and max of the returns, mean length, count."""
    returns, lengths = np.asarray(returns, np.float64), np.asarray(lengths, np.float64)
    return {
        "eval/return_mean": returns.mean(-1),
        "eval/return_std": returns.std(-1),
        "eval/return_min": returns.min(-1),
        "eval/return_max": returns.max(-1),
        "eval/length_mean": lengths.mean(-1),
        "eval/episodes": np.full(returns.shape[:-1], returns.shape[-1], np.float64),
    }


EVAL_METRICS = tuple(summarize(np.zeros((1, 1)), np.zeros((1, 1))))
