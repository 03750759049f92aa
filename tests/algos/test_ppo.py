"""PPO in a world of one state, where each step can be worked out in float64 by another route.

All rows of the batch are alike (action 0, reward 1, the episode ends), so that every minibatch is
the same, however it is shuffled. With p = softmax(θ): ∇θ log p₀ = (1 - p₀)·(1, -1), and the
penalty KL(q‖p) has the gradient p - q.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algos.ppo import adapted_kl_coef

from .small import CHOOSE, ONE_STATE, make_small, one_state_rollout, random_rollout

ROWS = 8
RATE, VALUE_COEF = 0.8, 0.5
PLAIN = {
    "optimizer.learning_rate": RATE,
    "algo.value_coef": VALUE_COEF,
    "algo.normalize_advantages": "none",
    "algo.minibatches": 2,
    "algo.epochs": 3,
}


def by_hand(
    theta, value, *, steps, rate, clip=math.inf, beta=0.0, kl_limit=math.inf, value_clip=math.inf
):
    """θ, V and the steps taken, from the analytic gradients."""
    theta, start = np.array(theta, np.float64), value
    old = np.exp(theta) / np.exp(theta).sum()
    advantage = 1.0 - value
    for used in range(steps):
        p = np.exp(theta) / np.exp(theta).sum()
        ratio = p[0] / old[0]
        if ratio - 1 - math.log(ratio) > kl_limit:
            return theta, value, used
        gradient = -beta * (p - old)
        if not (advantage > 0 and ratio > 1 + clip):
            gradient += ratio * advantage * (1 - p[0]) * np.array([1.0, -1.0])
        theta = theta + rate * gradient
        if abs(value - start) < value_clip:  # beyond, the clipped error is constant and the larger
            value += rate * VALUE_COEF * (1.0 - value)
    return theta, value, steps


def run(algo, state):
    """One update on what the state's policy would give if action 0 came up each time."""
    logits = np.asarray(state.params["policy"]["rows"], np.float64)[0]
    log_prob = logits[0] - np.log(np.exp(logits).sum())
    rollout = one_state_rollout([0] * ROWS, 1.0, log_prob)
    return algo.update(jax.random.key(5), state, rollout)


def check(state, theta, value):
    np.testing.assert_allclose(state.params["policy"]["rows"][0], theta, rtol=1e-5)
    np.testing.assert_allclose(state.params["value"]["values"][0], value, rtol=1e-5)


def test_both_clips_by_hand():
    algo = make_small("ppo", ONE_STATE, {**PLAIN, "algo.clip": 0.2, "algo.value_clip": 0.5})
    state, metrics = run(algo, algo.init(jax.random.key(0)))
    # p₀ = ½, A = 1: the first step moves θ by ±0.8·½ = ±0.4, so ρ = 2σ(0.8) = 1.38 > 1.2 and the
    # policy stops there. V = 0 -> 0.4 -> 0.4 + 0.4·0.6 = 0.64, beyond 0 + 0.5: there it stays.
    check(state, [0.4, -0.4], 0.64)
    check(state, *by_hand([0, 0], 0.0, steps=6, rate=RATE, clip=0.2, value_clip=0.5)[:2])
    # Five of the six minibatches see the ratio outside the band.
    ratio = 2 / (1 + math.exp(-0.8))
    np.testing.assert_allclose(metrics["policy/clip_fraction"], 5 / 6, rtol=1e-6)
    wanted = 5 / 6 * (ratio - 1 - math.log(ratio))
    np.testing.assert_allclose(metrics["policy/behaviour_kl"], wanted, rtol=1e-5)
    # -ρA, unclipped once and at 1.2 five times
    np.testing.assert_allclose(metrics["loss/policy"], -(1 + 5 * 1.2) / 6, rtol=1e-6)
    # ½·max of the two errors: 1, 0.36 (inside the band), and then four times (0.5 - 1)² = 0.25
    wanted = 0.5 * (1 + 0.36 + 4 * 0.25) / 6
    np.testing.assert_allclose(metrics["loss/value"], wanted, rtol=1e-5)
    assert metrics["policy/epochs"] == 3.0
    assert metrics["optimizer/learning_rate"] == np.float32(RATE)
    assert state.step == 1


TARGET_KL = 0.04
STOPPING = {
    **PLAIN,
    "algo.clip": 10.0,  # only the KL stops
    "algo.target_kl": TARGET_KL,
    "algo.kl_stop_factor": 1.25,
    "optimizer.learning_rate": 0.3,
    "optimizer.anneal": True,
}


@pytest.fixture(scope="module")
def stopping():
    return make_small("ppo", ONE_STATE, STOPPING)


def test_early_stop_by_hand(stopping):
    """The minibatches after the KL has passed the limit change neither policy nor value."""
    theta, value, used = by_hand([0, 0], 0.0, steps=6, rate=0.3, kl_limit=1.25 * TARGET_KL)
    assert 1 < used < 6
    state, metrics = run(stopping, stopping.init(jax.random.key(0)))
    check(state, theta, value)
    np.testing.assert_allclose(metrics["policy/epochs"], used / 2, rtol=1e-6)
    # Without the limit all six count.
    free_theta, free_value, _ = by_hand([0, 0], 0.0, steps=6, rate=0.3)
    assert free_theta[0] - theta[0] > 0.1
    assert free_value - value > 0.05


