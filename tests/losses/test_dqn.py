"""Q-learning by hand: reported faults, then sweeps against float64 by cases."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses.dqn import dqn_loss, dqn_targets


def test_double_q_by_hand():
    # The trained network likes action 1 (3 > 2 > 1), the target network values it at ½:
    # 1 + .9·½ = 1.45. The target network's own best, 5, would give 5.5; the trained network's
    # value of its choice 3.7.
    rewards, no = jnp.array([1.0]), jnp.zeros(1, bool)
    next_q, online = jnp.array([[4.0, 0.5, 5.0]]), jnp.array([[1.0, 3.0, 2.0]])
    double = dqn_targets(rewards, no, next_q, discount=0.9, next_q_online=online)
    np.testing.assert_allclose(double, [1.45], rtol=1e-6)
    np.testing.assert_allclose(dqn_targets(rewards, no, next_q, discount=0.9), [5.5], rtol=1e-6)
    # Where both networks agree there is no difference.
    same = dqn_targets(rewards, no, next_q, discount=0.9, next_q_online=next_q)
    np.testing.assert_allclose(same, [5.5], rtol=1e-6)


def test_truncation_keeps_the_bootstrap_and_termination_stops_it():
    # 2 + .99·10 = 11.9 where the episode goes on or was cut by a time limit; 2 where it ended.
    # `truncated` is no argument: that a step was the last one before a cut changes nothing.
    next_q = jnp.array([[10.0, 3.0]] * 3)
    targets = dqn_targets(jnp.full(3, 2.0), jnp.array([0, 1, 0]), next_q, discount=0.99)
    np.testing.assert_allclose(targets, [11.9, 2.0, 11.9], rtol=1e-6)


def test_targets_against_every_action_tried_in_turn():
    rng = np.random.default_rng(0)
    rewards, terminated = rng.normal(size=(6, 5)), rng.random((6, 5)) < 0.3
    next_q, online = rng.normal(size=(2, 6, 5, 3))
    single = dqn_targets(rewards, terminated, next_q, discount=0.9)
    double = dqn_targets(rewards, terminated, next_q, discount=0.9, next_q_online=online)
    for index in np.ndindex(6, 5):
        best, picked = max(next_q[index]), dict(zip(online[index], next_q[index]))
        factor = 0.0 if terminated[index] else 0.9
        np.testing.assert_allclose(single[index], rewards[index] + factor * best, rtol=1e-5)
        wanted = rewards[index] + factor * picked[max(online[index])]
        np.testing.assert_allclose(double[index], wanted, rtol=1e-5)


def test_actions_that_cannot_be_taken():
    next_q, online = jnp.array([[5.0, -jnp.inf, 2.0]]), jnp.array([[0.0, -jnp.inf, 1.0]])
    for settings, wanted in (({}, 6.0), ({"next_q_online": online}, 3.0)):
        targets = dqn_targets(jnp.ones(1), jnp.zeros(1), next_q, discount=1.0, **settings)
        np.testing.assert_array_equal(targets, [wanted])


def per_element(error, **settings):
    """Loss and slope of single errors: Q = error, y = 0."""

    def one(e):
        return dqn_loss(e[None, None], jnp.zeros(1, int), jnp.zeros(1), **settings)[0]

    return jax.jit(jax.vmap(jax.value_and_grad(one)))(jnp.asarray(error, jnp.float32))


def test_huber_by_hand():
    # δ = 2. |e| = 5: 2·(5 - 1) = 8, slope -2. |e| = 1: ½. 0. |e| = 3: 2·(3 - 1) = 4, slope 2.
    each, slope = per_element([-5.0, -1.0, 0.0, 3.0], huber_delta=2.0)
    np.testing.assert_allclose(each, [8.0, 0.5, 0.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(slope, [-2.0, -1.0, 0.0, 2.0], rtol=1e-6)
    # Without δ, ½e² and e.
    each, slope = per_element([-5.0, -1.0, 0.0, 3.0])
    np.testing.assert_allclose(each, [12.5, 0.5, 0.0, 4.5], rtol=1e-6)
    np.testing.assert_allclose(slope, [-5.0, -1.0, 0.0, 3.0], rtol=1e-6)


@pytest.mark.parametrize("delta", [0.1, 1.0, 2.5, 1e4, np.inf])
def test_huber_sweep_against_float64_and_finite_differences(delta):
    errors = np.float32(
        [-1e5, -30.0, -2.5, -1.0, -0.3, -1e-3, 0.0, 0.1, 0.9, 1.0, 2.4, 2.5, 7, 1e5]
    )

    def wanted(e):
        size = abs(np.float64(e))
        return 0.5 * size**2 if size <= delta else delta * (size - 0.5 * delta)

    each, slope = per_element(errors, huber_delta=delta)
    np.testing.assert_allclose(each, [wanted(e) for e in errors], rtol=1e-5)
    h = 1e-4  # of float64 losses
    numeric = [(wanted(e + h) - wanted(e - h)) / (2 * h) for e in np.float64(errors)]
    np.testing.assert_allclose(slope, numeric, rtol=1e-3, atol=2e-4)


def test_only_the_action_taken_is_trained_by_hand():
    # Q of the actions taken: 1, 2, 6; e = -3, 0, 2. ½(9 + 0 + 4)/3 = 13/6; slopes e/3.
    # With weights 2, 9, ½: ½(18 + 0 + 2)/3 = 10/3; slopes w·e/3; the metrics do not change.
    q_values = jnp.array([[1.0, 8.0], [8.0, 2.0], [6.0, 8.0]])
    actions, targets = jnp.array([0, 1, 0]), jnp.array([4.0, 2.0, 4.0])
    for weights, wanted, slopes in (
        (None, 13 / 6, [[-1.0, 0], [0, 0.0], [2 / 3, 0]]),
        (jnp.array([2.0, 9.0, 0.5]), 10 / 3, [[-2.0, 0], [0, 0.0], [1 / 3, 0]]),
    ):
        (loss, metrics), grad = jax.value_and_grad(dqn_loss, has_aux=True)(
            q_values, actions, targets, weights=weights
        )
        np.testing.assert_allclose(loss, wanted, rtol=1e-6)
        np.testing.assert_allclose(grad, slopes, rtol=1e-6)
        assert metrics["loss/critic"] == loss
        np.testing.assert_allclose(metrics["q/mean"], 3.0, rtol=1e-6)
        np.testing.assert_allclose(metrics["q/target_mean"], 10 / 3, rtol=1e-6)
        np.testing.assert_allclose(metrics["q/abs_error"], 5 / 3, rtol=1e-6)


def test_no_gradient_through_the_targets_of_the_same_network():
    """Targets computed inside the differentiated function, from the same parameters."""

    def loss_fn(q_values):
        targets = dqn_targets(jnp.ones(1), jnp.zeros(1), q_values, discount=0.5)
        return dqn_loss(q_values, jnp.array([0]), targets)[0]

    # y = 1 + ½·4 = 3; slope Q - y = 2 - 3 for action 0, none for action 1, whose value y holds.
    np.testing.assert_array_equal(jax.grad(loss_fn)(jnp.array([[2.0, 4.0]])), [[-1.0, 0.0]])


def test_values_of_actions_not_taken_may_be_infinite():
    q_values = jnp.array([[1.0, -jnp.inf], [jnp.nan, 2.0]])
    loss, grad = jax.value_and_grad(lambda q: dqn_loss(q, jnp.array([0, 1]), jnp.zeros(2))[0])(
        q_values
    )
    np.testing.assert_array_equal(loss, 1.25)
    np.testing.assert_array_equal(grad, [[0.5, 0.0], [0.0, 1.0]])


def test_settings_may_be_traced():
    arrays = jnp.array([[3.0]]), jnp.array([0]), jnp.array([0.0])
    np.testing.assert_allclose(jax.jit(dqn_loss)(*arrays, huber_delta=1.0)[0], 2.5, rtol=1e-6)


def test_q_learning_reaches_the_values_of_a_chain():
    """Repeated targets on a table find Q*, by exact enumeration of all policies of the chain.

    States 0, 1, 2; action 1 goes right, action 0 stays; leaving state 2 pays 1 and terminates,
    staying pays 0.1.
    """
    gamma = 0.8
    rewards = jnp.array([[0.1, 0.0], [0.1, 0.0], [0.1, 1.0]])
    terminated = jnp.array([[0, 0], [0, 0], [0, 1]])
    next_state = np.array([[0, 1], [1, 2], [2, 2]])
    q = jnp.zeros((3, 2))
    for _ in range(100):
        q = dqn_targets(rewards, terminated, q[next_state], discount=gamma)
    best = np.full((3, 2), -np.inf)
    for policy in itertools.product([0, 1], repeat=3):
        for state, first in np.ndindex(3, 2):
            total, factor, s, action = 0.0, 1.0, state, first
            for _ in range(200):
                total += factor * float(rewards[s, action])
                if terminated[s, action]:
                    break
                factor, s = factor * gamma, next_state[s, action]
                action = policy[s]
            best[state, first] = max(best[state, first], total)
    np.testing.assert_allclose(q, best, rtol=1e-5)
