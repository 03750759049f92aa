"""Notebooks 01 to 04 run from top to bottom in quick mode, and what they compute is right."""

from itertools import pairwise

import numpy as np
import pytest

from .runner import check_outputs, execute


def test_line_world(tmp_path):
    cells, found = execute(
        "01_line_world",
        tmp_path,
        *("optimal_values", "errors", "ratios", "gradient", "pi", "LRS", "VALUE_INITS"),
        start="[runs[rule]['start'] for rule in STYLE]",  # notes' rule, gradient
        logits="runs['gradient']['logits']",
    )
    check_outputs(cells, plots=5)

    # Backwards from the prize: 10/(1-0.9) = 100; 10 + 90 = 100; -5 + 90 = 85; -1 + 76.5 = 75.5;
    # -1 + 67.95 = 66.95.
    np.testing.assert_allclose(found["optimal_values"], [66.95, 75.5, 85, 100, 100], atol=1e-4)
    # At position 2 the optimum is to stay: V_k = 10 (1 - 0.9^k) / 0.1, so it lacks 100·0.9^k.
    np.testing.assert_allclose(found["errors"][:60], 100 * 0.9 ** np.arange(1, 61), rtol=1e-3)
    np.testing.assert_allclose(found["ratios"], 0.9, atol=1e-3)

    # d log softmax(z)_a / dz_b by central differences, z = (1, 0, -1).
    def log_softmax(z):
        return z - np.log(np.exp(z).sum())

    z, h = np.array([1.0, 0.0, -1.0]), 1e-6
    columns = [(log_softmax(z + h * e) - log_softmax(z - h * e)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(found["gradient"], np.transpose(columns), atol=1e-5)
    np.testing.assert_allclose(found["pi"], np.exp(log_softmax(z)), atol=1e-6)

    notes, gradient = found["start"]  # [V0, lr, seed, episode]
    zero, tenth = list(found["VALUE_INITS"]).index(0), 2
    assert found["LRS"][tenth] == pytest.approx(0.1)
    # No policy is worth more than 85 at the start; both rules learn most of it at rate 0.1 ...
    assert max(notes.max(), gradient.max()) < 85 + 1e-6
    assert np.median(notes[zero, tenth, :, -1]) > 75
    assert np.median(gradient[zero, tenth, :, -1]) > 75
    # ... and a rate of 3 costs the gradient most seeds, the notes' rule only those from V = -20.
    assert (gradient[zero, -1, :, -1] > 80).mean() < 0.7
    assert (notes[0, -1, :, -1] > 80).mean() < 0.3 < 0.7 < (notes[zero, -1, :, -1] > 80).mean()
    # The gradient never moves the mean logit of a position.
    np.testing.assert_allclose(found["logits"][zero, tenth].sum(-1), 0, atol=1e-2)


def line_world_steps(position, action):
    """The line world once more, written by hand: the next position and its reward."""
    position = min(2, max(-2, position + action))
    return position, {2: 10.0, 1: -5.0}.get(position, -1.0)


def expected_return(logits, steps):
    """Expected sum of rewards of `steps` steps from position 0, in float64, forwards in time."""
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chance, total = {0: 1.0}, 0.0
    for _ in range(steps):
        after = dict.fromkeys(range(-2, 3), 0.0)
        for position, mass in chance.items():
            for action in (-1, 0, 1):
                p = mass * probs[position + 2, action + 1]
                following, reward = line_world_steps(position, action)
                after[following] += p
                total += p * reward
        chance = after
    return total


def test_policy_gradients(tmp_path):
    variances = ("exact_variance", "measured_variance", "exact_plus", "measured_plus")
    cells, found = execute(
        "02_policy_gradients",
        tmp_path,
        *("logits", "gradient", "J"),
        variances=f"[[x[kind] for kind in ALL] for x in ({', '.join(variances)})]",
        z_scores="[z_scores[kind] for kind in ALL]",
        final="[curves[kind][-1] for kind in ALL]",
    )
    check_outputs(cells, plots=4)

    # The exact gradient, by central differences of an expectation that is computed forwards.
    logits, h = found["logits"], 1e-5
    assert expected_return(logits, 8) == pytest.approx(found["J"], abs=1e-3)
    moves = h * np.eye(15).reshape(15, 5, 3)
    differences = [expected_return(logits + d, 8) - expected_return(logits - d, 8) for d in moves]
    by_differences = np.reshape(differences, (5, 3)) / (2 * h)
    np.testing.assert_allclose(found["gradient"], by_differences, atol=1e-3)

    # Four unbiased estimators; each variance below the one before, and the measured ones near it.
    np.testing.assert_array_less(np.abs(found["z_scores"]), 5)
    exact, measured, exact_plus, measured_plus = found["variances"]
    assert all(noisier > calmer for noisier, calmer in pairwise(exact))
    np.testing.assert_allclose(measured, exact, rtol=0.5)
    np.testing.assert_allclose(measured_plus, exact_plus, rtol=0.5)
    # 100 on every reward multiplies the first two and leaves those with a baseline alone.
    assert (exact_plus[:2] > 500 * exact[:2]).all()
    np.testing.assert_allclose(exact_plus[2:], exact[2:], rtol=1e-3)

    final = found["final"].mean(-1)  # [kind, added]
    assert final.max() < 85
    assert final[:, 0].min() > 5  # the uniform policy starts below 0
    assert final[2:, 1].min() > final[0, 1] + 10


def test_gae(tmp_path):
    cells, found = execute(
        "03_gae",
        tmp_path,
        *("probs", "true_values", "true_q", "share", "LAMBDAS", "LIMITS", "wrongly"),
        critics="list(CRITICS.values())",
        exact="[exact[name] for name in CRITICS]",  # [critic, bias² or variance, lambda]
        measured="[measured[name] for name in CRITICS]",
        best="[[best_lambda[name][i] for i in (0, -1)] for name in CRITICS]",  # 1, 10^4 samples
        prize="[[prize[terminal, x] for x in (0.0, 0.95)] for terminal in (False, True)]",
        learned="learned",
    )
    check_outputs(cells, plots=5)

    # The policy's values from the linear system, in float64, with the world written by hand.
    steps = [[line_world_steps(s, a) for a in (-1, 0, 1)] for s in range(-2, 3)]
    after = np.array([[position + 2 for position, _ in row] for row in steps])
    rewards = np.array([[reward for _, reward in row] for row in steps])
    probs = np.exp([0.0, -0.3, 0.5]) / np.exp([0.0, -0.3, 0.5]).sum()
    chain = np.einsum("a,sat->st", probs, np.eye(5)[after])
    values = np.linalg.solve(np.eye(5) - 0.9 * chain, rewards @ probs)
    q = rewards + 0.9 * values[after]
    np.testing.assert_allclose(found["probs"], probs, rtol=1e-5)
    np.testing.assert_allclose(found["true_values"], values, atol=1e-3)
    np.testing.assert_allclose(found["true_q"], q, atol=1e-3)

    def mean_target(critic, lambda_):
        """Σ_n (1-λ) λ^{n-1} E[n-step return], after (s, a) [5, 3], term by term."""
        paid, weight, total = rewards, 1.0, 0.0
        reach, scale = np.eye(5)[after], 0.9  # where n steps lead to, and γ^n
        for _ in range(400):
            total = total + (1 - lambda_) * weight * (paid + scale * reach @ critic)
            paid = paid + scale * reach @ (rewards @ probs)
            weight, reach, scale = weight * lambda_, reach @ chain, 0.9 * scale
        return total + weight * paid  # what is left of the weights

    for critic, (bias2, _) in zip(found["critics"], found["exact"]):
        for i, lambda_ in enumerate(found["LAMBDAS"]):
            bias = mean_target(critic, lambda_) - q
            assert bias2[i] == pytest.approx((found["share"] * bias**2).sum(), abs=0.02)

    # At λ = 1 the target is the return: Var = E[G²] - E[G]², both from linear systems.
    flat = (rewards**2 + 2 * 0.9 * rewards * values[after]) @ probs
    squares = np.linalg.solve(np.eye(5) - 0.81 * chain, flat)
    variance = (found["share"] * 0.81 * (squares - values**2)[after]).sum()
    np.testing.assert_allclose(found["exact"][:, 1, -1], variance, rtol=1e-3)
    np.testing.assert_allclose(found["exact"][:, 1, 0], 0, atol=1e-6)  # nothing else is random
    np.testing.assert_allclose(found["measured"][:, 1], found["exact"][:, 1], rtol=0.2, atol=1e-2)
    np.testing.assert_allclose(found["measured"][:, 0], found["exact"][:, 0], atol=10)

    exact, half, blind = found["best"]
    np.testing.assert_array_equal(exact, 0)  # a right critic needs no data
    assert 0.5 < half[0] < 0.75 < 0.99 < half[1]
    assert 0.5 < blind[0] < 0.75 < 0.99 < blind[1]

    # 10 - 100 at the cut, 0.855 of it one step earlier; V = 10 + 0.9 (1 - 1/(H - 2)) V.
    np.testing.assert_allclose(found["wrongly"][-3:], [-65.79225, -76.95, -90], rtol=1e-4)
    truncated, terminal = found["prize"]
    np.testing.assert_allclose(truncated, 100, rtol=1e-3)
    wanted = 10 / (1 - 0.9 * (1 - 1 / (found["LIMITS"] - 2)))
    np.testing.assert_allclose(terminal[0], wanted, rtol=1e-3)
    assert (terminal[1] < terminal[0]).all()

    assert found["learned"].max() < 85 + 1e-2
    assert found["learned"][0, :, -1].max() < found["learned"][2:, :, -1].min()  # λ = 0 is slow


@pytest.mark.slow  # half a minute of compilation and more, in quick mode, too
def test_trust_regions(tmp_path):
    cells, found = execute(
        "04_trust_regions",
        tmp_path,
        *("p", "A", "path", "fisher", "residuals", "cosines", "DELTAS", "gentle", "clips"),
        gains="[lagrange(delta)[1] @ A for delta in (0.0499, 0.05, 0.0501)]",
        price="lagrange(0.05)[0]",
        tracks="list(tracks.values())",  # [first β, update, (β, KL)]
        units="list(after.values())",  # [c, gradient or trpo_step, action]
        trpo_kl="[row['policy/kl'] for row in rows_by_delta]",
        cases="[case_objectives, case_pulls]",
        kl="epoch_rows['kl']",  # [rate, step]
        outside="epoch_rows['outside']",
        ratios="epoch_rows['ratios']",  # [rate, step, smallest ... largest]
        updates="list(measured.values())",  # [TRPO or PPO, batch, (KL, outside, largest ratio)]
    )
    check_outputs(cells, plots=10)

    # The best of all policies within KL 0.05 on a grid; the price is the slope of the gain.
    p, advantages = found["p"], found["A"]
    first, second = np.meshgrid(np.linspace(0.2, 0.6, 801), np.linspace(0.1, 0.5, 801))
    policies = np.stack([first, second, 1 - first - second], axis=-1).reshape(-1, 3)
    policies = policies[policies.min(axis=1) > 0]
    near = policies[(p * np.log(p / policies)).sum(axis=1) <= 0.05]
    assert found["gains"][1] == pytest.approx((near @ advantages).max(), abs=2e-3)
    slope = (found["gains"][2] - found["gains"][0]) / 0.0002
    assert found["price"] == pytest.approx(slope, rel=1e-3)
    assert found["path"][-1] @ advantages == pytest.approx(found["gains"][1], abs=1e-4)

    # Twice β is a quarter of KL, so it ends within a factor of four around the band.
    assert (np.abs(np.log(found["tracks"][:, [14, 29], 1] / 0.01)) < np.log(1.5 * 4)).all()
    np.testing.assert_allclose(found["fisher"], np.diag(p) - np.outer(p, p), atol=1e-6)
    np.testing.assert_allclose(found["units"][0, 1], found["units"][2, 1], atol=1e-3)
    assert found["units"][0, 0, 2] < 0.21 < 0.9 < found["units"][2, 0, 2]
    assert (found["residuals"][0, 7:] < 1e-2).all()  # damping 0.1, from 10 products on
    assert (np.diff(found["cosines"][:, -1]) < 0).all()  # less damping, less of the plain gradient
    assert (found["trpo_kl"] <= found["DELTAS"]).all()
    assert (found["trpo_kl"] > 0.2 * found["DELTAS"]).all()

    # min(ρA, clip(ρ)A) and its slope ρA, or 0, for ρ = 0.6, 1, 1.4 and A = 1, then -1.
    np.testing.assert_allclose(found["cases"][0], [0.6, 1, 1.2, -0.8, -1, -1.4], atol=1e-6)
    np.testing.assert_allclose(found["cases"][1], [0.6, 1, 0, 0, -1, -1.4], atol=1e-6)
    # 0.9 · 0.8 = 0.72 is left for the sampled actions, 0.28 for the others, which had 0.1.
    np.testing.assert_allclose(found["gentle"][-1], [0.8, 0.8, 2.8, 2.8], rtol=0.02)

    clipped = np.isfinite(found["clips"])
    assert found["kl"][~clipped, -1].min() > 10 * found["kl"][clipped, -1].max()
    assert found["kl"][0, -1] < found["kl"][2, -1]  # rates 0.0003 and 0.03
    assert (found["ratios"][clipped, -1, 0] < 0.8).all()
    assert (found["ratios"][clipped, -1, -1] > 1.2).all()
    assert found["outside"][2, -1] > 0.05
    trpo, ppo = found["updates"]
    assert (trpo[:, 0] <= 0.01 + 1e-6).all()
    assert (ppo[:, 0] > 1e-4).all()
    assert (ppo[:, 0] < 0.1).all()
