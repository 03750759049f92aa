"""What is special about EnvPool's environments; test_conformance.py has what all share."""

import sys

import gymnasium
import jax
import numpy as np
import pytest

from experiments.configs.ppo_cartpole import get_config
from rljax.algos import ppo
from rljax.envs.envpool import make_envpool
from rljax.envs.host_transforms import normalize_rewards
from rljax.envs.mujoco import quiet_models
from rljax.loops.on_policy_host import host_loop

CARTPOLE = "CartPole-v1"


def cartpole_state(observation):
    return observation.astype(np.float64)


def pendulum_state(observation):
    cos, sin, velocity = observation.astype(np.float64)
    return np.array([np.arctan2(sin, cos), velocity])


@pytest.mark.parametrize(
    ("name", "state"), [(CARTPOLE, cartpole_state), ("Pendulum-v1", pendulum_state)]
)
def test_each_step_is_gymnasiums_from_the_same_observation(name, state):
    envs = make_envpool(name, 2)
    theirs = gymnasium.make(name, disable_env_checker=True).unwrapped
    theirs.reset(seed=0)
    rng = np.random.default_rng(0)
    observation, compared = envs.reset(3), 0
    for _ in range(60):
        if name == CARTPOLE:
            actions = rng.integers(0, 2, 2).astype(np.int32)
        else:
            actions = rng.uniform(-3, 3, (2, 1)).astype(np.float32)  # beyond the bounds at times
        step = envs.step(actions)
        for b in range(2):
            theirs.state, theirs.steps_beyond_terminated = state(observation[b]), None
            expected, reward, terminated, *_ = theirs.step(actions[b])
            if not (name == "Pendulum-v1" and abs(expected[2]) == 8):  # its docstring says why
                np.testing.assert_allclose(step.next_observation[b], expected, rtol=1e-4, atol=1e-4)
                compared += 1
            np.testing.assert_allclose(step.reward[b], reward, rtol=1e-4, atol=1e-4)
            assert step.terminated[b] == terminated
        observation = step.observation
    assert compared > 100
    envs.close()


def test_halfcheetah_is_gymnasiums():
    name = "HalfCheetah-v5"
    envs = make_envpool(name, 1)
    with quiet_models(name):
        theirs = gymnasium.make(name, disable_env_checker=True).unwrapped
    theirs.reset(seed=0)
    rng = np.random.default_rng(0)
    observation = envs.reset(3)
    for _ in range(20):
        actions = rng.uniform(-1, 1, (1, 6)).astype(np.float32)
        # An observation lacks only the place along the track, on which nothing depends.
        theirs.set_state(np.append(0.0, observation[0, :8]), observation[0, 8:])
        expected, reward, *_ = theirs.step(actions[0])
        step = envs.step(actions)
        np.testing.assert_allclose(step.next_observation[0], expected, rtol=1e-2, atol=1e-2)
        np.testing.assert_allclose(step.reward[0], reward, rtol=1e-2, atol=1e-2)
        observation = step.observation
    envs.close()


def test_float64_actions_of_mujoco_are_clipped_not_misread():
    results = []
    for size in (1.0, 7.5):
        envs = make_envpool("HalfCheetah-v5", 3)
        envs.reset(0)
        signs = np.float32([[1, -1, 1, -1, 1, -1], [1, 1, 1, 1, 1, 1], [-1, 1, 1, -1, -1, 1]])
        results.append([envs.step(size * signs).next_observation for _ in range(20)])
        envs.close()
    np.testing.assert_array_equal(*results)
    assert np.isfinite(results).all()


def fall_length(limit):
    """Flags and length of an episode that pushes to the right until it ends."""
    envs = make_envpool(CARTPOLE, 1, max_episode_steps=limit)
    assert envs.spec.max_episode_steps == limit
    envs.reset(0)
    while True:
        step = envs.step(np.ones(1, np.int32))
        if step.terminated[0] or step.truncated[0]:
            envs.close()
            return bool(step.terminated[0]), bool(step.truncated[0]), int(step.episode_length[0])


def test_an_episode_that_falls_in_its_last_step_is_both_terminated_and_truncated():
    terminated, truncated, length = fall_length(100)
    assert (terminated, truncated) == (True, False)
    assert fall_length(length) == (True, True, length)
    assert fall_length(length - 1) == (False, True, length - 1)
    assert fall_length(length + 1) == (True, False, length)


def test_the_episode_after_a_time_limit_is_a_whole_one():
    envs = make_envpool("Pendulum-v1", 2, max_episode_steps=5)
    envs.reset(0)
    for t in range(1, 21):
        step = envs.step(np.zeros((2, 1), np.float32))
        assert step.truncated.all() == step.truncated.any() == (t % 5 == 0)
        assert not step.terminated.any()
        assert (step.episode_length == (t - 1) % 5 + 1).all()
        moved = (step.observation != step.next_observation).any(1)
        assert (moved == step.truncated).all()
    envs.close()


