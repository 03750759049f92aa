"""The loop around Gymnasium's environments: the same promises as the one in `test_on_policy.py`."""

import gc
from functools import partial

import jax
import numpy as np
import pytest

from rljax.envs.gymnasium import make_host
from rljax.loops.host import host_seeds
from rljax.loops.on_policy_host import host_loop
from rljax.runtime.checkpoint import Checkpoints

from ..algos.small import assert_same_bits, copied, make_algo, small_config
from .test_devices import assert_close
from .test_on_policy import compilations, resident_megabytes

NUM_ENVS, LENGTH = 4, 32


def cartpole_loop(*, mode="same_step", num_seeds=1, seed=0):
    config = small_config(
        "ppo",
        "CartPole-v1",
        {
            "net.name": "tabular",  # linear in the observations, and quickly compiled
            "normalize_observations": True,
            "optimizer.learning_rate": 1e-3,
            "algo.epochs": 2,
            "algo.minibatches": 2,
        },
    )
    make_env = partial(make_host, "CartPole-v1", autoreset_mode=mode)
    env = make_env(1)
    algo = make_algo(config, env.spec, num_updates=10)
    env.close()
    return host_loop(
        make_env,
        algo,
        num_envs=NUM_ENVS,
        unroll_length=LENGTH,
        max_updates=8,
        eval_episodes=3,
        seed=seed,
        num_seeds=num_seeds,
    )


@pytest.fixture(scope="module")
def loop():
    return cartpole_loop()


@pytest.fixture(scope="module")
def other():
    """A loop of its own, as another process would have."""
    return cartpole_loop()


def test_metrics(loop):
    state, metrics = loop.advance(loop.init(), 6)
    assert tuple(metrics) == loop.metric_names
    for name, rows in metrics.items():
        assert rows.shape == (6, 1), name
        assert rows.dtype == np.float32, name
        assert np.isfinite(rows).all(), name
    assert loop.steps_per_update == NUM_ENVS * LENGTH
    assert state.step == state.algo.step == 6
    # CartPole pays 1 a step, and an untrained policy falls after some 20.
    np.testing.assert_array_equal(metrics["episode/return_sum"], metrics["episode/length_sum"])
    assert 15 < metrics["episode/count"].sum() < 768 / 8
    # every step was seen by the moments, and no ratio starts away from 1
    assert state.algo.moments.count == 6 * NUM_ENVS * LENGTH
    assert (metrics["policy/behaviour_kl"] < 0.05).all()


def test_same_seed_twice_and_in_chunks_gives_the_same_bits(loop, other):
    whole, metrics = loop.advance(loop.init(), 4)
    state, first = other.advance(other.init(), 2)
    state, second = other.advance(state, 2)
    assert_same_bits(loop.save(whole), other.save(state))
    for name in loop.metric_names:
        np.testing.assert_array_equal(metrics[name], np.concatenate([first[name], second[name]]))


def test_saved_and_loaded_it_goes_on_bit_for_bit(loop, other, tmp_path):
    """In the middle of episodes, into a loop that stands elsewhere, an evaluation in between."""
    state, _ = loop.advance(loop.init(), 2)
    scores = loop.evaluate(state)
    stray, _ = other.advance(other.init(), 1)
    other.evaluate(stray)
    with Checkpoints(tmp_path, keep_last=1, warn=pytest.fail) as checkpoints:
        checkpoints.save(2, loop.save(state), {})
        state, wanted = loop.advance(state, 3)
        checkpoints.wait()
        again = other.load(checkpoints.restore(other.template)[0])

    assert other.evaluate(again) == scores
    again, metrics = other.advance(again, 3)
    assert_same_bits(loop.save(state), other.save(again))
    for name in loop.metric_names:
        np.testing.assert_array_equal(metrics[name], wanted[name])


def test_template_describes_what_is_saved(loop):
    state, _ = loop.advance(loop.init(), 1)
    saved = loop.save(state)
    assert jax.tree.structure(loop.template) == jax.tree.structure(saved)
    for wanted, leaf in zip(jax.tree.leaves(loop.template), jax.tree.leaves(saved)):
        assert (wanted.shape, wanted.dtype) == (leaf.shape, leaf.dtype)


