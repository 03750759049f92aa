"""No random number of a run is drawn twice: every consumer gets a key of its own."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import make
from rljax.envs.gymnasium import make_host
from rljax.loops.on_policy import jax_loop
from rljax.loops.on_policy_host import host_loop
from rljax.types import Algo, Discrete, Env, EnvSpec, Step

NUM_ENVS, LENGTH, UPDATES = 4, 3, 4


class Seen(NamedTuple):
    """An algorithm's state that remembers the keys it was given."""

    init: jax.Array
    updates: jax.Array  # [UPDATES, 2]
    draws: jax.Array  # [UPDATES, 2]: of the policy's noise
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
            zeros,
            jnp.zeros((UPDATES, LENGTH, NUM_ENVS, 2, 2), jnp.uint32),
            jnp.int32(0),
        )

    def draw(key, shape):
        assert shape == (LENGTH, NUM_ENVS)  # once, for all there is to draw
        return jnp.broadcast_to(jax.random.key_data(key), (*shape, 2))

    def act(noise, state, observations):
        return noise, jnp.zeros(NUM_ENVS)

    def update(key, state, rollout):
        i = state.count
        env = jnp.stack([rollout.next_observations, rollout.observations], axis=-2)
        state = Seen(
            state.init,
            state.updates.at[i].set(jax.random.key_data(key)),
            state.draws.at[i].set(rollout.actions[0, 0]),
            state.env.at[i].set(env),
            i + 1,
        )
        return state, {"loss/policy": jnp.float32(0)}

    return Algo(init, draw, act, lambda state, observations: jnp.zeros(2, jnp.int32), update)


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
    keys = [seen.init, *seen.updates, *seen.draws, *seen.env.reshape(-1, 2)]
    rows = descendants(np.stack(keys))
    assert len(rows) == (1 + UPDATES * (2 + 2 * LENGTH * NUM_ENVS)) * (1 + 8 + 64)
    assert len(np.unique(rows, axis=0)) == len(rows)


def number(key):
    return jax.random.uniform(key)


def numbers_algo() -> Algo:
    """Its state is what it last drew: 24 bits of each key, and the noise of each action."""

    def act(noise, state, observations):
        return jnp.zeros(len(observations), jnp.int32), noise

    def update(key, state, rollout):
        return (number(key), rollout.behaviour_log_probs), {"loss/policy": number(key)}

    return Algo(
        init=lambda key: (number(key), jnp.zeros((LENGTH, NUM_ENVS))),
        draw=jax.random.uniform,
        act=act,
        act_greedy=lambda state, observations: jnp.zeros(len(observations), jnp.int32),
        update=update,
    )


@pytest.mark.parametrize("hold", [1, 2])
@pytest.mark.parametrize("kind", ["jax", "host"])
def test_numbers_are_drawn_afresh_in_every_step_and_update_of_every_seed(kind, hold):
    """All that acts, [LENGTH, NUM_ENVS], and all that updates; noise may be held for two steps."""
    numbers = []
    for seed in (0, 1):
        settings = dict(
            num_envs=NUM_ENVS,
            unroll_length=LENGTH,
            max_updates=1,
            eval_episodes=1,
            seed=seed,
            noise_hold=hold,
        )
        if kind == "jax":
            loop = jax_loop(make("CartPole-v1"), numbers_algo(), **settings)
        else:
            loop = host_loop(partial(make_host, "CartPole-v1"), numbers_algo(), **settings)
        state = loop.init()
        numbers.append(float(state.algo[0]))
        for _ in range(UPDATES):
            state, _ = loop.advance(state, 1)
            noise = np.asarray(state.algo[1])
            np.testing.assert_array_equal(noise, noise[hold * (np.arange(LENGTH) // hold)])
            numbers += [float(state.algo[0]), *noise[::hold].ravel().tolist()]
    draws = -(-LENGTH // hold)
    assert len(set(numbers)) == len(numbers) == 2 * (1 + UPDATES * (1 + draws * NUM_ENVS))
