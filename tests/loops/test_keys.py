"""No random number of a run is drawn twice: every consumer gets a key of its own."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs.gymnasium import make_host
from rljax.loops.on_policy import jax_loop
from rljax.loops.on_policy_host import host_loop
from rljax.types import Algo, Discrete, Env, EnvSpec, Step

NUM_ENVS, LENGTH, UPDATES = 4, 3, 4


class Seen(NamedTuple):
    """An algorithm's state that remembers the keys it was given."""

    init: jax.Array
    updates: jax.Array  # [UPDATES, 2]
    acts: jax.Array  # [UPDATES, LENGTH, 2]
    env: jax.Array  # [UPDATES, LENGTH, NUM_ENVS, 2, 2]: of its step, and of the reset before it
    count: jax.Array


def spy_env() -> Env:
    """Episodes of one step; observations tell the key of the reset, rewards that of the step."""

    def reset(key):
        return jax.random.key_data(key), jax.random.key_data(key)

    def step(key, state, action):
        data = jax.random.key_data(key)
        return state, Step(data, jnp.float32(0), jnp.bool_(True), jnp.bool_(False))

    return Env(reset, step, EnvSpec("Spy-v0", (2,), np.uint32, Discrete(2), 1))


def spy_algo() -> Algo:
    def init(key):
        zeros = jnp.zeros((UPDATES, 2), jnp.uint32)
        return Seen(
            jax.random.key_data(key),
            zeros,
            jnp.zeros((UPDATES, LENGTH, 2), jnp.uint32),
            jnp.zeros((UPDATES, LENGTH, NUM_ENVS, 2, 2), jnp.uint32),
            jnp.int32(0),
        )

    def act(key, state, observations):
        data = jax.random.key_data(key)
        return jnp.broadcast_to(data, (NUM_ENVS, 2)), jnp.zeros(NUM_ENVS)

    def update(key, state, rollout):
        i = state.count
        env = jnp.stack([rollout.next_observations, rollout.observations], axis=-2)
        state = Seen(
            state.init,
            state.updates.at[i].set(jax.random.key_data(key)),
            state.acts.at[i].set(rollout.actions[:, 0]),
            state.env.at[i].set(env),
            i + 1,
        )
        return state, {"loss/policy": jnp.float32(0)}

    return Algo(init, act, lambda state, observations: jnp.zeros(2, jnp.int32), update)


def descendants(keys):
    """The keys themselves and what two levels of `split` make of them, as rows of numbers."""

    def split(keys):
        return jax.vmap(lambda key: jax.random.split(key, 8))(keys).ravel()

    keys = jax.random.wrap_key_data(jnp.asarray(keys))
    children = split(keys)
    rows = jnp.concatenate([keys, children, split(children)])
    return np.asarray(jax.random.key_data(rows))


def test_every_key_and_what_it_may_be_split_into_is_used_once():
    loop = jax_loop(
        spy_env(),
        spy_algo(),
        num_envs=NUM_ENVS,
        unroll_length=LENGTH,
        max_updates=UPDATES,
        eval_episodes=2,
    )
    state, _ = loop.advance(loop.init(), UPDATES)
    seen = state.algo
    keys = [seen.init, *seen.updates, *seen.acts.reshape(-1, 2), *seen.env.reshape(-1, 2)]
    rows = descendants(np.stack(keys))
    assert len(rows) == (1 + UPDATES * (1 + LENGTH + 2 * LENGTH * NUM_ENVS)) * (1 + 8 + 64)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_host_loop_draws_afresh_in_every_step_and_update():
    """24 bits of each key that acts, [UPDATES, LENGTH], and of each that updates: all different."""

    def number(key):
        return jax.random.uniform(key)

    def act(key, state, observations):
        zeros = jnp.zeros(len(observations), jnp.int32)
        return zeros, jnp.full(len(observations), number(key))

    def update(key, state, rollout):
        seen = jnp.append(rollout.behaviour_log_probs[:, 0], number(key))
        return state.at[0].set(seen), {"loss/policy": number(key)}

    algo = Algo(
        init=lambda key: jnp.full((1, LENGTH + 1), number(key)),
        act=act,
        act_greedy=lambda state, observations: jnp.zeros(len(observations), jnp.int32),
        update=update,
    )
    numbers = []
    for seed in (0, 1):
        loop = host_loop(
            partial(make_host, "CartPole-v1"),
            algo,
            num_envs=2,
            unroll_length=LENGTH,
            max_updates=1,
            eval_episodes=1,
            seed=seed,
        )
        state = loop.init()
        numbers.append(float(state.algo[0, 0]))
        for _ in range(UPDATES):
            state, _ = loop.advance(state, 1)
            numbers.extend(np.asarray(state.algo[0]).tolist())
    assert len(set(numbers)) == len(numbers) == 2 * (1 + UPDATES * (LENGTH + 1))
