"""The off-policy loop: what `test_on_policy.py` promises, and a replay that stays where it is."""

import inspect

import jax
import numpy as np
import pytest

from rljax.data.memory import num_bytes

from ..algos.small import assert_same_bits, copied
from ..algos.small_off_policy import classic_loop, shared_loop
from .test_devices import assert_close
from .test_on_policy import compilations, through_disk

ALGOS = ("dqn", "sac")


@pytest.mark.parametrize("name", ALGOS)
def test_steps_and_metrics(name):
    """Warm-up of 10 random steps, then updates of 4 steps of 2 environments."""
    loop = shared_loop(name)
    state = loop.init()
    assert (loop.first_step, loop.steps_per_update) == (10, 8)
    np.testing.assert_array_equal(state.replay.size, [5, 5])
    state, metrics = loop.advance(state, 8)
    assert tuple(metrics) == loop.metric_names
    for metric, rows in metrics.items():
        assert rows.shape == (8, 1), metric
        assert rows.dtype == np.float32, metric
        assert np.isfinite(rows).all(), metric
    assert state.step == 8
    np.testing.assert_array_equal(state.replay.size, [32, 32])  # 5 + 8 · 4, and the ring is full
    np.testing.assert_array_equal(state.replay.position, [5, 5])


@pytest.mark.parametrize("name", ALGOS)
def test_nothing_recompiles_and_the_state_is_donated(name):
    loop = shared_loop(name)
    state, _ = loop.advance(loop.init(), 1)
    loop.evaluate(state)
    old = jax.tree.leaves(state)
    place = state.replay.storage.observation.unsafe_buffer_pointer()
    with compilations() as counted:
        for num_updates in (8, 3, 1):
            state, metrics = loop.advance(state, num_updates)
            assert {len(rows) for rows in metrics.values()} == {num_updates}
            loop.evaluate(state)
        loop.advance(loop.load(loop.save(loop.init())), 2)
    assert not counted
    assert all(leaf.is_deleted() for leaf in old)
    assert state.replay.storage.observation.unsafe_buffer_pointer() == place


@pytest.mark.parametrize("name", ALGOS)
def test_chunks_however_cut_and_the_same_seed_twice_give_the_same_bits(name):
    loop = shared_loop(name)
    whole, whole_metrics = loop.advance(loop.init(), 8)
    state, parts = loop.init(), []
    for num_updates in (1, 5, 2):
        state, rows = loop.advance(state, num_updates)
        parts.append(rows)
    assert_same_bits(whole, state)
    for metric in loop.metric_names:
        joined = np.concatenate([rows[metric] for rows in parts])
        np.testing.assert_array_equal(whole_metrics[metric], joined)


@pytest.mark.parametrize("name", ALGOS)
def test_a_checkpoint_goes_on_as_the_run_bit_for_bit(name, tmp_path):
    """The replay with it, from a state whose ring has gone round."""
    loop = shared_loop(name)
    state, _ = loop.advance(loop.init(), 8)
    restored = through_disk(loop, state, tmp_path)
    assert_same_bits(state.replay, restored.replay)
    state, wanted = loop.advance(state, 3)
    with compilations() as counted:
        restored, metrics = loop.advance(restored, 3)
    assert not counted
    assert_same_bits((state, wanted), (restored, metrics))


def test_template_describes_the_state():
    loop = shared_loop("dqn")
    state = loop.init()
    assert jax.tree.structure(loop.template) == jax.tree.structure(state)
    for wanted, leaf in zip(jax.tree.leaves(loop.template), jax.tree.leaves(state)):
        assert (wanted.shape, wanted.dtype) == (leaf.shape, leaf.dtype)
        assert wanted.sharding == leaf.sharding


@pytest.mark.parametrize("name", ["dqn", "ddpg", "sac"])
def test_a_million_transitions_are_updated_in_place(name):
    """The whole program of an `advance`, compiled as outside the tests; nothing is allocated.

    Beside the replay, tens of megabytes, it needs as little room as beside one of 64.
    """
    loop = classic_loop(name, {"replay.capacity": 1_000_000})
    advance = inspect.unwrap(loop.advance)  # from the checks of its types
    program = inspect.getclosurevars(advance).nonlocals["advance_jit"]
    lowered = program.lower(loop.template, np.int32(1))
    memory = lowered.compile({"xla_backend_optimization_level": 3}).memory_analysis()
    replay = num_bytes(loop.template.replay)
    assert replay > 25_000_000
    assert memory.alias_size_in_bytes > replay
    assert memory.temp_size_in_bytes < 200_000


@pytest.fixture(scope="module")
def pair():
    """Two seeds of DQN side by side."""
    return classic_loop("dqn", num_seeds=2)


def test_seeds_side_by_side_are_the_runs_one_by_one(pair):
    alone = shared_loop("dqn")
    states, metrics = pair.advance(pair.init(), 6)
    scores = pair.evaluate(states)
    assert {rows.shape for rows in metrics.values()} == {(6, 2)}
    for seed in range(2):
        start = alone.init() if seed == 0 else classic_loop("dqn", seed=1).init()
        state, wanted = alone.advance(start, 6)
        one_of_two = jax.tree.map(lambda x, s=seed: x[s], states)
        assert_close(one_of_two, state, rtol=1e-4, atol=1e-5)
        rows = {name: rows[:, [seed]] for name, rows in metrics.items()}
        assert_close(rows, wanted, rtol=1e-4, atol=1e-5)
        score = alone.evaluate(state)["eval/return_mean"]
        np.testing.assert_array_equal(scores["eval/return_mean"][[seed]], score)


def test_seeds_on_two_devices_do_what_they_do_on_one(pair):
    two = classic_loop("dqn", num_seeds=2, num_devices=2)
    (one, one_rows), (other, rows) = (loop.advance(loop.init(), 6) for loop in (pair, two))
    assert len({shard.device for shard in other.observation.addressable_shards}) == 2
    assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert_close(one_rows, rows, rtol=1e-4, atol=1e-5)


def test_seeds_side_by_side_are_saved_and_loaded(pair, tmp_path):
    state, _ = pair.advance(pair.init(), 1)
    restored = through_disk(pair, state, tmp_path)
    (state, _), (again, _) = pair.advance(state, 2), pair.advance(restored, 2)
    assert_same_bits(state, again)


def test_a_checkpoint_without_the_replay_warms_up_again(tmp_path):
    """All else is as it was; the replay holds as much as after the first warm-up, of new steps."""
    loop = classic_loop("dqn", {"replay.checkpoint": False})
    start = copied(loop.init())
    state, _ = loop.advance(loop.init(), 4)
    assert loop.template.replay == loop.save(state).replay == ()
    kept = copied(loop.save(state))
    first, second = through_disk(loop, state, tmp_path), loop.load(kept)
    assert_same_bits(first, second)
    for name in ("algo", "key", "step", "memory"):
        assert_same_bits(getattr(first, name), getattr(state, name))
    np.testing.assert_array_equal(first.replay.size, [5, 5])
    fresh, old = (s.replay.storage.observation[:10] for s in (first, start))
    assert (fresh != old).any()
    # The environments went on from where they stood.
    np.testing.assert_array_equal(fresh[:2], state.observation)
    with compilations() as counted:
        (first, _), (second, _) = loop.advance(first, 2), loop.advance(second, 2)
    assert not counted
    assert_same_bits(first, second)
    assert first.step == 6
