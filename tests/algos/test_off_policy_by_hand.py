"""One step of plain gradient descent, at rate 0.1, of networks without hidden layers: by hand.

Of the loss ½ (y - q)² each weight changes by 0.1 (y - q) times what it multiplies.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.types import Box, Discrete, EnvSpec, NStepBatch

from .small_off_policy import make_small

PLAIN = {"net.hidden_sizes": (), "optimizer.name": "sgd", "optimizer.learning_rate": 0.1}
TWO = EnvSpec("Two-v0", (2,), np.float32, Discrete(2), 5)
REAL = EnvSpec("Real-v0", (1,), np.float32, Box(-2 * np.ones(1, "f"), 2 * np.ones(1, "f")), 5)


def rows(size, **fields) -> NStepBatch:
    """The same step, `size` times."""
    fields = {"terminated": False, "truncated": False, **fields}
    return NStepBatch(**{k: np.stack([np.asarray(v)] * size) for k, v in fields.items()})


def layer(kernel, bias):
    return {"kernel": jnp.array(kernel, jnp.float32), "bias": jnp.array(bias, jnp.float32)}


def update(algo, batch, params, targets):
    """One update from these networks; they must have the shapes of those that `init` makes."""
    state = algo.init(jax.random.key(0))
    for given, made in ((params, state.params), (targets, state.targets)):
        assert jax.tree.map(jnp.shape, given) == jax.tree.map(jnp.shape, made)
    state = state._replace(params=params, targets=targets)
    return algo.update(jax.random.key(1), state, batch, np.int32(0))


def assert_layer(layer, kernel, bias, atol=1e-6):
    np.testing.assert_allclose(layer["kernel"], kernel, atol=atol)
    np.testing.assert_allclose(layer["bias"], bias, atol=atol)


STEP = {
    "observation": np.array([1, 0], "f"),
    "action": np.int32(0),
    "reward": np.float32(1),
    "next_observation": np.array([0, 1], "f"),
}


@pytest.mark.parametrize(
    ("double", "huber_delta", "discount", "error"),
    [
        # The largest target value is 6: y = 1 + 0.5 · 6 = 4, and q = 1.
        (False, None, 0.5, 3.0),
        (False, 1.0, 0.5, 1.0),
        # The network itself prefers action 0, which the target says is worth 2: y = 2.
        (True, None, 0.5, 1.0),
        # It was the end: y = 1.
        (False, None, 0.0, 0.0),
    ],
)
def test_dqn(double, huber_delta, discount, error):
    """`error` is the derivative of the loss: y - q, cut off at huber_delta."""
    algo = make_small("dqn", TWO, double=double, huber_delta=huber_delta, **PLAIN)
    q, target = layer([[1, 5], [3, 4]], [0, 0]), layer([[5, 2], [0, 6]], [0, 0])
    batch = rows(4, **STEP, discount=np.float32(discount))
    batch = batch._replace(terminated=np.full(4, discount == 0))
    state, metrics = update(algo, batch, {"q": {"actions": q}}, {"q": {"actions": target}})
    change = 0.1 * error
    assert_layer(state.params["q"]["actions"], [[1 + change, 5], [3, 4]], [change, 0])
    assert_layer(state.targets["q"]["actions"], [[5, 2], [0, 6]], [0, 0])
    assert metrics["q/mean"] == 1.0
    # The same number stands at a weight and at a bias.
    np.testing.assert_allclose(metrics["grad/q_norm"], np.sqrt(2) * error, rtol=1e-6)


def test_dueling():
    """Q = 5 + (1, 3) - 2 = (4, 6): the mean of what the actions add is taken away."""
    algo = make_small("dqn", TWO, dueling=True, double=False, huber_delta=None, **PLAIN)
    zeros = [[0, 0], [0, 0]]
    q = {"actions": layer(zeros, [1, 3]), "common": layer([[0, 0]], [5])}
    batch = rows(1, **STEP, discount=np.float32(0.5))
    state, metrics = update(algo, batch, {"q": q}, {"q": q})
    assert metrics["q/mean"] == 4.0
    assert metrics["q/target_mean"] == 1 + 0.5 * 6
    assert_layer(state.params["q"]["common"], [[0, 0]], [5])  # y = q: nothing to learn
    greedy = algo.act_greedy(state, jnp.zeros((3, 2)))
    np.testing.assert_array_equal(greedy, 1)


def test_c51():
    """Atoms 0 and 1; the reward 0.25 at the end is ¾ and ¼ of them. dL/dlogit = p - target."""
    algo = make_small("c51", TWO, num_atoms=2, value_min=0.0, value_max=1.0, **PLAIN)
    q = {"q": {"actions": layer(np.zeros((4, 2)), np.zeros(4))}}
    batch = rows(2, **{**STEP, "reward": np.float32(0.25)}, discount=np.float32(0))
    state, metrics = update(algo, batch._replace(terminated=np.ones(2, bool)), q, q)
    change = 0.1 * 0.25
    kernel = [[change, 0], [-change, 0], [0, 0], [0, 0]]
    assert_layer(state.params["q"]["actions"], kernel, [change, -change, 0, 0])
    np.testing.assert_allclose(metrics["loss/critic"], np.log(2), rtol=1e-6)


# Critics see (s, a / 2). From s = 1 and a = 1, q1 = 1 + 2 · 0.5 = 2 and q2 = 0; the target actor
# does nothing at s' = 3, where the targets are q1' = 3 and q2' = 15: y = 1 + 0.5 · 3 = 2.5.
MOVE = {
    "observation": np.ones(1, "f"),
    "action": np.ones(1, "f"),
    "reward": np.float32(1),
    "discount": np.float32(0.5),
    "next_observation": 3 * np.ones(1, "f"),
}
Q1, Q2 = {"value": layer([[1, 2]], [0])}, {"value": layer([[0, 0]], [0])}
TARGET_Q1, TARGET_Q2 = {"value": layer([[1, 1]], [0])}, {"value": layer([[5, 1]], [0])}
ACTOR = {"logits": layer([[0]], [0])}


def test_ddpg():
    """The actor climbs the critic that has just learned: by 0.1 · 2.025 tanh'(0) a weight."""
    algo = make_small("ddpg", REAL, **PLAIN)
    params, targets = (
        {"actor": ACTOR, "critic": Q1},
        {"actor": ACTOR, "critic": TARGET_Q1},
    )
    state, metrics = update(algo, rows(3, **MOVE), params, targets)
    assert_layer(state.params["critic"]["value"], [[1.05, 2.025]], [0.05])
    assert_layer(state.params["actor"]["logits"], [[0.2025]], [0.2025])
    assert metrics["loss/critic"] == 0.5 * 0.5**2
    # Minus the new critic's value of doing nothing: -(1.05 + 0.05).
    np.testing.assert_allclose(metrics["loss/actor"], -1.1, rtol=1e-6)


