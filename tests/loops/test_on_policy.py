"""The loop: compiled once, donated, flat in memory, and the same run however it is cut up."""

import contextlib
import gc
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs, sharding
from rljax.loops.on_policy import jax_loop
from rljax.runtime.checkpoint import Checkpoints

from ..algos.small import (
    ALGOS,
    assert_same_bits,
    copied,
    line_world_loop,
    make_algo,
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
    assert megabytes[-1] - megabytes[0] < 1.0


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


def assert_close(a, b, *, rtol, atol):
    """Whole numbers, flags and keys equal, the rest but for rounding.

    A sum in another order differs by about 1e-7 of its terms. Measured after five updates: 2e-6 of
    the values on the line world, 1e-5 of them plus 1e-6 with a network on CartPole. One action that
    came out differently would be a difference of 1e-2, and others among the whole numbers.
    """
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        if x.dtype == np.float32:
            np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    "name", ["a2c", *(pytest.param(x, marks=pytest.mark.slow) for x in ALGOS if x != "a2c")]
)
def test_seeds_side_by_side_are_the_runs_one_by_one(name):
    side_by_side, alone = line_world_loop(name, num_seeds=2), shared_loop(name)
    states, metrics = side_by_side.advance(side_by_side.init(), 5)
    scores = side_by_side.evaluate(states)
    assert scores["eval/return_mean"].shape == (2,)
    for seed in range(2):
        state, wanted = alone.advance(line_world_loop(name, seed=seed).init(), 5)
        one_of_two = jax.tree.map(lambda x, s=seed: x[s], states)
        assert_close(one_of_two, state, rtol=1e-5, atol=1e-6)
        assert {rows.shape for rows in metrics.values()} == {(5, 2)}
        rows = {name: rows[:, [seed]] for name, rows in metrics.items()}
        assert_close(rows, wanted, rtol=2e-5, atol=5e-6)
        score = alone.evaluate(state)["eval/return_mean"]
        np.testing.assert_array_equal(scores["eval/return_mean"][[seed]], score)


def check_devices(one, several, *, rtol, atol, num_devices=4):
    start = several.init()
    split, axis = start.observation.sharding, start.observation.ndim - 2  # after that of the seeds
    wanted = sharding.along_data(sharding.make_mesh(num_devices), axis)
    assert split.is_equivalent_to(wanted, axis + 2)
    assert len({shard.device for shard in start.observation.addressable_shards}) == num_devices
    a, a_metrics = one.advance(one.init(), 5)
    b, b_metrics = several.advance(start, 5)
    assert b.observation.sharding == split
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(b.algo))
    a, b = jax.device_get((a, b))
    assert_close(a, b, rtol=rtol, atol=atol)
    assert_close(a_metrics, b_metrics, rtol=2 * rtol, atol=5 * atol)


def test_four_devices_do_what_one_does():
    check_devices(shared_loop("ppo"), line_world_loop("ppo", num_devices=4), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGOS)
def test_four_devices_do_what_one_does_on_cartpole(name):
    """A network, Adam, normalised observations, episodes that end at different times."""
    changes = {
        "normalize_observations": True,
        "unroll_length": 32,
        "optimizer.learning_rate": 1e-3,
        "log_interval": 5,
    }
    config, env = small_config(name, "CartPole-v1", changes), envs.make("CartPole-v1")
    one, four = small_loop(config, env), small_loop(config, env, num_devices=4)
    check_devices(one, four, rtol=1e-4, atol=1e-5)


def test_seeds_on_two_devices_do_what_they_do_on_one():
    one, two = (line_world_loop("a2c", num_seeds=2, num_devices=n) for n in (1, 2))
    check_devices(one, two, rtol=1e-5, atol=1e-6, num_devices=2)


@pytest.mark.slow
def test_seeds_on_several_devices_do_what_they_do_on_one_on_cartpole():
    """The kernels of the networks are made side by side and on all devices at once."""
    changes = {"net.hidden_sizes": (8, 8), "unroll_length": 8, "log_interval": 5}
    config, env = small_config("ppo", "CartPole-v1", changes), envs.make("CartPole-v1")
    loops = {n: small_loop(config, env, num_seeds=2, num_devices=n) for n in (1, 2, 4)}
    for num_devices in (2, 4):
        check_devices(loops[1], loops[num_devices], rtol=1e-4, atol=1e-5, num_devices=num_devices)


@pytest.mark.errors
@pytest.mark.parametrize("num_updates", [0, 51, -1])
def test_chunks_of_a_length_that_is_not_allowed(num_updates):
    loop = line_world_loop("a2c")
    with pytest.raises(ValueError, match=rf"num_updates is {num_updates}.*1 \.\.\. 50"):
        loop.advance(loop.init(), num_updates)


@pytest.mark.errors
def test_environments_that_cannot_be_split():
    env = envs.make("LineWorld-v0")
    config = small_config("a2c")
    settings = dict(unroll_length=4, max_updates=2, eval_episodes=1)
    algo = make_algo(config, env.spec, num_updates=2)
    with pytest.raises(ValueError, match=r"num_envs is 6.*4 devices"):
        jax_loop(env, algo, num_envs=6, num_devices=4, **settings)
    with pytest.raises(ValueError, match=r"num_devices is 9.*there are 4"):
        jax_loop(env, algo, num_envs=9, num_devices=9, **settings)
