"""Rollouts against loops written out: one environment and one step at a time."""

from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.data.rollout import collect, draw_noise, episode_sums, unroll
from rljax.envs.gymnasium import make_host
from rljax.envs.vector import vectorize
from rljax.types import Discrete, Env, EnvSpec, Rollout, Step

T, B = 24, 3
LIMIT = 5


class WalkState(NamedTuple):
    x: jax.Array
    time: jax.Array


def walk() -> Env:
    """A random walk of two pushes, for at most five steps; below -1 it has ended. All is random."""

    def reset(key):
        x = jax.random.normal(key)
        return WalkState(x, jnp.int32(0)), jnp.stack([x, 0.0])

    def step(key, state, action):
        x = state.x + jax.random.normal(key) + jnp.where(action == 1, 0.5, -0.5)
        state = WalkState(x, state.time + 1)
        observation = jnp.stack([x, state.time.astype(jnp.float32)])
        return state, Step(observation, 2 * x, x < -1.0, state.time >= LIMIT)

    return Env(reset, step, EnvSpec("Walk-v0", (2,), np.float32, Discrete(2), LIMIT))


def act(noise, observations):
    """A rule with some noise; the "log-probability" is that noise, and so tells it."""
    return (observations[:, 0] + noise > 0.5).astype(jnp.int32), noise


@pytest.fixture(scope="module")
def unrolled():
    env = vectorize(walk(), B)
    start = env.reset(jax.random.key(8))
    run = jax.jit(lambda key, *start: unroll(key, env, jax.random.uniform, act, *start, length=T))
    return start, run(jax.random.key(9), *start)


@pytest.fixture(scope="module")
def by_hand(unrolled):
    """The same steps of each environment on its own."""
    env = walk()
    step = jax.jit(env.step)
    act_key, env_key = jax.random.split(jax.random.key(9))
    noise = jax.random.uniform(act_key, (T, B))
    draws = vectorize(env, B).draw(env_key, T)
    (vector_state, observations), _ = unrolled
    states = [jax.tree.map(lambda x, b=b: x[b], vector_state.env) for b in range(B)]
    observations = [np.asarray(observations[b]) for b in range(B)]
    returns, lengths = np.zeros(B, np.float32), np.zeros(B, np.int32)
    rows = []
    for t in range(T):
        actions, log_probs = act(noise[t], jnp.stack(observations))
        for b in range(B):
            states[b], after = step(draws.key[t, b], states[b], actions[b])
            returns[b] += after.reward
            lengths[b] += 1
            rows.append(
                Rollout(
                    observations=observations[b],
                    actions=actions[b],
                    behaviour_log_probs=log_probs[b],
                    rewards=after.reward,
                    terminated=after.terminated,
                    truncated=after.truncated,
                    next_observations=after.observation,
                    episode_returns=returns[b],
                    episode_lengths=lengths[b],
                    mask=None,
                )
            )
            observations[b] = np.asarray(after.observation)
            if after.terminated or after.truncated:
                states[b], first = jax.tree.map(lambda x, t=t, b=b: x[t, b], draws.fresh)
                observations[b] = np.asarray(first)
                returns[b], lengths[b] = 0.0, 0
    rollout = jax.tree.map(lambda *xs: np.stack(xs).reshape(T, B, *np.shape(xs[0])), *rows)
    return states, np.stack(observations), rollout


@pytest.mark.parametrize("field", Rollout._fields[:-1])
def test_unroll_is_the_loop_written_out(field, unrolled, by_hand):
    actual, wanted = getattr(unrolled[1][2], field), getattr(by_hand[2], field)
    assert actual.shape == wanted.shape
    if wanted.dtype == np.float32:
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(actual, wanted)


def test_every_step_of_an_unroll_counts(unrolled):
    assert Rollout._fields[-1] == "mask"
    assert unrolled[1][2].mask is None


def test_unroll_ends_where_the_loop_ends(unrolled, by_hand):
    state, observation, _ = unrolled[1]
    states, wanted, _ = by_hand
    np.testing.assert_allclose(observation, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state.env.time, [s.time for s in states])


def test_the_walk_has_seen_everything(unrolled):
    """Both kinds of end and both at once, or the comparison above says little."""
    rollout = unrolled[1][2]
    ends = set(zip(np.ravel(rollout.terminated).tolist(), np.ravel(rollout.truncated).tolist()))
    assert {(False, False), (True, False), (False, True)} <= ends
    assert len(np.unique(rollout.actions)) == 2


def test_next_observation_is_the_one_before_the_reset(unrolled):
    rollout = jax.tree.map(np.asarray, unrolled[1][2])
    done = (rollout.terminated | rollout.truncated)[:-1]
    after, following = rollout.next_observations[:-1], rollout.observations[1:]
    np.testing.assert_array_equal(after[~done], following[~done])
    np.testing.assert_array_equal(following[done][:, 1], 0.0)  # a fresh episode, at time 0
    assert (after[done][:, 1] >= 1).all()
    assert (rollout.next_observations[rollout.truncated][:, 1] == LIMIT).all()


