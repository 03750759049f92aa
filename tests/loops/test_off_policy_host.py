"""The off-policy loop around Gymnasium's environments: the promises of `test_off_policy.py`.

CartPole with DQN; Pendulum with DDPG and Ornstein-Uhlenbeck noise, which has a memory.
"""

import functools
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rljax.envs.gymnasium import make_host
from rljax.loops import off_policy_host
from rljax.runtime.checkpoint import Checkpoints

from ..algos.small import assert_same_bits, copied
from ..algos.small_off_policy import ENVS, make_parts, small_config
from .test_devices import assert_close
from .test_on_policy import compilations

ALGOS = ("dqn", "ddpg")
OWN = {"dqn": {}, "ddpg": {"algo.noise": "ou", "replay.capacity": 1000}}


def gymnasium_loop(name, changes=None, *, mode="same_step", **settings):
    make_env = partial(make_host, ENVS[name], autoreset_mode=mode)
    env = make_env(1)
    env.close()
    config = small_config(name, ENVS[name], {**OWN[name], **(changes or {})})
    algo, replay, own = make_parts(config, env.spec)
    return off_policy_host.host_loop(make_env, algo, replay, **{**own, **settings})


@functools.cache
def shared(name, number=0):
    """Two loops of each kind, the second as another process would have it."""
    return gymnasium_loop(name)


def test_metrics():
    loop = shared("dqn")
    state, metrics = loop.advance(loop.init(), 8)
    assert tuple(metrics) == loop.metric_names
    for name, rows in metrics.items():
        assert rows.shape == (8, 1), name
        assert rows.dtype == np.float32, name
        assert np.isfinite(rows).all(), name
    assert (loop.first_step, loop.steps_per_update, state.step) == (10, 8, 8)
    np.testing.assert_array_equal(state.replay.size, [32, 32])  # 5 + 8 · 4, and the ring is full
    # CartPole pays 1 a step, and random actions let it fall after some 20.
    np.testing.assert_array_equal(metrics["episode/return_sum"], metrics["episode/length_sum"])
    assert 1 <= metrics["episode/count"].sum() <= 74 / 8


@pytest.mark.parametrize("name", ALGOS)
def test_same_seed_in_chunks_in_a_loop_of_its_own_gives_the_same_bits(name):
    loop, other = shared(name), shared(name, 1)
    whole, metrics = loop.advance(loop.init(), 5)
    state, first = other.advance(other.init(), 2)
    state, second = other.advance(state, 3)
    assert_same_bits(loop.save(whole), other.save(state))
    for metric in loop.metric_names:
        joined = np.concatenate([first[metric], second[metric]])
        np.testing.assert_array_equal(metrics[metric], joined)


@pytest.mark.parametrize("name", ALGOS)
def test_saved_and_loaded_it_goes_on_bit_for_bit(name, tmp_path):
    """In the middle of episodes, into a loop that stands elsewhere, an evaluation in between."""
    loop, other = shared(name), shared(name, 1)
    state, _ = loop.advance(loop.init(), 3)
    scores = loop.evaluate(state)
    other.advance(other.init(), 1)
    with Checkpoints(tmp_path, keep_last=1, warn=pytest.fail) as checkpoints:
        checkpoints.save(3, loop.save(state), {})
        state, wanted = loop.advance(state, 4)
        checkpoints.wait()
        again = other.load(checkpoints.restore(other.template)[0])
    assert other.evaluate(again) == scores
    again, metrics = other.advance(again, 4)
    assert_same_bits(loop.save(state), other.save(again))
    assert_same_bits(metrics, wanted)


def test_waiting_for_the_device_after_every_call_changes_nothing(monkeypatch):
    """Learning goes on while the environments are stepped; here it is over before each step."""
    loop = shared("ddpg")
    free, metrics = loop.advance(loop.init(), 4)
    free, waits = copied(loop.save(free)), []

    def jit(*args, **kwargs):
        jitted = jax.jit(*args, **kwargs)

        def call(*inputs):
            outputs = jitted(*inputs)
            if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(outputs)):
                waits.append(jax.block_until_ready(outputs))
            return outputs

        return call

    monkeypatch.setattr(off_policy_host, "jax", SimpleNamespace(**{**vars(jax), "jit": jit}))
    waiting = gymnasium_loop("ddpg")
    state, rows = waiting.advance(waiting.init(), 4)
    assert len(waits) > 4 * (4 + 2)  # to act four times, to learn, to add
    assert_same_bits(free, waiting.save(state))
    assert_same_bits(metrics, rows)


