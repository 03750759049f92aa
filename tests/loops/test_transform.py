"""Training in transformed environments: several devices, several seeds, saved and restored."""

from functools import partial

import jax
import numpy as np
import pytest

from rljax import envs
from rljax.envs import host_transforms, transforms
from rljax.envs.gymnasium import make_host
from rljax.loops.on_policy_host import host_loop
from rljax.runtime.checkpoint import Checkpoints

from ..algos.small import assert_same_bits, copied, make_algo, small_config, small_loop
from .test_devices import assert_close, check_devices
from .test_on_policy import through_disk

SCALED = partial(transforms.normalize_rewards, discount=0.9)
NUM_ENVS, LENGTH = 4, 40


def line_world(transform=SCALED, **settings):
    """40 steps an update, so that an episode ends in two updates of five."""
    config = small_config("a2c", changes={"env.num_envs": NUM_ENVS, "unroll_length": LENGTH})
    config.log_interval = 5
    return small_loop(config, envs.make("LineWorld-v0"), transform=transform, **settings)


@pytest.fixture(scope="module")
def loop():
    return line_world()


def test_statistics_are_whole_on_every_device(loop):
    four = line_world(num_devices=4)
    state, _ = four.advance(four.init(), 1)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.env.moments))
    for leaf in (state.env.running_return, state.env.env.episode_return):
        assert {shard.data.shape for shard in leaf.addressable_shards} == {(1,)}
    check_devices(loop, four, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_each_seed_has_statistics_of_its_own(loop):
    two = line_world(num_seeds=2)
    states, _ = two.advance(two.init(), 5)
    assert states.env.moments.mean.shape == (2,)
    for seed in range(2):
        state, _ = loop.advance(line_world(seed=seed).init(), 5)
        assert_close(jax.tree.map(lambda x, s=seed: x[s], states), state, rtol=1e-5, atol=1e-6)


def test_training_sees_scaled_rewards_and_evaluation_raw_ones(loop):
    raw = line_world(transform=lambda envs: envs)
    state, metrics = loop.advance(loop.init(), 5)
    _, raw_metrics = raw.advance(raw.init(), 5)
    assert state.env.moments.count == 5 * NUM_ENVS * LENGTH
    # The first actions are the same: returns are those of the world, values those of the scaled.
    assert metrics["episode/count"][2] == NUM_ENVS  # at step 100
    np.testing.assert_array_equal(
        *(rows["episode/return_sum"][:1] for rows in (metrics, raw_metrics))
    )
    assert metrics["loss/value"][0] < raw_metrics["loss/value"][0] / 10
    assert loop.evaluate(loop.init())["eval/return_mean"] == -100.0


def test_a_checkpoint_goes_on_bit_for_bit(loop, tmp_path):
    state, _ = loop.advance(loop.init(), 3)
    restored = through_disk(loop, state, tmp_path)
    assert restored.env.moments.count == 3 * NUM_ENVS * LENGTH
    assert_same_bits(loop.advance(state, 3), loop.advance(restored, 3))


def host_cartpole(*, mode="same_step", num_seeds=1, seed=0):
    changes = {"net.name": "tabular", "optimizer.learning_rate": 1e-3}
    config = small_config("a2c", "CartPole-v1", changes)
    make_env = partial(make_host, "CartPole-v1", autoreset_mode=mode)
    return host_loop(
        make_env,
        make_algo(config, make_env(1).spec, num_updates=10),
        num_envs=NUM_ENVS,
        unroll_length=LENGTH,
        max_updates=8,
        eval_episodes=2,
        seed=seed,
        num_seeds=num_seeds,
        transform=partial(host_transforms.normalize_rewards, discount=0.9, num_groups=num_seeds),
    )


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_a_host_run_goes_on_bit_for_bit(mode, tmp_path):
    """Into a loop that stands elsewhere; a second start begins with statistics of nothing."""
    loop, other = host_cartpole(mode=mode), host_cartpole(mode=mode)
    state, metrics = loop.advance(loop.init(), 3)
    saved = copied(loop.save(state))
    seen = saved.env["rewards"]["count"]
    assert seen == 3 * NUM_ENVS * LENGTH if mode == "same_step" else seen < 3 * NUM_ENVS * LENGTH
    other.advance(other.init(), 1)
    with Checkpoints(tmp_path, keep_last=1, warn=pytest.fail) as checkpoints:
        checkpoints.save(3, saved, {})
        checkpoints.wait()
        restored = checkpoints.restore(loop.template)[0]
    again, _ = other.advance(other.load(restored), 3)
    state, _ = loop.advance(state, 3)
    assert_same_bits(loop.save(state), other.save(again))
    assert loop.evaluate(state)["eval/return_mean"] == loop.evaluate(state)["eval/length_mean"]
    start, second = loop.advance(loop.init(), 3)
    assert_same_bits(loop.save(start), saved)
    for name in metrics:
        np.testing.assert_array_equal(metrics[name], second[name])


@pytest.mark.slow
def test_each_seed_of_a_host_run_has_statistics_of_its_own():
    pair = host_cartpole(num_seeds=2)
    saved = pair.save(pair.advance(pair.init(), 3)[0])
    for seed in range(2):
        alone = host_cartpole(seed=seed)
        mine = alone.save(alone.advance(alone.init(), 3)[0])
        for name in ("count", "mean", "var"):
            np.testing.assert_allclose(
                saved.env["rewards"][name][seed], mine.env["rewards"][name][0], rtol=1e-12
            )
        assert_close(
            jax.tree.map(lambda x, s=seed: x[s], saved.algo), mine.algo, rtol=1e-4, atol=1e-5
        )
