"""Environments that play given arrays [T, B], pure-JAX and host, whatever the actions."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Discrete, EnvSpec, HostVectorEnv, Transition, VectorEnv

SPEC = EnvSpec("Scripted-v0", (1,), np.float32, Discrete(2), 1000)


def script(rewards, terminated=None, truncated=None, mask=None) -> Transition:
    """[T, B] of each; the return of an episode is said to be 1000 + t."""
    rewards = np.asarray(rewards, np.float32)

    def flags(x, default):
        return np.broadcast_to(np.asarray(default if x is None else x, bool), rewards.shape)

    time = np.broadcast_to(np.arange(len(rewards))[:, None], rewards.shape)
    return Transition(
        observation=time[..., None].astype(np.float32) + 1,  # pyright: ignore
        next_observation=time[..., None].astype(np.float32) + 2,  # pyright: ignore
        reward=rewards,  # pyright: ignore
        terminated=flags(terminated, False),  # pyright: ignore
        truncated=flags(truncated, False),  # pyright: ignore
        episode_return=(1000 + time).astype(np.float32),  # pyright: ignore
        episode_length=time.astype(np.int32),  # pyright: ignore
        mask=flags(mask, True),  # pyright: ignore
    )


def jax_player(steps: Transition) -> VectorEnv:
    assert np.all(steps.mask)  # in pure-JAX environments every call is a step
    steps, num_envs = steps._replace(mask=None), steps.reward.shape[1]

    def reset(key):
        return jnp.int32(0), jnp.zeros((num_envs, 1))

    def draw(key, length):
        return jnp.zeros((length, num_envs))  # nothing is random

    def step(draws, t, actions):
        return t + 1, jax.tree.map(lambda x: jnp.asarray(x)[t], steps)

    return VectorEnv(reset, draw, step, SPEC, num_envs)


def host_player(steps: Transition) -> HostVectorEnv:
    num_envs = steps.reward.shape[1]
    memory = {"t": np.array(0)}

    def observe():
        return np.full((num_envs, 1), memory["t"], np.float32)

    def reset(seed):
        memory["t"] = np.array(0)
        return observe()

    def step(actions):
        memory["t"] = memory["t"] + 1
        return Transition(*(x[memory["t"] - 1] for x in steps))

    def restore(tree):
        memory["t"] = tree["t"].copy()
        return observe()

    return HostVectorEnv(reset, step, lambda: dict(memory), restore, lambda: None, SPEC, num_envs)