@pytest.mark.parametrize("name", ALGOS)
def test_nothing_recompiles_and_the_replay_stays_where_it_is(name):
    loop = shared(name)
    state, _ = loop.advance(loop.init(), 1)
    loop.evaluate(state)
    old = jax.tree.leaves(state.replay)
    place = state.replay.storage.observation.unsafe_buffer_pointer()
    with compilations() as counted:
        state, _ = loop.advance(state, 3)
        state, _ = loop.advance(state, 1)
        loop.evaluate(state)
        assert state.replay.storage.observation.unsafe_buffer_pointer() == place
        loop.advance(loop.load(loop.save(state)), 1)
    assert not counted
    assert all(leaf.is_deleted() for leaf in old)


def test_template_describes_what_is_saved():
    loop = shared("ddpg")
    saved = loop.save(loop.init())
    assert jax.tree.structure(loop.template) == jax.tree.structure(saved)
    for wanted, leaf in zip(jax.tree.leaves(loop.template), jax.tree.leaves(saved)):
        assert (wanted.shape, wanted.dtype) == (leaf.shape, leaf.dtype)


def test_seeds_side_by_side_are_the_runs_one_by_one():
    pair = gymnasium_loop("ddpg", num_seeds=2)
    states, metrics = pair.advance(pair.init(), 4)
    scores = pair.evaluate(states)
    saved = copied(pair.save(states))
    for seed in range(2):
        alone = shared("ddpg") if seed == 0 else gymnasium_loop("ddpg", seed=1)
        state, wanted = alone.advance(alone.init(), 4)
        for field in ("algo", "replay", "memory"):
            one_of_two = jax.tree.map(lambda x, s=seed: x[s], getattr(states, field))
            assert_close(one_of_two, getattr(state, field), rtol=1e-4, atol=1e-5)
        rows = {name: rows[:, [seed]] for name, rows in metrics.items()}
        assert_close(rows, wanted, rtol=1e-4, atol=1e-5)
        for name, value in alone.evaluate(state).items():
            np.testing.assert_allclose(scores[name][[seed]], value, rtol=1e-4)
    states, _ = pair.advance(states, 2)
    again, _ = pair.advance(pair.load(saved), 2)
    assert_same_bits(pair.save(states), pair.save(again))


def test_a_checkpoint_without_the_replay_warms_up_again():
    loop = gymnasium_loop("dqn", {"replay.checkpoint": False})
    state, _ = loop.advance(loop.init(), 4)
    saved = copied(loop.save(state))
    assert loop.template.replay == saved.replay == ()
    ends = []
    for _ in range(2):
        again = loop.load(copied(saved))
        np.testing.assert_array_equal(again.replay.size, [5, 5])
        np.testing.assert_array_equal(again.replay.storage.observation[:2], state.observation)
        assert_same_bits((saved.algo, saved.step), (again.algo, again.step))
        again, _ = loop.advance(again, 2)
        ends.append(copied(loop.save(again)))
    assert_same_bits(*ends)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_what_is_stored_is_what_happened(mode):
    """Every kept step begins where the one before led to, or where episodes begin."""
    loop = gymnasium_loop("dqn", {"replay.capacity": 400}, mode=mode)
    state, _ = loop.advance(loop.init(), 8)
    state, _ = loop.advance(state, 8)
    sizes = np.asarray(state.replay.size)
    for env, size in enumerate(sizes):
        steps = jax.tree.map(lambda x, e=env, n=size: np.asarray(x)[e::2][:n], state.replay.storage)
        first = np.concatenate([[True], steps.terminated[:-1] | steps.truncated[:-1]])
        np.testing.assert_array_equal(
            steps.observation[1:][~first[1:]], steps.next_observation[:-1][~first[1:]]
        )
        assert (np.abs(steps.observation[first]) <= 0.05).all()
        assert first.sum() >= 2
        # The pole has fallen where the task has ended, and nowhere else.
        fallen = np.abs(steps.next_observation[:, 2]) > 12 * np.pi / 180
        np.testing.assert_array_equal(fallen, steps.terminated)
        np.testing.assert_array_equal(steps.reward, 1.0)
    calls = 2 * (5 + 16 * 4)
    assert (sizes.sum() < calls) == (mode == "next_step")
    saved = copied(loop.save(state))
    state, _ = loop.advance(state, 3)
    wanted = copied(loop.save(state))
    again, _ = loop.advance(loop.load(saved), 3)
    assert_same_bits(wanted, loop.save(again))
