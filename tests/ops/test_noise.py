"""Exploration noise by hand, and its statistics against theory; the bits come from NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.noise import epsilon_greedy, linear_decay, noisy_actions, ornstein_uhlenbeck


def test_noisy_actions_by_hand():
    # Half-widths 2 and ½: shifts .5·(1, -1)·(2, ½) = (1, -¼); (3, 3) -> (3, .75), out of the box.
    low, high = jnp.array([-2.0, 0.0]), jnp.array([2.0, 1.0])
    noise, actions = jnp.array([[1.0, -1.0], [3.0, 3.0]]), jnp.array([[0.0, 0.5], [0.0, 0.5]])
    box = {"low": low, "high": high}
    np.testing.assert_allclose(
        noisy_actions(noise, actions, std=0.5, **box), [[1.0, 0.25], [2.0, 1.0]], rtol=1e-6
    )
    # Noise bounded to ±.6 half-widths before it is added: (1, -¼) stay, (3, .75) become (1.2, .3).
    np.testing.assert_allclose(
        noisy_actions(noise, actions, std=0.5, clip=0.6, **box),
        [[1.0, 0.25], [1.2, 0.8]],
        rtol=1e-6,
    )
    # No deviation, no change; each dimension may have its own.
    np.testing.assert_array_equal(noisy_actions(noise, actions, std=0.0, **box), actions)
    each = noisy_actions(noise, actions, std=jnp.array([0.5, 0.0]), **box)
    np.testing.assert_allclose(each, [[1.0, 0.5], [2.0, 0.5]], rtol=1e-6)


def test_target_smoothing_has_the_moments_of_a_normal_cut_at_its_bound():
    # N(0, .2²) bounded to ±.3 = ±1.5 σ: variance σ² (1 - 2φ(c)c - 2Q(c)(1 - c²)), with c = 1.5 and
    # Q the upper tail: the mass inside, and what sits on the bounds.
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(100_000, 1)).astype(np.float32)
    smoothed = noisy_actions(noise, np.zeros_like(noise), std=0.2, low=-1.0, high=1.0, clip=0.3)
    phi = math.exp(-0.5 * 1.5**2) / math.sqrt(2 * math.pi)
    tail = 0.5 * math.erfc(1.5 / math.sqrt(2))
    variance = 0.04 * (1 - 2 * 1.5 * phi - 2 * tail * (1 - 1.5**2))
    smoothed = np.asarray(smoothed, np.float64)
    np.testing.assert_allclose(smoothed.var(), variance, rtol=0.02)
    assert abs(smoothed.mean()) < 0.003
    np.testing.assert_allclose(np.mean(smoothed >= 0.3 - 1e-6), tail, rtol=0.05)


def roll(noise, restart, theta, std, dt):
    """x at each of T steps from 0 on."""

    def step(x, now):
        x = ornstein_uhlenbeck(*now[:1], x, now[1], theta=theta, std=std, dt=dt)
        return x, x

    return jax.jit(lambda *x: jax.lax.scan(step, jnp.zeros_like(noise[0]), x)[1])(noise, restart)


def test_drift_by_hand():
    # θ dt = ½, σ √dt = ½: x = 2 -> 2 - 1 + ½·(-1) = ½. Where an episode begins, 0 - 0 + ½·(-1),
    # whatever was carried.
    noise = -jnp.ones((3, 1))
    state, restart = jnp.array([[2.0], [2.0], [jnp.nan]]), jnp.array([0, 1, 1])
    moved = ornstein_uhlenbeck(noise, state, restart, theta=2.0, std=1.0, dt=0.25)
    np.testing.assert_allclose(moved, [[0.5], [-0.5], [-0.5]], rtol=1e-6)


def test_each_episode_begins_anew():
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(12, 4, 2)).astype(np.float32)
    restart = np.zeros((12, 4), bool)
    restart[5, 1] = restart[5, 2] = restart[9, 2] = True
    whole = roll(noise, restart, 0.15, 0.2, 1.0)
    no = np.zeros((12, 1), bool)
    for env, begins in ((0, [0]), (1, [0, 5]), (2, [0, 5, 9])):
        for begin, end in zip(begins, [*begins[1:], 12]):
            alone = roll(noise[begin:end, env : env + 1], no[begin:end], 0.15, 0.2, 1.0)
            np.testing.assert_allclose(whole[begin:end, env], alone[:, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("theta", "std", "dt"), [(0.15, 0.2, 1.0), (0.15, 0.2, 0.5), (1.5, 1.0, 1)]
)
def test_long_run_deviation_and_correlation(theta, std, dt):
    # An AR(1) process of factor a = 1 - θ dt and increments σ √dt: variance σ² dt/(1 - a²) and
    # autocorrelation a^k. 500 chains, 200 steps after 200 to forget the start.
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(400, 500, 1)).astype(np.float32)
    x = np.asarray(roll(noise, np.zeros((400, 500), bool), theta, std, dt), np.float64)[200:, :, 0]
    factor = 1 - theta * dt
    np.testing.assert_allclose(x.std(), std * math.sqrt(dt / (1 - factor**2)), rtol=0.03)
    assert abs(x.mean()) < 0.05 * x.std()
    for lag in (1, 3):
        correlation = np.mean(x[lag:] * x[:-lag]) / np.mean(x**2)
        np.testing.assert_allclose(correlation, factor**lag, atol=0.03)


def test_small_steps_of_time_change_the_correlation_and_not_the_size():
    """σ / √(2θ) in the long run, whatever dt is, as long as θ dt is small."""
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(600, 1000, 1)).astype(np.float32)
    restart = np.zeros((600, 1000), bool)
    for dt in (0.02, 0.1):
        x = np.asarray(roll(noise, restart, 1.0, 0.5, dt), np.float64)[300:]
        np.testing.assert_allclose(x.std(), 0.5 / math.sqrt(2), rtol=0.05)


def test_linear_decay_by_hand():
    decay = jax.jit(lambda step: linear_decay(step, start=1.0, end=0.05, steps=1000))
    for step, wanted in ((0, 1.0), (1, 0.99905), (500, 0.525), (999, 0.05095)):
        np.testing.assert_allclose(decay(step), wanted, rtol=1e-5)
    for step in (1000, 1001, 2**31 - 1):
        assert decay(step) == np.float32(0.05)
    assert decay(np.uint32(3 * 10**9)) == np.float32(0.05)
    # Up is a direction, too, and steps beyond 2^31 are a number of steps.
    rising = linear_decay(jnp.uint32(2**31), start=0.4, end=1.0, steps=2**32)
    np.testing.assert_allclose(rising, 0.7, rtol=1e-6)


def test_epsilon_greedy_by_hand():
    # u < ε explores, u = ε does not. ν = .99 is the last of three actions, .34 the second.
    q_values = jnp.array([[5.0, 1.0, 2.0]] * 4)
    noise = jnp.array([[0.0, 0.99], [0.249, 0.34], [0.25, 0.99], [0.9, 0.34]])
    np.testing.assert_array_equal(epsilon_greedy(noise, q_values, epsilon=0.25), [2, 1, 0, 0])
    np.testing.assert_array_equal(epsilon_greedy(noise, q_values, epsilon=0.0), [0, 0, 0, 0])
    np.testing.assert_array_equal(epsilon_greedy(noise, q_values, epsilon=1.0), [2, 1, 2, 1])
    # Each row may have its own.
    epsilon = jnp.array([0.0, 0.25, 1.0, 0.0])
    np.testing.assert_array_equal(epsilon_greedy(noise, q_values, epsilon=epsilon), [0, 1, 2, 0])
    largest = jnp.full((1, 2), np.nextafter(np.float32(1), np.float32(0)))
    for num_actions in (3, 7, 1001):
        actions = epsilon_greedy(largest, jnp.zeros((1, num_actions)), epsilon=1.0)
        assert actions == num_actions - 1


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
def test_epsilon_greedy_frequencies(epsilon):
    """(1 - ε) + ε/A for the best action and ε/A for every other, within five standard errors."""
    rng = np.random.default_rng(4)
    count, num_actions = 100_000, 5
    noise = rng.random((count, 2), dtype=np.float32)
    q_values = np.broadcast_to(np.float32([0.0, 1.0, 7.0, -2.0, 3.0]), (count, num_actions))
    actions = np.asarray(epsilon_greedy(noise, q_values, epsilon=epsilon))
    assert actions.dtype == np.int32
    shares = np.bincount(actions, minlength=num_actions) / count
    wanted = np.full(num_actions, epsilon / num_actions)
    wanted[2] += 1 - epsilon
    np.testing.assert_array_less(
        np.abs(shares - wanted), 5 * np.sqrt(wanted * (1 - wanted) / count) + 1e-9
    )


def test_float32_whatever_comes_in():
    half = jnp.array([[0.5, -0.25]], jnp.bfloat16)
    for result in (
        noisy_actions(half, half, std=0.5, low=-1.0, high=1.0, clip=1.0),
        ornstein_uhlenbeck(half, half, jnp.zeros(1), theta=0.15, std=0.2, dt=1.0),
        linear_decay(jnp.array([3, 4]), start=1, end=0, steps=10),
    ):
        assert result.dtype == jnp.float32


@pytest.mark.errors
def test_bad_arguments_are_named():
    two, box = jnp.zeros((5, 2)), {"low": -1.0, "high": 1.0}
    for bad in (jnp.zeros((5, 1)), jnp.zeros(5)):
        with pytest.raises(ValueError, match=r"noise \(5.*\) and actions \(5, 2\)"):
            noisy_actions(bad, two, std=0.1, **box)
        with pytest.raises(ValueError, match=r"std .*\(5, 2\), got \(5"):
            noisy_actions(two, two, std=bad, **box)
        with pytest.raises(ValueError, match=r"noise \(5.*\) and state \(5, 2\)"):
            ornstein_uhlenbeck(bad, two, jnp.zeros(5), theta=0.1, std=0.1, dt=1.0)
    with pytest.raises(ValueError, match=r"state \(5, 2\) and restart \(5, 1\)"):
        ornstein_uhlenbeck(two, two, jnp.zeros((5, 1)), theta=0.1, std=0.1, dt=1.0)
    with pytest.raises(ValueError, match=r"noise must have shape \(5, 2\), got \(5,\)"):
        epsilon_greedy(jnp.zeros(5), jnp.zeros((5, 3)), epsilon=0.1)
    with pytest.raises(ValueError, match=r"epsilon .*\(5,\), got \(5, 1\)"):
        epsilon_greedy(two, jnp.zeros((5, 3)), epsilon=jnp.zeros((5, 1)))
    for steps in (0, -3, math.nan):
        with pytest.raises(ValueError, match=f"steps must be above 0, got {steps}"):
            linear_decay(0, start=1.0, end=0.1, steps=steps)