def test_td3():
    """Both critics learn the lower target; the actor climbs the first."""
    algo = make_small("td3", REAL, policy_delay=1, target_noise=0.0, **PLAIN)
    params = {"actor": ACTOR, "critic": {"q1": Q1, "q2": Q2}}
    targets = {"actor": ACTOR, "critic": {"q1": TARGET_Q1, "q2": TARGET_Q2}}
    state, metrics = update(algo, rows(3, **MOVE), params, targets)
    assert_layer(state.params["critic"]["q1"]["value"], [[1.05, 2.025]], [0.05])
    assert_layer(state.params["critic"]["q2"]["value"], [[0.25, 0.125]], [0.25])
    assert_layer(state.params["actor"]["logits"], [[0.2025]], [0.2025])
    assert (metrics["q/gap"], metrics["q/target_mean"]) == (2.0, 2.5)


def test_sac():
    """With a narrow policy around doing nothing, the target is lower by what entropy it lacks.

    Its density: E[log p] = -(½ log 2πe - 5 + log 2) = 2.888 for a deviation of 2 exp(-5), so that
    y = 1 + 0.5 (3 - 0.5 · 2.888) = 1.778 in the mean; one draw deviates by 0.18 from it.
    """
    algo = make_small("sac", REAL, temperature=0.5, **PLAIN)
    actor = {"mean": layer([[0]], [0]), "log_std_head": layer([[0]], [-9])}  # bounded to -5
    params = {
        "actor": actor,
        "critic": {"q1": Q1, "q2": Q2},
        "temperature": {"log": jnp.log(jnp.float32(0.5))},
    }
    targets = {"critic": {"q1": TARGET_Q1, "q2": TARGET_Q2}}
    state, metrics = update(algo, rows(4096, **MOVE), params, targets)
    y = float(metrics["q/target_mean"])
    assert y == pytest.approx(1.778, abs=0.015)
    error1, error2 = 0.1 * (y - 2), 0.1 * y
    critics = state.params["critic"]
    assert_layer(critics["q1"]["value"], [[1 + error1, 2 + error1 / 2]], [error1], atol=1e-4)
    assert_layer(critics["q2"]["value"], [[error2, error2 / 2]], [error2], atol=1e-4)
    np.testing.assert_allclose(metrics["policy/entropy"], -2.888, atol=0.05)
    # The lower critic of doing nothing at s = 1 is the second: its slope in u, and no more, is
    # what moves the mean; the entropy's is 2 tanh(u), 0 in the mean.
    slope = float(critics["q2"]["value"]["kernel"][0, 1])
    assert_layer(state.params["actor"]["mean"], [[0.1 * slope]], [0.1 * slope], atol=2e-4)
