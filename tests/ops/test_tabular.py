"""Value iteration against hand-worked Bellman equations and all policies of small problems."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.solve import value_iteration


def line_world():
    """Positions -2 ... 2, actions -1, 0, +1 clamped; 10 for entering 2, -5 for 1, else -1."""
    transitions, rewards = np.zeros((5, 3, 5)), np.zeros((5, 3))
    for position, move in itertools.product(range(-2, 3), (-1, 0, 1)):
        entered = min(max(position + move, -2), 2)
        transitions[position + 2, move + 1, entered + 2] = 1.0
        rewards[position + 2, move + 1] = {2: 10.0, 1: -5.0}.get(entered, -1.0)
    return transitions, rewards


def random_problem(seed, num_states, num_actions):
    rng = np.random.default_rng(seed)
    transitions = rng.dirichlet(np.full(num_states, 0.5), size=(num_states, num_actions))
    return transitions, rng.normal(size=(num_states, num_actions))


def best_of_all_policies(transitions, rewards, discount):
    """V* = max over deterministic policies of (I - γP)⁻¹ r, in float64."""
    states = np.arange(len(rewards))
    values = []
    for actions in itertools.product(range(rewards.shape[1]), repeat=len(rewards)):
        p, r = transitions[states, actions], rewards[states, actions]
        values.append(np.linalg.solve(np.eye(len(rewards)) - discount * p, r))
    return np.max(values, axis=0)


def test_line_world_by_hand():
    # Staying at 2 pays 10 for ever: V(2) = 10/(1 - 0.9) = 100. Going right everywhere else:
    # V(1) = 10 + 90 = 100, V(0) = -5 + 90 = 85, V(-1) = -1 + 76.5 = 75.5, V(-2) = -1 + 67.95.
    transitions, rewards = line_world()
    values, q_values, policy = value_iteration(transitions, rewards, discount=0.9)
    np.testing.assert_allclose(values, [66.95, 75.5, 85.0, 100.0, 100.0], rtol=1e-5)
    # Of Q(s, a) = r + 0.9 V(entered), two rows: from 0 to -1, 0, 1, and from 2 to 1, 2, 2.
    np.testing.assert_allclose(q_values[2], [66.95, 75.5, 85.0], rtol=1e-5)
    np.testing.assert_allclose(q_values[4], [85.0, 100.0, 100.0], rtol=1e-5)
    # At 2, staying and +1 are equal: the lower index.
    assert policy.tolist() == [2, 2, 2, 2, 1]
    assert policy.dtype == jnp.int32
    assert values.dtype == q_values.dtype == jnp.float32


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.95])
def test_random_problems_against_every_policy(discount):
    for seed in range(3):
        transitions, rewards = random_problem(seed, 4, 3)
        best = best_of_all_policies(transitions, rewards, discount)
        values, q_values, policy = value_iteration(transitions, rewards, discount=discount)
        np.testing.assert_allclose(values, best, rtol=1e-4, atol=1e-4)
        q_best = rewards + discount * transitions @ best
        np.testing.assert_allclose(q_values, q_best, rtol=1e-4, atol=1e-4)
        assert policy.tolist() == q_best.argmax(axis=1).tolist()


def test_error_stays_within_the_documented_bound():
    transitions, rewards = random_problem(7, 4, 3)
    rewards += 5.0  # V* = about 60, so that stopping early shows
    best = best_of_all_policies(transitions, rewards, 0.9)
    errors = []
    for tolerance in (3.0, 0.3, 0.03):
        values, _, _ = value_iteration(transitions, rewards, discount=0.9, tolerance=tolerance)
        errors.append(np.abs(np.asarray(values) - best).max())
        assert errors[-1] <= tolerance * 0.9 / 0.1
    assert errors[0] > 10 * errors[2] > 1e-2  # it did stop where it was told to


def test_max_iterations():
    # One state, reward 1, γ = ½: V_k = 2 - 2^(1-k), and the values returned are one backup further.
    for iterations in (0, 1, 3):
        values, _, _ = value_iteration(
            np.ones((1, 1, 1)), np.ones((1, 1)), discount=0.5, max_iterations=iterations
        )
        np.testing.assert_allclose(values, [2 - 2.0**-iterations], rtol=1e-6)


def test_ties_go_to_the_lowest_index():
    transitions = np.broadcast_to(np.full(3, 1 / 3), (3, 4, 3))
    rewards = np.array([[0.0, 1, 1, 1], [2, 2, 2, 2], [-1, -2, -1, 0]])
    assert value_iteration(transitions, rewards, discount=0.5)[2].tolist() == [1, 0, 3]


def test_traced_model_and_discount():
    transitions, rewards = line_world()
    run = jax.jit(lambda p, r, d: value_iteration(p, r, discount=d)[0])
    values = jax.vmap(run, in_axes=(None, None, 0))(transitions, rewards, jnp.array([0.0, 0.9]))
    # γ = 0: the best immediate reward.
    expected = [[-1.0, -1.0, -1.0, 10.0, 10.0], [66.95, 75.5, 85.0, 100.0, 100.0]]
    np.testing.assert_allclose(values, expected, rtol=1e-5)


@pytest.mark.errors
def test_bad_problems():
    transitions, rewards = line_world()
    for p, r in (
        (transitions[0], rewards),
        (transitions, rewards[:, :2]),
        (transitions, rewards.T),
        (transitions[:, :, :4], rewards),
        (transitions, rewards[..., None]),
    ):
        with pytest.raises(ValueError, match=r"transitions must have shape \[S, A, S\] .* got"):
            value_iteration(p, r, discount=0.9)
    for discount in (1.0, 1.5, -0.1, float("nan"), jnp.array(1.0)):
        with pytest.raises(ValueError, match=r"discount must be in \[0, 1\), got"):
            value_iteration(transitions, rewards, discount=discount)
    for row in ([1.0, 0.1, 0, 0, 0], [0.9, 0, 0, 0, 0], [1.5, -0.5, 0, 0, 0], [np.nan, 1, 0, 0, 0]):
        broken = transitions.copy()
        broken[3, 1] = row
        with pytest.raises(ValueError, match="for state 3 and action 1"):
            value_iteration(broken, rewards, discount=0.9)
