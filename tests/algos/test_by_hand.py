"""VPG and A2C on one episode of three steps, each in a state of its own, by hand.

Rewards 1, 2, 4, discount ½, then the end; actions 0, 1, 0; every V is 1. Rewards to go: 4, then
2 + ½·4 = 4, then 1 + ½·4 = 3. The policy is uniform, so in each state ∇θ log π(a) is +½ for the
action taken and -½ for the other, and a weight w moves them by ±η·w/(2·3).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.types import Discrete, EnvSpec, Rollout

from .small import make_small

SPEC = EnvSpec("ThreeStates-v0", (3,), np.float32, Discrete(2), 3)
RATE, VALUE_RATE = 0.6, 0.3
TABLE = {
    "net.name": "tabular",
    "optimizer.name": "sgd",
    "optimizer.learning_rate": RATE,
    "algo.discount": 0.5,
    "algo.normalize_advantages": False,
}
ROLLOUT = Rollout(
    observations=np.eye(3, dtype=np.float32)[:, None],
    actions=np.int32([[0], [1], [0]]),
    behaviour_log_probs=np.full((3, 1), np.log(0.5), np.float32),
    rewards=np.float32([[1], [2], [4]]),
    terminated=np.array([[False], [False], [True]]),
    truncated=np.zeros((3, 1), bool),
    next_observations=np.eye(3, dtype=np.float32)[[1, 2, 0], None],
    episode_returns=np.float32([[1], [3], [7]]),
    episode_lengths=np.int32([[1], [2], [3]]),
    mask=np.ones((3, 1), bool),
)
SIGNS = np.array([[1, -1], [-1, 1], [1, -1]])  # action 0, 1, 0


def update(name, changes):
    algo = make_small(name, SPEC, {**TABLE, **changes})
    state = algo.init(jax.random.key(0))
    state.params["value"]["values"] = jnp.ones(3)
    return algo.update(jax.random.key(1), state, ROLLOUT)


def check_policy(state, metrics, weights):
    wanted = RATE * np.array(weights)[:, None] / 6 * SIGNS
    np.testing.assert_allclose(state.params["policy"]["rows"], wanted, rtol=1e-5)
    # -mean(w log ½); each of the six numbers of the gradient is ±w/6
    np.testing.assert_allclose(metrics["loss/policy"], np.log(2) * np.mean(weights), rtol=1e-5)
    np.testing.assert_allclose(metrics["policy/entropy"], np.log(2), rtol=1e-6)
    assert metrics["optimizer/learning_rate"] == np.float32(RATE)
    assert state.step == 1


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("return", [3.0, 3.0, 3.0]),
        pytest.param("reward_to_go_baseline", [2.0, 3.0, 3.0], marks=pytest.mark.slow),
        # δ = 4 - 1, 2 + ½ - 1, 1 + ½ - 1, and each takes over ½·½ of the next
        ("advantage", [0.5 + 0.25 * 2.25, 1.5 + 0.25 * 3.0, 3.0]),
    ],
)
def test_vpg(kind, weights):
    state, metrics = update(
        "vpg",
        {
            "algo.weights": kind,
            "algo.lambda_": 0.5,
            "algo.value_learning_rate": VALUE_RATE,
            "algo.value_iterations": 1,
        },
    )
    check_policy(state, metrics, weights)
    norm = np.sqrt(2 * np.sum(np.square(weights))) / 6
    np.testing.assert_allclose(metrics["grad/norm"], norm, rtol=1e-5)
    # The targets are V + the λ-advantage, whatever weighs the policy's gradient.
    advantages = np.array([0.5 + 0.25 * 2.25, 1.5 + 0.25 * 3.0, 3.0])
    wanted = 1 + VALUE_RATE / 3 * advantages
    np.testing.assert_allclose(state.params["value"]["values"], wanted, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss/value"], np.mean(advantages**2) / 2, rtol=1e-5)


def test_a2c():
    state, metrics = update("a2c", {"algo.lambda_": 1.0, "algo.value_coef": 0.5})
    advantages = np.array([2.0, 3.0, 3.0])  # rewards to go 3, 4, 4 less V = 1
    check_policy(state, metrics, advantages)
    # One gradient of policy and value together: V moves by η·½·A/3.
    wanted = 1 + RATE * 0.5 / 3 * advantages
    np.testing.assert_allclose(state.params["value"]["values"], wanted, rtol=1e-5)
    norm = np.sqrt(2 * np.sum((advantages / 6) ** 2) + np.sum((0.5 * advantages / 3) ** 2))
    np.testing.assert_allclose(metrics["grad/norm"], norm, rtol=1e-5)
    # Targets 3, 4, 4; the values before are constant: they explain nothing.
    assert metrics["value/explained_variance"] == 0.0


def test_entropy_bonus_flattens_a_policy():
    """Without advantages only the bonus moves θ: ∇H = -p (log p + H) for each logit."""
    algo = make_small("a2c", SPEC, {**TABLE, "algo.entropy_coef": 0.7})
    state = algo.init(jax.random.key(0))
    theta = np.array([1.0, -1.0])
    state.params["policy"]["rows"] = jnp.tile(jnp.float32(theta), (3, 1))
    nothing = ROLLOUT._replace(rewards=np.zeros((3, 1), np.float32))
    state, metrics = algo.update(jax.random.key(1), state, nothing)
    p = np.exp(theta) / np.exp(theta).sum()
    entropy = -np.sum(p * np.log(p))
    wanted = theta - RATE * 0.7 / 3 * p * (np.log(p) + entropy)
    np.testing.assert_allclose(state.params["policy"]["rows"], np.tile(wanted, (3, 1)), rtol=1e-5)
    np.testing.assert_allclose(metrics["policy/entropy"], entropy, rtol=1e-5)