def test_nothing_recompiles_and_parameters_are_donated(loop):
    state, _ = loop.advance(loop.init(), 1)
    loop.evaluate(state)
    old = jax.tree.leaves(state.algo)
    with compilations() as counted:
        state, _ = loop.advance(state, 3)
        state, _ = loop.advance(state, 1)
        loop.evaluate(state)
        loop.advance(loop.load(loop.save(state)), 1)
    assert not counted
    assert all(leaf.is_deleted() for leaf in old)


def test_memory_does_not_grow_over_10000_steps(loop):
    state = loop.init()
    sizes = []
    for i in range(20):  # 20 · 4 updates of 128 steps
        state, _ = loop.advance(state, 4)
        if i % 5 == 4:
            loop.evaluate(state)
            gc.collect()
            sizes.append((len(jax.live_arrays()), resident_megabytes()))
    arrays, megabytes = zip(*sizes)
    assert len(set(arrays)) == 1
    assert megabytes[-1] - megabytes[0] < 1.0


def test_evaluation(loop):
    state = loop.init()
    scores = loop.evaluate(state)
    assert scores == loop.evaluate(state)  # its own environments, seeded by the run and the update
    assert scores["eval/episodes"] == 3.0
    np.testing.assert_array_equal(scores["eval/return_mean"], scores["eval/length_mean"])
    assert 8 <= scores["eval/return_min"] <= scores["eval/return_max"] <= 500


def test_seeds_of_environments_are_all_different_and_the_runs_own():
    seeds = host_seeds(np.arange(3, 6), 7, 1, 50)
    assert len(set(seeds)) == 150
    assert seeds[50:100] == host_seeds(np.array([4]), 7, 1, 50)
    others = host_seeds(np.arange(3, 6), 8, 1, 50) + host_seeds(np.arange(3, 6), 7, 0, 50)
    assert not set(seeds) & set(others)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.fixture(scope="module")
def pair():
    return cartpole_loop(num_seeds=2)


def test_seeds_side_by_side_are_the_runs_one_by_one(pair, loop):
    states, metrics = pair.advance(pair.init(), 4)
    scores = pair.evaluate(states)
    assert {rows.shape for rows in metrics.values()} == {(4, 2)}
    for seed in range(2):
        alone = loop if seed == 0 else cartpole_loop(seed=1)
        state, wanted = alone.advance(alone.init(), 4)
        one_of_two = jax.tree.map(lambda x, s=seed: x[s], states.algo)
        assert_close(one_of_two, state.algo, rtol=1e-4, atol=1e-5)
        rows = {name: rows[:, [seed]] for name, rows in metrics.items()}
        assert_close(rows, wanted, rtol=1e-4, atol=1e-5)
        mine = slice(seed * NUM_ENVS, (seed + 1) * NUM_ENVS)
        np.testing.assert_array_equal(states.observation[mine], state.observation)
        for name, value in alone.evaluate(state).items():
            np.testing.assert_array_equal(scores[name][[seed]], value)


def test_seeds_side_by_side_are_saved_and_loaded(pair):
    state, _ = pair.advance(pair.init(), 1)
    saved = copied(pair.save(state))
    state, _ = pair.advance(state, 2)
    again, _ = pair.advance(pair.load(saved), 2)
    assert_same_bits(pair.save(state), pair.save(again))


def test_next_step_mode():
    """The reset takes a call of its own: a row that is masked, and learned from by nobody."""
    loop = cartpole_loop(mode="next_step")
    state, metrics = loop.advance(loop.init(), 3)
    assert all(np.isfinite(rows).all() for rows in metrics.values())
    saved = copied(loop.save(state))
    state, _ = loop.advance(state, 3)
    wanted = copied(loop.save(state))
    again, _ = loop.advance(loop.load(saved), 3)
    assert_same_bits(wanted, loop.save(again))
    # An episode of about 20 steps costs one row: some 35 of 6 · 128 were not seen by the moments.
    assert 15 < 6 * NUM_ENVS * LENGTH - again.algo.moments.count < 90
