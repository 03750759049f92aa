"""What the off-policy loops tell an algorithm, as one sees it that writes everything down.

Steps of the environment and of the gradient, batches, noise, and the memory of exploration. Actions
are the noise itself, uniform in [0, 1) like those of the warm-up, and the replay keeps them all: a
number that was drawn twice would be there twice.
"""

from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.data.replay import make_replay
from rljax.data.windows import one_step
from rljax.envs.gymnasium import make_host
from rljax.loops import off_policy, off_policy_host
from rljax.types import Box, Env, EnvSpec, OffPolicyAlgo, Step

NUM_ENVS, LENGTH, UPDATES, GRADIENT_STEPS, BATCH = 2, 3, 4, 5, 7
WARMUP, EPISODE = 8, 5  # four steps of each environment; of an episode
ZERO, UNIT = np.zeros(1, "f"), np.ones(1, "f")


class Notes(NamedTuple):
    updates: jax.Array  # of each gradient step, what it was told
    drawn: jax.Array  # a number drawn from the key of each
    count: jax.Array


class Clock(gymnasium.Env):
    """Observations and rewards tell the step of the episode; truncated after EPISODE of them."""

    observation_space = gymnasium.spaces.Box(ZERO, EPISODE * UNIT)
    action_space = gymnasium.spaces.Box(ZERO, UNIT)
    metadata = {"render_modes": []}  # noqa: RUF012
    render_mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time, np.float32), float(self.time), False, False, {}


def jax_clock() -> Env:
    def step(key, time, action):
        time += 1
        number = jnp.float32(time)
        return time, Step(number[None], number, jnp.bool_(False), time >= EPISODE)

    spec = EnvSpec("Clock-v0", (1,), np.float32, Box(ZERO, UNIT), EPISODE)
    return Env(lambda key: (jnp.int32(0), jnp.zeros(1)), step, spec)


def spy() -> OffPolicyAlgo:
    """Its memory counts the steps of the episode and keeps the step that it was told last."""

    def act(noise, memory, state, observations, step):
        count, _ = memory
        steps_done = jnp.broadcast_to(jnp.asarray(step, jnp.int32), (NUM_ENVS,))
        return noise, (count + 1, steps_done)

    def begin(num_envs):
        return jnp.zeros(num_envs, jnp.int32), jnp.full(num_envs, -1, jnp.int32)

    def update(key, state, batch, step):
        assert batch.action.shape == (BATCH, 1)
        i = state.count
        state = Notes(
            state.updates.at[i].set(step),
            state.drawn.at[i].set(jax.random.uniform(key)),
            i + 1,
        )
        return state, {"loss/critic": jnp.mean(batch.reward), "step": jnp.float32(step)}

    size = UPDATES * GRADIENT_STEPS
    return OffPolicyAlgo(
        init=lambda key: Notes(jnp.zeros(size, jnp.int32), jnp.zeros(size), jnp.int32(0)),
        draw=lambda key, shape: jax.random.uniform(key, (*shape, 1)),
        begin=begin,
        act=act,
        act_greedy=lambda state, observations: jnp.zeros((len(observations), 1)),
        update=update,
    )


def make_loop(kind, mode="same_step", **changes):
    replay = make_replay(
        off_policy.example_of(jax_clock().spec),
        capacity=100,
        num_envs=NUM_ENVS,
        window=one_step(),
        memory_limit=10**9,
    )
    settings = dict(
        num_envs=NUM_ENVS,
        unroll_length=LENGTH,
        gradient_steps=GRADIENT_STEPS,
        batch_size=BATCH,
        warmup_steps=WARMUP,
        max_updates=UPDATES,
        eval_episodes=2,
    )
    settings |= changes
    if kind == "jax":
        return off_policy.jax_loop(jax_clock(), spy(), replay, **settings)

    def make_env(num_envs):
        return make_host("Clock-v0", num_envs, autoreset_mode=mode)

    return off_policy_host.host_loop(make_env, spy(), replay, **settings)


@pytest.fixture(autouse=True)
def _clock():
    gymnasium.register("Clock-v0", Clock, max_episode_steps=EPISODE)
    yield
    del gymnasium.registry["Clock-v0"]


