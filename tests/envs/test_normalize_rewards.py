"""Reward normalisation, of pure-JAX and of host environments: one kind of test for both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import host_transforms, transforms
from rljax.envs.gymnasium import make_host
from rljax.ops.moments import variance

from .scripted import host_player, jax_player, script

KINDS = ("jax", "host")
both_kinds = pytest.mark.parametrize("kind", KINDS)


def play(kind, steps, discount):
    """Transitions [T, B], and count, mean and variance of the running returns after each step."""
    length, num_envs = steps.reward.shape
    if kind == "jax":
        envs = transforms.normalize_rewards(jax_player(steps), discount=discount)

        def one(state, draws):
            state, transition = envs.step(draws, state, jnp.zeros(num_envs, jnp.int32))
            count, mean = state.moments.count, state.moments.mean
            return state, (transition, count, mean, variance(state.moments))

        state, _ = envs.reset(jax.random.key(0))
        draws = envs.draw(jax.random.key(1), length)
        outputs = jax.jit(lambda state: jax.lax.scan(one, state, draws))(state)[1]
        return jax.tree.map(np.asarray, outputs)
    envs = host_transforms.normalize_rewards(host_player(steps), discount=discount)
    envs.reset(0)
    transitions, stats = [], []
    for _ in range(length):
        transitions.append(envs.step(np.zeros(num_envs, np.int32)))
        memory = envs.snapshot()["rewards"]
        stats.append([memory[name][0] for name in ("count", "mean", "var")])
    return type(steps)(*map(np.stack, zip(*transitions))), *np.transpose(stats)


def running_returns(steps, discount):
    """[T, B]: each summed afresh from the start of its episode; NaN where no step was taken."""
    length, num_envs = steps.reward.shape
    returns = np.full((length, num_envs), np.nan)
    for b in range(num_envs):
        episode = []
        for t in np.flatnonzero(steps.mask[:, b]):
            episode.append(float(steps.reward[t, b]))
            powers = discount ** np.arange(len(episode))[::-1]
            returns[t, b] = np.dot(powers, episode)
            if steps.terminated[t, b] or steps.truncated[t, b]:
                episode = []
    return returns


def scaled(rewards, returns):
    """Rewards over the deviation of all returns so far; unbounded."""
    var = np.array([np.nanvar(returns[: t + 1]) for t in range(len(returns))])
    return np.where(var > 0, 1 / np.sqrt(var + 1e-8), 1.0)[:, None] * rewards


DONE = np.array([[0], [0], [1], [0], [0]])


@both_kinds
@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
def test_by_hand(kind, end):
    """R = 1, 1 + 1/2, 1 + 3/4, then a new episode: 1, 3/2; reset neither early nor never."""
    ends = {name: DONE for name in ("terminated", "truncated") if end in (name, "both")}
    transitions, count, mean, var = play(kind, script(np.ones((5, 1)), **ends), 0.5)
    expected = np.array([1.0, 1.5, 1.75, 1.0, 1.5])
    np.testing.assert_array_equal(count, [1, 2, 3, 4, 5])
    np.testing.assert_allclose(np.diff(count * mean, prepend=0), expected, rtol=1e-5)
    # Of 1, 1.5: 1/16. Of three, mean 17/12: (25 + 1 + 16)/144/3. Of four, mean 21/16:
    # (25 + 9 + 49 + 25)/256/4. Of five, mean 1.35: 0.45/5.
    by_hand = [0.0, 0.0625, 0.0972222, 0.1054688, 0.09]
    np.testing.assert_allclose(var, by_hand, atol=1e-6)
    reward = [1.0, 4.0, 3.2071347, 3.0792014, 3.3333333]
    np.testing.assert_allclose(transitions.reward[:, 0], reward, rtol=1e-5)
    for faulty in ([1.0, 1.5, 1.0, 1.5, 1.75], [1.0, 1.5, 1.75, 1.875, 1.9375]):
        wrong = scaled(np.ones((5, 1)), np.array(faulty)[:, None])[:, 0]
        assert not np.allclose(transitions.reward[:, 0], wrong, rtol=1e-2)


@both_kinds
def test_statistics_are_those_of_the_joined_data(kind):
    """Several environments with ends of every kind at different times; host: steps not taken."""
    rng = np.random.default_rng(0)
    length, num_envs, discount = 80, 5, 0.9
    shape = (length, num_envs)
    steps = script(
        3.0 + 2.0 * rng.normal(size=shape),
        terminated=rng.random(shape) < 0.1,
        truncated=rng.random(shape) < 0.1,
        mask=(rng.random(shape) < 0.8) | (kind == "jax"),
    )
    steps.reward[~steps.mask] = np.nan
    transitions, count, mean, var = play(kind, steps, discount)
    returns = running_returns(steps, discount)
    so_far = [returns[: t + 1] for t in range(length)]
    np.testing.assert_array_equal(count, [np.isfinite(x).sum() for x in so_far])
    np.testing.assert_allclose(mean, [np.nanmean(x) for x in so_far], rtol=1e-5)
    np.testing.assert_allclose(var, [np.nanvar(x) for x in so_far], rtol=1e-4)
    expected = np.clip(scaled(steps.reward, returns), -10, 10)[steps.mask]
    assert (expected > 0).any()
    assert (expected < 0).any()
    np.testing.assert_allclose(transitions.reward[steps.mask], expected, rtol=1e-4)
    for name in set(steps._fields) - {"reward", "mask"}:
        np.testing.assert_array_equal(getattr(transitions, name), getattr(steps, name))
    assert transitions.reward.dtype == np.float32
    if kind == "host":
        np.testing.assert_array_equal(transitions.mask, steps.mask)
        assert not steps.mask.all()
    else:
        assert transitions.mask is None


def test_an_end_outside_the_mask_ends_nothing():
    """The call spent on a reset, whatever its flags say."""
    mask = np.array([[1], [0], [1]])
    steps = script([[1.0], [5.0], [1.0]], terminated=1 - mask, truncated=1 - mask, mask=mask)
    _, count, mean, _ = play("host", steps, 0.5)
    np.testing.assert_allclose(count * mean, [1.0, 1.0, 1.0 + 1.5], rtol=1e-6)


@both_kinds
def test_without_a_spread_rewards_pass(kind):
    for reward in (-0.1, 0.0, 7.0):
        transitions, *_, var = play(kind, script(np.full((40, 3), reward)), 0.0)
        np.testing.assert_array_equal(var, 0.0)
        np.testing.assert_array_equal(transitions.reward, np.float32(reward))
    transitions, *_ = play(kind, script(np.full((1, 3), -16.0)), 0.9)
    np.testing.assert_array_equal(transitions.reward, -10.0)


@both_kinds
def test_a_late_reward_is_bounded(kind):
    """After 799 zeros in two environments 100 lies 28 deviations from them."""
    rewards = np.zeros((400, 2))
    rewards[-1, 0] = 100.0
    transitions, *_ = play(kind, script(rewards), 0.99)
    np.testing.assert_array_equal(transitions.reward[:-1], 0.0)
    np.testing.assert_array_equal(transitions.reward[-1], [10.0, 0.0])


def test_a_saved_state_goes_on_bit_for_bit():
    rng = np.random.default_rng(1)
    steps = script(rng.normal(size=(20, 3)), terminated=rng.random((20, 3)) < 0.2)
    envs = transforms.normalize_rewards(jax_player(steps), discount=0.9)
    step, actions = jax.jit(envs.step), jnp.zeros(3, jnp.int32)
    draws = envs.draw(jax.random.key(1), 20)
    state, _ = envs.reset(jax.random.key(0))
    for t in range(10):
        state, _ = step(draws[t], state, actions)
    again = jax.tree.map(lambda x: jnp.array(np.array(x)), state)
    for t in range(10, 20):
        state, ours = step(draws[t], state, actions)
        again, theirs = step(draws[t], again, actions)
        np.testing.assert_array_equal(ours.reward, theirs.reward)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_a_restored_host_goes_on_bit_for_bit(mode):
    """From before an end, at an end and after it, in environments that stand elsewhere."""

    def make():
        inner = make_host("Pendulum-v1", 2, autoreset_mode=mode, max_episode_steps=7)
        return host_transforms.normalize_rewards(inner, discount=0.9)

    envs, fresh = make(), make()
    envs.reset(3)
    actions = np.random.default_rng(0).uniform(-2, 2, (40, 2, 1)).astype(np.float32)
    trees, rewards = {}, []
    for t, action in enumerate(actions):
        if t in (0, 3, 7, 8, 29):
            trees[t] = envs.snapshot()
        rewards.append(envs.step(action).reward)
    end = envs.snapshot()["rewards"]
    for t, tree in trees.items():
        fresh.restore(tree)
        for k in range(t, 40):
            np.testing.assert_array_equal(fresh.step(actions[k]).reward, rewards[k])
        for name, value in fresh.snapshot()["rewards"].items():
            np.testing.assert_array_equal(value, end[name])
    # A reset starts all over, the statistics too.
    for _ in range(2):
        envs.reset(3)
        for t in range(20):
            np.testing.assert_array_equal(envs.step(actions[t]).reward, rewards[t])


def test_each_group_has_statistics_of_its_own():
    rng = np.random.default_rng(2)
    rewards, ends = rng.normal(size=(30, 4)), rng.random((30, 4)) < 0.2
    rewards[:, 2:] *= 50
    whole = host_transforms.normalize_rewards(
        host_player(script(rewards, ends)), discount=0.9, num_groups=2
    )
    halves = [
        host_transforms.normalize_rewards(
            host_player(script(rewards[:, part], ends[:, part])), discount=0.9
        )
        for part in (slice(0, 2), slice(2, 4))
    ]
    for envs in (whole, *halves):
        envs.reset(0)
    for _ in range(30):
        one = whole.step(np.zeros(4, np.int32)).reward
        two = np.concatenate([half.step(np.zeros(2, np.int32)).reward for half in halves])
        np.testing.assert_array_equal(one, two)


@pytest.mark.errors
@pytest.mark.parametrize("discount", [-0.1, 1.5, np.nan])
def test_discounts_that_are_none(discount):
    steps = script(np.zeros((1, 4)))
    with pytest.raises(ValueError, match=rf"^discount is {discount}: it must be in \[0, 1\]$"):
        transforms.normalize_rewards(jax_player(steps), discount=discount)
    with pytest.raises(ValueError, match=rf"^discount is {discount}: it must be in \[0, 1\]$"):
        host_transforms.normalize_rewards(host_player(steps), discount=discount)


@pytest.mark.errors
def test_groups_that_do_not_divide():
    with pytest.raises(ValueError, match=r"^4 environments cannot be split into 3 groups$"):
        host_transforms.normalize_rewards(
            host_player(script(np.zeros((1, 4)))), discount=0.9, num_groups=3
        )
