"""Notebooks 05 and 06 run from top to bottom in quick mode, and what they compute is right."""

import numpy as np
import pytest

from .runner import check_outputs, execute

OPTIMAL = np.array([66.95, 75.5, 85.0, 100.0, 100.0])  # of the line world, by hand in notebook 01
REWARDS = np.array([[-1.0, -1, -1], [-1, -1, -1], [-1, -1, -5], [-1, -5, 10], [-5, 10, 10]])
AFTER = np.array([[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 4]])


@pytest.mark.slow  # a quarter of a minute of compilation, in quick mode, too
def test_dqn_to_ddpg(tmp_path):
    cells, found = execute(
        "05_dqn_to_ddpg",
        tmp_path,
        *("true_q", "line_errors", "cart_returns", "cart_q", "ddpg_returns", "ddpg_q"),
        *("overestimates", "distributions", "means", "ATOMS", "spreads", "share_lost"),
        weights="list(weights.values())",
        prize="[x[:, -1] for x in prize.values()]",  # [n = 1, n = 5, cut for an end, Huber; seed]
    )
    check_outputs(cells, plots=8)
    np.testing.assert_allclose(found["true_q"], REWARDS + 0.9 * OPTIMAL[AFTER], atol=1e-3)

    # w <- w (1 + 0.1 (2·0.95 - 1)); half of it and half of -4w; 1.9 w' after forty steps, nearly.
    alone, slow, both = found["weights"]
    np.testing.assert_allclose(alone[:50], 1.09 ** np.arange(1, 51), rtol=1e-3)
    np.testing.assert_allclose(both[:50], (1 + 0.05 * (0.9 - 4)) ** np.arange(1, 51), rtol=1e-2)
    once = 1.9 - 0.9 * 0.9**40
    np.testing.assert_allclose(slow[39::40], once ** np.arange(1, 6), rtol=1e-3)

    # Without a target network values run away, whatever the replay: on CartPole they are soon
    # above 1 / (1 - 0.99), which no return exceeds ...
    fixed, moving = [0, 3], [1, 2]
    assert found["cart_q"][fixed, :, -1].max() < 10
    assert found["cart_q"][moving, :, -1].min() > 100
    # ... and on Pendulum, where they are negative, much lower than with one.
    assert found["ddpg_q"][moving, :, -1].max() < 2 * found["ddpg_q"][fixed, :, -1].min() < 0
    # On the line world they overshoot before they come to the right size.
    largest = found["line_errors"][:4].max(-1)
    assert largest[fixed].max() < 90
    assert largest[moving].max(-1).min() > 100
    # News travel faster by five steps than by one, and a cut taken for an end costs value.
    one, five, ended, _ = found["prize"].mean(-1)
    assert five > one + 1
    assert ended < one - 1
    assert ((found["cart_returns"] >= 1) & (found["cart_returns"] <= 500)).all()
    assert ((found["ddpg_returns"] > -2000) & (found["ddpg_returns"] <= 0)).all()

    # The maximum of two equal actions at the prize is too high, double Q-learning's is not.
    plain, double = found["overestimates"]
    assert plain[4, 1] > 5
    assert double[4, 1] < 2
    assert (plain > double).all()

    # C51: probabilities, and means that were on their way to the exact values.
    assert found["distributions"].min() >= 0
    np.testing.assert_allclose(found["distributions"].sum(-1), 1, atol=1e-4)
    played_mean, played_deviation = found["spreads"][0, [1, 3]]  # 100; 10 / sqrt(1 - 0.81)
    assert played_mean == pytest.approx(100, abs=1)
    assert played_deviation == pytest.approx(22.94, abs=0.5)
    errors = np.abs(found["means"] - found["true_q"]).mean((1, 2))
    assert errors[-1] < 0.8 * errors[0]


def entropy_of(p):
    return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)


def soft_values(temperature):
    """Soft values of the line world by plain iteration in float64."""
    values = np.zeros(5)
    for _ in range(2000):
        q = REWARDS + 0.9 * values[AFTER]
        values = q.max(1) + temperature * np.log(
            np.exp((q - q.max(1, keepdims=True)) / temperature).sum(1)
        )
    return q, values


@pytest.mark.slow  # two programs of SAC to compile, in quick mode, too
def test_sac(tmp_path):
    cells, found = execute(
        "06_sac",
        tmp_path,
        *("Q", "TEMPERATURES", "found_policies", "LINE_TEMPERATURES", "line_policies"),
        *("line_soft", "TARGETS", "prices", "price_paths", "integrals", "entropy_rows"),
        *("stable", "naive", "measured", "exact", "usual"),
        widened="[widened[c][-1] for c in (True, False)]",
        entropies="[by_target['policy/entropy'], by_temperature['policy/entropy']]",
        edges="by_target['edge']",
        temperatures="[by_target['temperature'], by_temperature['temperature']]",
        returns="[by_target['return'], by_temperature['return']]",
    )
    check_outputs(cells, plots=7)

    # No policy of the simplex is better at reward plus entropy than those found.
    others = np.random.default_rng(0).dirichlet(np.ones(4), 20_000)
    for temperature, policy in zip(found["TEMPERATURES"], found["found_policies"]):
        objective = others @ found["Q"] + temperature * entropy_of(others)
        assert policy @ found["Q"] + temperature * entropy_of(policy) > objective.max() - 1e-3

    for i, temperature in enumerate(found["LINE_TEMPERATURES"]):
        q, values = soft_values(temperature)
        np.testing.assert_allclose(found["line_soft"][i], values, rtol=1e-4)
        policy = np.exp((q - values[:, None]) / temperature)
        np.testing.assert_allclose(found["line_policies"][i], policy, atol=1e-3)

    # The price is the one whose policy has the entropy, and the temperature's loss finds it.
    for target, price in zip(found["TARGETS"], found["prices"]):
        p = np.exp((found["Q"] - 2.0) / price)
        assert entropy_of(p / p.sum()) == pytest.approx(target, abs=1e-4)
    np.testing.assert_allclose(found["price_paths"][:, -1], found["prices"], rtol=0.02)

    np.testing.assert_allclose(found["integrals"][:, 0], 1, atol=2e-3)
    assert (np.abs(found["integrals"][:, 1] - 1) > 0.05).all()
    by_histogram, right, wrong = found["entropy_rows"].T
    np.testing.assert_allclose(right, by_histogram, atol=0.05)
    assert (np.abs(wrong - by_histogram) > 0.1).all()
    assert (right <= np.log(4)).all()  # the uniform density of the box
    np.testing.assert_allclose(found["stable"][2:], [20 - np.log(4), 100 - np.log(4)], atol=1e-3)
    assert not np.isfinite(found["naive"][2:]).any()

    (_, with_it), (_, without) = found["widened"]  # log σ
    assert np.exp(with_it) < 1.2
    assert np.exp(without) > 5

    np.testing.assert_allclose(found["measured"], found["exact"], rtol=0.2)

    assert np.isfinite(found["returns"]).all()
    # Only the uncorrected run sees an entropy that no density of the box has; it ends at the ends.
    entropies, by_price = found["entropies"]
    assert entropies[:3].max() < np.log(4) + 0.02
    assert entropies[3, :, -1].min() > 2.5
    assert found["edges"][3, :, -1].min() > 0.5 > 0.2 > found["edges"][:3, :, -1].max()
    assert (np.diff(by_price[:3, :, -1], axis=0) > 0.1).all()  # α = 0.003, 0.1, 1
    np.testing.assert_allclose(found["temperatures"][1][:, 0, -1], [0.003, 0.1, 1, 10], rtol=1e-3)
