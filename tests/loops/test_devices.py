"""Seeds side by side and work spread over devices change nothing but rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs, sharding
from rljax.loops.on_policy import jax_loop

from ..algos.small import (
    ALGOS,
    line_world_loop,
    make_algo,
    shared_loop,
    small_config,
    small_loop,
)


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
    split = sharding.along_data(sharding.make_mesh(num_devices))  # environments, or seeds
    assert start.observation.sharding.is_equivalent_to(split, start.observation.ndim)
    assert len({shard.device for shard in start.observation.addressable_shards}) == num_devices
    a, a_metrics = one.advance(one.init(), 5)
    b, b_metrics = several.advance(start, 5)
    assert b.observation.sharding.is_equivalent_to(split, b.observation.ndim)
    for leaf in jax.tree.leaves(b.algo):
        if b.step.ndim:  # seeds
            assert leaf.sharding.is_equivalent_to(split, leaf.ndim)
        else:
            assert leaf.sharding.is_fully_replicated
    assert_close(one.evaluate(a), several.evaluate(b), rtol=rtol, atol=atol)
    a, b = jax.device_get((a, b))
    assert_close(a, b, rtol=rtol, atol=atol)
    assert_close(a_metrics, b_metrics, rtol=2 * rtol, atol=5 * atol)


def test_four_devices_do_what_one_does():
    check_devices(shared_loop("ppo"), line_world_loop("ppo", num_devices=4), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "trpo"])
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
    """Each device has its own seeds, parameters and environments, and asks no other."""
    changes = {"net.hidden_sizes": (8, 8), "unroll_length": 8, "log_interval": 5}
    config, env = small_config("ppo", "CartPole-v1", changes), envs.make("CartPole-v1")
    loops = {n: small_loop(config, env, num_seeds=4, num_devices=n) for n in (1, 4)}
    check_devices(loops[1], loops[4], rtol=1e-4, atol=1e-5)


@pytest.mark.errors
def test_environments_that_cannot_be_split():
    env = envs.make("LineWorld-v0")
    config = small_config("a2c")
    settings = dict(unroll_length=4, max_updates=2, eval_episodes=1)
    algo = make_algo(config, env.spec, num_updates=2)
    with pytest.raises(ValueError, match=r"num_envs is 6.*4 devices"):
        jax_loop(env, algo, num_envs=6, num_devices=4, **settings)
    with pytest.raises(ValueError, match=r"num_seeds is 3.*4 devices"):
        jax_loop(env, algo, num_envs=8, num_seeds=3, num_devices=4, **settings)
    with pytest.raises(ValueError, match=r"num_devices is 9.*there are 4"):
        jax_loop(env, algo, num_envs=9, num_devices=9, **settings)