def test_each_environment_follows_its_own_seed_alone():
    envs = make_envpool(CARTPOLE, 3)
    a, b = envs.reset([1, 2, 3]), envs.reset([9, 2, 2**40])
    np.testing.assert_array_equal(a[1], b[1])
    assert len({row.tobytes() for row in [*a, *b]}) == 5
    # Given one number for all, EnvPool would take 5, 6, 7 and then 6, 7, 8.
    starts = [row.tobytes() for seed in range(5, 9) for row in envs.reset(seed)]
    assert len({*starts}) == len(starts)
    one = make_envpool(CARTPOLE, 3, num_threads=1)
    np.testing.assert_array_equal(one.reset(4), envs.reset(4))
    envs.close()
    one.close()


def test_restoring_starts_fresh_episodes_that_depend_on_seed_and_step():
    envs, other = make_envpool(CARTPOLE, 2), make_envpool(CARTPOLE, 2)

    def restored(seed, steps):
        first = envs.reset(seed)
        for _ in range(steps):
            envs.step(np.ones(2, np.int32))
        tree = envs.snapshot()
        observation = other.restore(tree)
        step = other.step(np.zeros(2, np.int32))
        assert (step.episode_length == 1).all()
        other.step(np.zeros(2, np.int32))
        return first, observation, other.snapshot()

    first, observation, tree = restored(0, 4)
    assert (np.abs(observation) < 0.05).all()  # the start of an episode
    np.testing.assert_array_equal(observation, restored(0, 4)[1])
    # The count goes on: after two more steps another resumed run begins with other episodes.
    starts = [first, observation, restored(0, 5)[1], restored(1, 4)[1], other.restore(tree)]
    assert len({row.tobytes() for start in starts for row in start}) == 2 * len(starts)
    envs.close()
    other.close()


@pytest.fixture(scope="module")
def algo():
    config = get_config("quick")
    config.net.hidden_sizes = (8,)
    envs = make_envpool(CARTPOLE, 1)
    return ppo.make(config, envs.spec, num_updates=4)


def make_loop(algo, **changes):
    settings = dict(num_envs=2, unroll_length=16, max_updates=2, eval_episodes=2) | changes
    return host_loop(lambda n: make_envpool(CARTPOLE, n), algo, **settings)


def test_a_resumed_run_has_all_but_the_episodes(algo):
    loop, resumed = make_loop(algo), make_loop(algo)
    state, _ = loop.advance(loop.init(), 2)
    saved = jax.tree.map(np.asarray, loop.save(state)._replace(key=()))._replace(key=state.key)
    after = resumed.load(saved)
    for name in ("algo", "key", "step"):
        ours, theirs = jax.tree.leaves(getattr(after, name)), jax.tree.leaves(getattr(state, name))
        assert len(ours) == len(theirs) > 0
        for x, y in zip(ours, theirs, strict=True):
            assert x.dtype == y.dtype
            assert (x == y).all(), name
    # The observation to act on is that of the fresh episodes, not the one that was saved.
    assert (np.abs(after.observation) < 0.05).all()
    assert (after.observation != state.observation).any(1).all()
    after, metrics = resumed.advance(after, 2)
    assert int(after.step) == 4
    assert all(np.isfinite(x).all() for x in metrics.values())


def test_after_restoring_the_running_return_is_that_of_the_fresh_episode():
    """Rewards are 1: after one step of a fresh episode the running return is 1."""
    envs = normalize_rewards(make_envpool(CARTPOLE, 2), discount=0.5)
    envs.reset(0)
    for _ in range(3):
        envs.step(np.ones(2, np.int32))
    tree = envs.snapshot()
    np.testing.assert_allclose(tree["rewards"]["running_return"], 1.75)
    envs.restore(tree)
    envs.step(np.ones(2, np.int32))
    np.testing.assert_allclose(envs.snapshot()["rewards"]["running_return"], 1.0)
    envs.close()


@pytest.mark.errors
def test_what_is_refused(monkeypatch):
    def refused(match, *args, **options):
        with pytest.raises(ValueError, match=match) as error:
            make_envpool(*args, **options)
        assert "\n" not in str(error.value)

    refused(r"unknown environment 'CartPole-v11': did you mean .*CartPole-v1", "CartPole-v11", 2)
    refused(r"unknown environment '!!!': see envpool.list_all_envs\(\)", "!!!", 2)
    refused("num_envs is 0, it must be at least 1", CARTPOLE, 0)
    refused("max_episode_steps is -3, it must be at least 1", CARTPOLE, 1, max_episode_steps=-3)
    refused("CartPole-v1 cannot be made: .*colour", CARTPOLE, 1, colour="red")
    envs, others = make_envpool(CARTPOLE, 2), make_envpool(CARTPOLE, 3)
    envs.reset(0)
    others.reset(0)
    with pytest.raises(ValueError, match="the snapshot is of 2 environments, there are 3"):
        others.restore(envs.snapshot())
    monkeypatch.setitem(sys.modules, "envpool", None)
    refused(r'CartPole-v1 needs EnvPool: pip install "rljax\[envpool\]"', CARTPOLE, 2)