@pytest.mark.parametrize("kind", ["jax", "host"])
def test_counts(kind):
    """The memory holds the step told last and the length of the running episode."""
    loop = make_loop(kind)
    state = loop.init()
    assert (loop.first_step, loop.steps_per_update) == (WARMUP, NUM_ENVS * LENGTH)
    for update in range(UPDATES):
        state, metrics = loop.advance(state, 1)
        steps = WARMUP // NUM_ENVS + (update + 1) * LENGTH  # of each environment
        lengths, told = state.memory
        # The warm-up is not in it: an episode of five began before, four of its steps gone.
        in_episode = steps % EPISODE
        np.testing.assert_array_equal(state.observation, np.full((NUM_ENVS, 1), in_episode))
        np.testing.assert_array_equal(lengths, in_episode)
        last = WARMUP + (update * LENGTH + LENGTH - 1) * NUM_ENVS
        np.testing.assert_array_equal(told, last if in_episode else -1)
        np.testing.assert_array_equal(state.replay.size, steps)
        # Means over the gradient steps 5u ... 5u + 4.
        np.testing.assert_allclose(metrics["step"], 5 * update + 2)
        assert metrics["episode/count"] == NUM_ENVS * (in_episode < LENGTH)
    np.testing.assert_array_equal(state.algo.updates, np.arange(UPDATES * GRADIENT_STEPS))
    assert state.algo.count == UPDATES * GRADIENT_STEPS


def kept(state):
    """Actions [T, NUM_ENVS] in the order of their steps, of a ring that has not gone round."""
    size = int(state.replay.size[0])
    return np.asarray(state.replay.storage.action).reshape(-1, NUM_ENVS)[:size]


@pytest.mark.parametrize("hold", [1, 2])
@pytest.mark.parametrize("kind", ["jax", "host"])
def test_numbers_are_drawn_once_by_every_step_and_update_of_every_seed(kind, hold):
    """Held for two steps the noise is that of step 0, 0, 2, 2, ..., through all updates."""
    numbers = []
    for seed in range(2):
        loop = make_loop(kind, seed=seed, noise_hold=hold)
        state, _ = loop.advance(loop.init(), UPDATES)
        actions = kept(state)
        acted = actions[WARMUP // NUM_ENVS :]
        np.testing.assert_array_equal(acted, acted[hold * (np.arange(UPDATES * LENGTH) // hold)])
        numbers += [*actions[: WARMUP // NUM_ENVS].ravel(), *acted[::hold].ravel()]
        numbers += [*np.asarray(state.algo.drawn)]
    steps = WARMUP // NUM_ENVS + UPDATES * LENGTH // hold
    wanted = 2 * (steps * NUM_ENVS + UPDATES * GRADIENT_STEPS)
    assert len(set(map(float, numbers))) == len(numbers) == wanted


@pytest.mark.parametrize("kind", ["jax", "host"])
def test_numbers_of_a_second_warm_up_are_new(kind):
    loop = make_loop(kind, save_replay=False)
    state, _ = loop.advance(loop.init(), 2)
    numbers = kept(state).ravel().tolist()
    state = loop.load(loop.save(state))
    np.testing.assert_array_equal(state.memory[0], 0)  # its episodes may have ended since
    state, _ = loop.advance(state, 2)
    numbers += kept(state).ravel().tolist()
    assert len(numbers) == 2 * (WARMUP + 2 * NUM_ENVS * LENGTH)
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_both_ways_to_reset_store_the_same_steps(mode):
    """Each leads from t to t + 1 and is paid t + 1; a call that was spent on a reset is not there.

    Twelve calls after four of the warm-up: of sixteen, "next_step" spends those after 5 and 10.
    """
    loop = make_loop("host", mode)
    state, _ = loop.advance(loop.init(), UPDATES)
    number = 16 if mode == "same_step" else 14
    np.testing.assert_array_equal(state.replay.size, number)
    steps = jax.tree.map(
        lambda x: np.asarray(x).reshape(-1, NUM_ENVS)[:number], state.replay.storage
    )
    times = np.tile(np.arange(number)[:, None] % EPISODE, NUM_ENVS)
    np.testing.assert_array_equal(steps.observation, times)
    np.testing.assert_array_equal(steps.next_observation, times + 1)
    np.testing.assert_array_equal(steps.reward, times + 1)
    np.testing.assert_array_equal(steps.truncated, times == EPISODE - 1)
    assert not steps.terminated.any()
    # The memory of exploration counts the steps of the episode, not the calls.
    np.testing.assert_array_equal(state.memory[0], number % EPISODE)
