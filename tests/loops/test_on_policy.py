"""The loop: compiled once, donated, flat in memory, and the same run however it is cut up."""

import contextlib
import gc
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.runtime.checkpoint import Checkpoints

from ..algos.small import (
    ALGOS,
    assert_same_bits,
    copied,
    line_world_loop,
    shared_loop,
    small_config,
    small_loop,
)

COMPILED: list[str] = []


def on_event(name, seconds, **_):
    if name == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(name)


jax.monitoring.register_event_duration_secs_listener(on_event)


@contextlib.contextmanager
def compilations():
    """A list that has one entry for each program compiled inside, whoever asked for it."""
    before, counted = len(COMPILED), []
    yield counted
    counted.extend(COMPILED[before:])


def test_compilations_are_counted():
    with compilations() as counted:
        jax.jit(lambda x: x * 3 + 1)(jnp.ones(7))
    assert counted


@pytest.mark.parametrize("name", ALGOS)
def test_nothing_recompiles_after_the_first_step(name):
    """A whole chunk, a shorter last one, single updates, an evaluation, a second start."""
    loop = shared_loop(name)
    state, _ = loop.advance(loop.init(), 1)
    loop.evaluate(state)
    with compilations() as counted:
        for num_updates in (50, 7, 1):
            state, metrics = loop.advance(state, num_updates)
            assert {len(rows) for rows in metrics.values()} == {num_updates}
            loop.evaluate(state)
        loop.advance(loop.load(loop.save(loop.init())), 3)
    assert not counted
    assert state.step == 59


def test_state_is_donated():
    loop = shared_loop("ppo")
    state = loop.init()
    old = jax.tree.leaves(state)
    new, _ = loop.advance(state, 1)
    assert all(leaf.is_deleted() for leaf in old)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(new))
    loop.init()  # a new start is not hurt by it


def resident_megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_memory_does_not_grow_over_10000_steps():
    """10 000 updates of 8 steps each, in 400 calls."""
    config = small_config(
        "a2c", "LineWorld-v0", {"env.num_envs": 4, "unroll_length": 2, "log_interval": 25}
    )
    env = envs.make("LineWorld-v0")
    loop = small_loop(config, env, num_updates=10_000)
    state = loop.init()
    sizes = []
    for i in range(400):
        state, _ = loop.advance(state, 25)
        if i % 100 == 99:
            loop.evaluate(state)
            gc.collect()
            sizes.append((len(jax.live_arrays()), resident_megabytes()))
    assert state.step == 10_000
    arrays, megabytes = zip(*sizes)
    assert len(set(arrays)) == 1
    # The first 2500 updates fill pools and caches; a leak of one row of metrics would be 3 MB.
    assert megabytes[-1] - megabytes[0] < 2.0


def test_two_chunks_are_one_bit_for_bit():
    loop = shared_loop("ppo")
    whole, whole_metrics = loop.advance(loop.init(), 4)
    state, first = loop.advance(loop.init(), 2)
    state, second = loop.advance(state, 2)
    assert_same_bits(whole, state)
    for name in loop.metric_names:
        np.testing.assert_array_equal(
            whole_metrics[name], np.concatenate([first[name], second[name]])
        )


@pytest.mark.parametrize("name", ALGOS)
def test_same_seed_twice_gives_the_same_bits(name):
    loop = shared_loop(name)
    first, second = loop.advance(loop.init(), 5), loop.advance(loop.init(), 5)
    assert_same_bits(first, second)


@pytest.mark.slow
def test_same_seed_in_a_loop_of_its_own_gives_the_same_bits():
    first = shared_loop("ppo").advance(shared_loop("ppo").init(), 5)
    other = line_world_loop("ppo")
    assert_same_bits(first, other.advance(other.init(), 5))


def test_other_seeds_are_other_runs():
    loop = shared_loop("a2c")
    first, _ = loop.advance(loop.init(), 1)
    other, _ = loop.advance(line_world_loop("a2c", seed=1).init(), 1)
    assert (first.observation != other.observation).any()
    assert (first.key != other.key).all()


def test_a_copy_goes_on_as_the_original():
    loop = shared_loop("trpo")
    state, _ = loop.advance(loop.init(), 2)
    kept = copied(loop.save(state))
    state, _ = loop.advance(state, 3)
    again, _ = loop.advance(loop.load(kept), 3)
    assert_same_bits(state, again)


def through_disk(loop, state, directory):
    """The state, saved, gone and restored."""
    with Checkpoints(directory, keep_last=1, warn=pytest.fail) as checkpoints:
        checkpoints.save(int(np.max(state.step)), loop.save(state), {})
    with Checkpoints(directory, keep_last=1, warn=pytest.fail) as checkpoints:
        return loop.load(checkpoints.restore(loop.template)[0])


def test_a_checkpoint_goes_on_as_the_run_and_compiles_nothing(tmp_path):
    loop = shared_loop("ppo")
    state, _ = loop.advance(loop.init(), 2)
    restored = through_disk(loop, state, tmp_path)
    state, _ = loop.advance(state, 3)
    with compilations() as counted:
        restored, _ = loop.advance(restored, 3)
    assert not counted
    assert_same_bits(state, restored)


def test_metrics():
    loop = shared_loop("ppo")
    state, metrics = loop.advance(loop.init(), 8)
    assert tuple(metrics) == loop.metric_names
    for name, rows in metrics.items():
        assert rows.shape == (8, 1), name
        assert rows.dtype == np.float32, name
        assert np.isfinite(rows).all(), name
    # 16 environments and 25 steps an update: all end together in every fourth update.
    assert loop.steps_per_update == 400
    np.testing.assert_array_equal(metrics["episode/count"][:, 0], [0, 0, 0, 16] * 2)
    np.testing.assert_array_equal(metrics["episode/length_sum"][:, 0], [0, 0, 0, 1600] * 2)
    np.testing.assert_array_equal(metrics["policy/epochs"], 4.0)
    assert state.step == state.algo.step == 8


def test_template_describes_the_state():
    loop = shared_loop("ppo")
    state, _ = loop.advance(loop.init(), 1)
    assert jax.tree.structure(loop.template) == jax.tree.structure(state)
    for wanted, leaf in zip(jax.tree.leaves(loop.template), jax.tree.leaves(state)):
        assert (wanted.shape, wanted.dtype) == (leaf.shape, leaf.dtype)
        assert wanted.sharding == leaf.sharding


def test_evaluation_is_greedy_and_leaves_the_run_alone():
    """A policy that barely prefers the right wins every time: -5 once and 99 times 10."""
    loop = shared_loop("a2c")
    state = loop.init()
    rows = state.algo.params["policy"]["rows"]
    state.algo.params["policy"]["rows"] = rows.at[:, 2].add(1e-4)
    before = copied(state)
    first = loop.evaluate(state)
    assert first["eval/return_mean"].shape == (1,)
    assert first["eval/return_mean"] == first["eval/return_min"] == 985.0
    assert first["eval/length_mean"] == 100.0
    assert first["eval/episodes"] == 1.0
    assert_same_bits(before, state)
    assert loop.evaluate(state) == first


@pytest.mark.errors
@pytest.mark.parametrize("num_updates", [0, 51, -1])
def test_chunks_of_a_length_that_is_not_allowed(num_updates):
    loop = line_world_loop("a2c")
    with pytest.raises(ValueError, match=rf"num_updates is {num_updates}.*1 \.\.\. 50"):
        loop.advance(loop.init(), num_updates)