def test_annealing_counts_updates_not_gradient_steps(stopping):
    """rate(u) = lr (1 - u/U), U = 10, although the KL stops some updates early."""
    state, theta, value = stopping.init(jax.random.key(0)), [0.0, 0.0], 0.0
    counts = []
    for u in range(10):
        rate = 0.3 * (1 - u / 10)
        theta, value, used = by_hand(theta, value, steps=6, rate=rate, kl_limit=1.25 * TARGET_KL)
        state, metrics = run(stopping, state)
        np.testing.assert_allclose(metrics["optimizer/learning_rate"], rate, rtol=1e-6)
        np.testing.assert_allclose(metrics["policy/epochs"], used / 2, rtol=1e-6)
        np.testing.assert_allclose(state.params["policy"]["rows"][0], theta, rtol=1e-4)
        np.testing.assert_allclose(state.params["value"]["values"][0], value, rtol=1e-4)
        counts.append(used)
    assert min(counts) < 6
    assert state.step == 10


def kl_from_uniform(theta):
    """KL(½ ‖ softmax(θ)) = -½ log(4 p₀ p₁)."""
    p = np.exp(theta) / np.exp(theta).sum()
    return -0.5 * math.log(4 * p[0] * p[1])


def test_fixed_penalty_by_hand():
    algo = make_small("ppo", ONE_STATE, {**PLAIN, "algo.kl_penalty": "fixed", "algo.kl_coef": 3.0})
    state, metrics = run(algo, algo.init(jax.random.key(0)))
    theta, value, _ = by_hand([0, 0], 0.0, steps=6, rate=RATE, beta=3.0)
    check(state, theta, value)
    assert metrics["policy/kl_coef"] == state.kl_coef == 3.0
    assert "policy/clip_fraction" not in metrics
    # The penalty holds the policy back: without it, it would be further.
    assert by_hand([0, 0], 0.0, steps=6, rate=RATE)[0][0] > theta[0] + 0.2


def test_adaptive_penalty_doubles_and_halves():
    changes = {"algo.kl_penalty": "adaptive", "algo.kl_coef": 0.1, "algo.target_kl": 0.05}
    algo = make_small("ppo", ONE_STATE, {**PLAIN, **changes})
    first = algo.init(jax.random.key(0))
    assert first.kl_coef == np.float32(0.1)
    # A weak penalty lets the KL grow far beyond the target, a strong one keeps it far below.
    for kl_coef, factor in [(0.1, 2.0), (5.0, 0.5)]:
        state, metrics = run(algo, first._replace(kl_coef=jnp.float32(kl_coef)))
        theta, value, _ = by_hand([0, 0], 0.0, steps=6, rate=RATE, beta=kl_coef)
        check(state, theta, value)
        kl = kl_from_uniform(theta)
        assert kl > 1.5 * 0.05 if factor == 2.0 else kl < 0.05 / 1.5
        assert metrics["policy/kl_coef"] == np.float32(kl_coef)  # the one that this update used
        assert state.kl_coef == np.float32(kl_coef) * factor
        assert metrics["policy/epochs"] == 3.0  # the target is no limit here


@pytest.mark.parametrize(
    ("kl", "wanted"),
    # target 0.01: doubled above 0.015, halved below 0.00667, kept between
    [(0.0151, 4.0), (0.0149, 2.0), (0.01, 2.0), (0.0067, 2.0), (0.0066, 1.0), (0.0, 1.0)],
)
def test_adapted_coefficient(kl, wanted):
    assert float(adapted_kl_coef(jnp.float32(2.0), jnp.float32(kl), 0.01)) == wanted


def test_ratio_starts_at_one():
    """In every update, though the moments change: acting and learning use the same ones.

    Observations are 100 ± 30: with other moments the ratios would be far from 1.
    """
    changes = {"net.name": "tabular", "normalize_observations": True}  # linear in observations
    one_step = {"algo.epochs": 1, "algo.minibatches": 1, "optimizer.learning_rate": 0.05}
    algo = make_small("ppo", CHOOSE, {**changes, **one_step})
    rng, state = np.random.default_rng(0), algo.init(jax.random.key(1))
    for u in range(4):
        rollout = random_rollout(rng, CHOOSE, 6, 8, centre=100 - 20 * u, spread=30)
        noise = algo.draw(jax.random.key(u), (6, 8))
        actions, log_probs = algo.act(noise, state, rollout.observations)
        rollout = rollout._replace(actions=actions, behaviour_log_probs=log_probs)
        before = np.asarray(state.params["policy"]["rows"])
        state, metrics = algo.update(jax.random.key(u), state, rollout)
        assert metrics["policy/clip_fraction"] == 0.0
        # exp(l) - 1 - l of rounding errors l: a few ulps of 1
        np.testing.assert_allclose(metrics["policy/behaviour_kl"], 0.0, atol=5e-7)
        # -mean(A) of whitened advantages
        np.testing.assert_allclose(metrics["loss/policy"], 0.0, atol=1e-6)
        assert metrics["policy/epochs"] == 1.0
        assert (np.asarray(state.params["policy"]["rows"]) != before).all()


@pytest.mark.errors
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algo.kl_penalty": "hard"}, r"config\.algo\.kl_penalty is 'hard'.*none, fixed, adaptive"),
        ({"algo.normalize_advantages": "yes"}, r"normalize_advantages is 'yes'.*batch, minibatch"),
        ({"algo.kl_penalty": "adaptive"}, r"'adaptive'.*config\.algo\.target_kl"),
        ({"optimizer.name": "lion"}, r"config\.optimizer\.name is 'lion'.*adam, rmsprop, sgd"),
    ],
)
def test_bad_settings(changes, words):
    with pytest.raises(ValueError, match=words) as error:
        make_small("ppo", ONE_STATE, changes)
    assert "\n" not in str(error.value)