def test_episode_sums_of_an_unroll(unrolled):
    rollout = jax.tree.map(np.asarray, unrolled[1][2])
    returns, lengths = [], []
    for b in range(B):
        total, length = 0.0, 0
        for t in range(T):
            total, length = total + float(rollout.rewards[t, b]), length + 1
            if rollout.terminated[t, b] or rollout.truncated[t, b]:
                returns.append(total)
                lengths.append(length)
                total, length = 0.0, 0
    sums = episode_sums(unrolled[1][2])
    assert float(sums["episode/count"]) == len(returns) > 10
    assert float(sums["episode/length_sum"]) == sum(lengths)
    np.testing.assert_allclose(sums["episode/return_sum"], sum(returns), rtol=1e-5, atol=1e-4)
    assert {x.dtype for x in sums.values()} == {np.dtype(np.float32)}


def draw_pair(key, shape):
    """Noise as a tree of two shapes."""
    first, second = jax.random.split(key)
    return {"a": jax.random.normal(first, (*shape, 3)), "b": jax.random.bits(second, shape)}


@pytest.mark.parametrize("hold", [1, 2, 7, 50])
def test_noise_is_held(hold):
    """13 steps of 4 environments: step t has the draw t // hold, and no two draws are alike."""
    key = jax.random.key(4)
    noise = draw_noise(key, draw_pair, 4, length=13, hold=hold)
    drawn = draw_pair(key, (-(-13 // hold), 4))
    assert noise["a"].shape == (13, 4, 3)
    for t in range(13):
        for name in noise:
            np.testing.assert_array_equal(noise[name][t], drawn[name][t // hold])
    assert len(np.unique(noise["b"])) == 4 * -(-13 // hold)


def test_an_unroll_holds_the_policys_noise_and_nothing_else():
    env = vectorize(walk(), B)
    start = env.reset(jax.random.key(8))
    _, _, rollout = jax.jit(
        lambda key: unroll(key, env, jax.random.uniform, act, *start, length=T, hold=5)
    )(jax.random.key(9))
    noise = np.asarray(rollout.behaviour_log_probs)
    np.testing.assert_array_equal(noise, noise[5 * (np.arange(T) // 5)])
    assert len(np.unique(noise)) == 5 * B
    # The walk's own pushes, within and between the episodes, are new in every step.
    pushes = rollout.next_observations - rollout.observations
    assert len(np.unique(pushes[..., 0])) == T * B


def test_episode_sums_by_hand_skip_what_is_masked():
    # Ends at (0, 0) and (1, 1); the one at (1, 0) is in a row where no step was taken.
    flat = jnp.zeros((2, 2), bool)
    rollout = Rollout(
        observations=jnp.zeros((2, 2, 1)),
        actions=jnp.zeros((2, 2), jnp.int32),
        behaviour_log_probs=jnp.zeros((2, 2)),
        rewards=jnp.zeros((2, 2)),
        terminated=flat.at[0, 0].set(True).at[1, 0].set(True),
        truncated=flat.at[1, 1].set(True),
        next_observations=jnp.zeros((2, 2, 1)),
        episode_returns=jnp.array([[2.5, jnp.nan], [jnp.nan, 4.0]]),
        episode_lengths=jnp.array([[3, 9], [9, 4]], jnp.int32),
        mask=jnp.array([[True, True], [False, True]]),
    )
    sums = episode_sums(rollout)
    assert float(sums["episode/count"]) == 2.0
    assert float(sums["episode/return_sum"]) == 6.5
    assert float(sums["episode/length_sum"]) == 7.0


def balance(t, observation):
    """Balances the pole in environment 0 and pushes the others over; tells t."""
    push = observation @ np.array([0.1, 0.3, 3.0, 1.0]) > 0
    push[1:] = t % 3 == 0
    return push.astype(np.int32), np.full(len(observation), t, np.float32)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_collect_is_gymnasium_stepped_by_hand(mode):
    """Each environment on its own, seeded alike, reset by hand where it ends."""
    length, seeds = 40, [3, 4, 5]
    host = make_host("CartPole-v1", 3, autoreset_mode=mode)
    first = host.reset(seeds)
    observation, rollout = collect(host, balance, first, length=length)
    host.close()
    assert rollout.observations.shape == (length, 3, 4)
    np.testing.assert_array_equal(rollout.behaviour_log_probs[:, 0], np.arange(length))
    np.testing.assert_array_equal(rollout.observations[0], first)

    ended = 0
    for b, seed in enumerate(seeds):
        env = gymnasium.make("CartPole-v1")
        now, _ = env.reset(seed=seed)
        total, steps = 0.0, 0
        for t in range(length):
            if not rollout.mask[t, b]:
                assert mode == "next_step"
                continue
            np.testing.assert_array_equal(rollout.observations[t, b], now)
            now, reward, terminated, truncated, _ = env.step(int(rollout.actions[t, b]))
            total, steps = total + reward, steps + 1
            np.testing.assert_array_equal(rollout.next_observations[t, b], now)
            assert rollout.rewards[t, b] == reward
            assert rollout.terminated[t, b] == terminated
            assert rollout.truncated[t, b] == truncated
            assert rollout.episode_returns[t, b] == total
            assert rollout.episode_lengths[t, b] == steps
            if terminated or truncated:
                now, _ = env.reset()
                total, steps, ended = 0.0, 0, ended + 1
        if rollout.mask[-1, b] and not (rollout.terminated[-1, b] and mode == "next_step"):
            np.testing.assert_array_equal(observation[b], now)
        env.close()
    assert ended >= 4
    assert (~rollout.mask).any() == (mode == "next_step")
