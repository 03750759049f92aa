"""TRPO in a world of one state and two actions, where the natural gradient is one number.

With p = softmax(θ) the Fisher matrix is p₀p₁ [[1, -1], [-1, 1]], and the gradient of mean(ρA) at
the old policy points along (1, -1), which F multiplies by 2 p₀p₁. So the full step is d·(1, -1),
with max_kl = ½ (2 p₀p₁ + damping)·2d², that is d = √(max_kl / (2 p₀p₁ + damping)).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .small import ONE_STATE, make_small, one_state_rollout

ACTIONS = [0, 0, 1, 1]
REWARDS = [1.0, 1.0, 0.0, 0.0]  # action 0 is the better one
PLAIN = {
    "algo.normalize_advantages": False,
    "algo.value_iterations": 1,
    "optimizer.learning_rate": 0.25,
}


def probabilities(theta):
    return np.exp(theta) / np.exp(theta).sum()


def kl(theta, new):
    p, q = probabilities(theta), probabilities(new)
    return float(np.sum(p * np.log(p / q)))


def full_step(theta, *, max_kl, damping):
    p = probabilities(theta)
    return np.sqrt(max_kl / (2 * p[0] * p[1] + damping)) * np.array([1.0, -1.0])


def run(theta, **settings):
    """One update from the policy θ: the state before and after, and the metrics."""
    changes = {f"algo.{name}": value for name, value in settings.items()}
    algo = make_small("trpo", ONE_STATE, {**PLAIN, **changes})
    state = algo.init(jax.random.key(0))
    state.params["policy"]["rows"] = jnp.asarray([theta], jnp.float32)
    rollout = one_state_rollout(ACTIONS, REWARDS, np.log(probabilities(theta))[ACTIONS])
    return state, *algo.update(jax.random.key(1), state, rollout)


def check_value_has_moved(state):
    # V ← 0 + 0.25·(½ - 0): the values are fitted whatever becomes of the policy.
    np.testing.assert_allclose(state.params["value"]["values"][0], 0.125, rtol=1e-6)
    assert state.step == 1


def test_full_step_by_hand():
    # d = √(0.01 / (½ + 0.1)) = 0.12910; p₀ = σ(0.2582) = 0.5642, KL = -½ log(4 p₀p₁) = 0.00831.
    _, state, metrics = run(np.zeros(2), max_kl=0.01, damping=0.1)
    np.testing.assert_allclose(state.params["policy"]["rows"][0], [0.12910, -0.12910], atol=1e-5)
    np.testing.assert_allclose(metrics["policy/kl"], 0.00831, atol=1e-5)
    assert metrics["trpo/accepted"] == metrics["trpo/step_fraction"] == 1.0
    # Σ over actions of p A / ½: from ½ to 0.5642
    np.testing.assert_allclose(metrics["trpo/improvement"], 0.0642, atol=1e-4)
    np.testing.assert_allclose(metrics["policy/entropy"], np.log(2), rtol=1e-6)
    check_value_has_moved(state)


@pytest.mark.parametrize(
    ("theta", "settings"),
    [
        # No step is short enough.
        pytest.param([0.3, -0.1], {"max_kl": 0.0}, marks=pytest.mark.slow),
        # A rare action: where p₀p₁ is small the quadratic model sees little of the true KL.
        ([-2.0, 2.0], {"max_kl": 0.5, "damping": 1e-4, "max_backtracks": 1}),
    ],
)
def test_where_the_line_search_fails_the_policy_stays_bit_for_bit(theta, settings):
    if settings["max_kl"] > 0:
        step = full_step(theta, max_kl=0.5, damping=1e-4)
        assert kl(np.array(theta), theta + step) > 3.0
    before, state, metrics = run(theta, **settings)
    rows = before.params["policy"]["rows"]
    assert np.asarray(state.params["policy"]["rows"]).tobytes() == np.asarray(rows).tobytes()
    assert metrics["trpo/accepted"] == metrics["trpo/step_fraction"] == 0.0
    assert metrics["policy/kl"] == metrics["trpo/improvement"] == 0.0
    check_value_has_moved(state)


def test_backtracks_to_the_first_step_within_the_kl():
    theta, max_kl = np.array([-2.0, 2.0]), 0.5
    step = full_step(theta, max_kl=max_kl, damping=1e-4)
    fraction = next(0.8**j for j in range(10) if kl(theta, theta + 0.8**j * step) <= max_kl)
    assert 0.1 < fraction < 0.8
    _, state, metrics = run(theta, max_kl=max_kl, damping=1e-4, backtrack_ratio=0.8)
    rows = np.asarray(state.params["policy"]["rows"][0], np.float64)
    np.testing.assert_allclose(rows, theta + fraction * step, rtol=1e-3)
    np.testing.assert_allclose(metrics["trpo/step_fraction"], fraction, rtol=1e-5)
    np.testing.assert_allclose(metrics["policy/kl"], kl(theta, rows), rtol=1e-4)
    assert kl(theta, rows) <= max_kl
    assert rows[0] > theta[0]  # towards the better action
