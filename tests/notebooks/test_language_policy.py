"""Notebooks 07 and 11 run from top to bottom in quick mode, and what they compute is right."""

import numpy as np
import pytest

from .runner import check_outputs, execute

TEACHER = -0.7 * np.log(0.7) - 0.3 * np.log(0.15)  # entropy of an answer of the sloppy teacher


@pytest.mark.slow  # trains a model and compiles some twenty programs, in quick mode, too
def test_language_model(tmp_path):
    cells, found = execute(
        "07_language_model",
        tmp_path,
        *("losses", "rights", "mass", "gap", "top", "NUM", "TEMPERATURES", "by_temperature"),
        *("truth", "right_value", "right_mean", "effective", "wrong_value", "wrong_mean"),
        *("by_surprisal", "by_entropy", "distances", "high"),
        answers="RIGHT_ANSWERS.reshape(8, -1).argmax(-1)",
        texts="exact.reshape(8, -1)",
        new_texts="new.reshape(8, -1)",
        careful_texts="careful_texts.reshape(8, -1)",
        next_token="next_token['tiny']",
        ratios="[token_ratios['tiny', title] for title in SCORED_WITH]",
        work="[work[title][:2] for title in TITLES]",  # operations, numbers kept
        rounding="list(per_token.values())",  # [exact, k1, k2, k3; token]
    )
    check_outputs(cells, plots=9)

    # No model is better at predicting a teacher than the teacher: loss = entropy + KL.
    sloppy = found["losses"][540:600]
    assert TEACHER - 0.05 < sloppy.mean() < TEACHER + 1
    assert found["losses"][0] > 3 * np.log(20) - 2  # of three tokens, one of 20 each, about
    assert found["rights"][-1] > found["rights"][19] > 5 * found["rights"][0]

    # The table of all texts: adds up to 1, and is what the sampler draws from and reports.
    np.testing.assert_allclose(found["mass"], 1, atol=1e-5)
    assert found["gap"] < 1e-4
    exact, frequency = found["top"]
    assert (np.abs(frequency - exact) < 5 * np.sqrt(exact / found["NUM"])).all()

    plain, cooler, top_k, top_p = found["next_token"]
    np.testing.assert_allclose(cooler, plain**2 / (plain**2).sum(), atol=1e-5)
    largest = np.sort(plain)[::-1]
    number = 1 + np.searchsorted(np.cumsum(largest), 0.9)
    for p, kept in ((top_k, 2), (top_p, number)):
        wanted = np.where(plain >= largest[kept - 1], plain, 0)
        np.testing.assert_allclose(p, wanted / wanted.sum(), atol=1e-5)

    p = np.exp(found["texts"])
    rows = np.arange(8), found["answers"].astype(int)
    right, entropy = found["by_temperature"].T
    place = list(found["TEMPERATURES"]).index(1.0)
    assert right[place] == pytest.approx(p[rows].mean(), abs=1e-5)
    surprise = np.where(p > 0, -p * np.where(p > 0, found["texts"], 0), 0).sum(1)
    assert entropy[place] == pytest.approx(surprise.mean(), abs=1e-4)
    assert entropy[0] == pytest.approx(0, abs=1e-6)
    assert (np.diff(entropy) > 0).all()
    assert right[0] > right[place] > right[-1]

    # Right ratios lose nothing where the support is whole, wrong ones are of no policy at all.
    assert found["truth"] == pytest.approx(np.exp(found["new_texts"])[rows].mean(), abs=1e-6)
    np.testing.assert_allclose(found["right_value"][:3], found["truth"], atol=1e-4)
    np.testing.assert_allclose(found["right_mean"][:3], 1, atol=1e-4)
    assert (found["right_mean"][3:] < 0.99).all()
    assert found["wrong_value"][0] == pytest.approx(found["truth"], abs=1e-4)
    assert found["wrong_value"][1] > found["truth"] + 0.05  # T = 0.5 is right more often
    assert found["wrong_value"][2] < found["truth"] - 0.03  # T = 1.5
    assert (found["effective"] <= 1 + 1e-6).all()
    assert found["effective"][1] < 0.1
    truth, weighted = found["high"]
    assert weighted < truth - 0.01
    same, temperature, neither = found["ratios"]
    np.testing.assert_allclose(same, 1, atol=1e-3)
    assert (temperature <= 1 + 1e-3).all()  # what top-p dropped had some mass
    assert (np.abs(neither - 1) > 0.05).mean() > 0.2  # a token of three, at least, has a choice

    (alone, kept), (group, shared), (copies, repeated) = found["work"]
    assert group < 2 * alone
    assert copies > 12 * alone
    assert shared == kept
    assert repeated == 16 * kept

    # Entropy in two ways; the mean of what is drawn has less noise than the draw.
    np.testing.assert_allclose(found["by_surprisal"][0], surprise, atol=1e-4)
    np.testing.assert_allclose(found["by_entropy"][0], surprise, atol=1e-3)
    assert (found["by_entropy"][1] < found["by_surprisal"][1]).all()

    # KL of texts by its definition, at the end of the walk.
    log_p, log_q = found["careful_texts"], found["texts"]
    live = log_p > -np.inf
    d = np.where(live, log_p, 0) - np.where(live, log_q, 0)
    kl = (np.exp(log_p) * d).sum(1).mean()
    means, deviations = found["distances"].transpose(2, 0, 1)
    np.testing.assert_allclose(means[-1, [0, 2, 3]], kl, rtol=1e-2)
    np.testing.assert_allclose(means[1:, 0], means[1:, 3], rtol=0.02, atol=1e-5)
    np.testing.assert_allclose(means[1:, 2], means[1:, 3], rtol=0.02, atol=1e-5)
    assert (np.diff(means[:, 3]) > 0).all()
    assert np.abs(means[1:, 1] / means[1:, 3] - 1).max() > 0.05  # k2 is biased on the way
    assert deviations[0, 2] < 0.3 * deviations[0, 0]  # k3 beats k1 near the reference
    assert (deviations[:, 3] < deviations[:, 0]).all()

    rounded, k1, _, k3 = found["rounding"]
    assert (rounded > -1e-6).all()
    assert 0 < rounded.mean() < 0.01
    assert (k3 > -1e-6).all()
    assert k1.std() > k3.std()


def normaliser_and_entropy(z):
    """Of one token's logits, in float64."""
    z = z[z > -np.inf]
    normaliser = z.max() + np.log(np.exp(z - z.max()).sum())
    return normaliser, (np.exp(z - normaliser) * (normaliser - z)).sum()


@pytest.mark.slow  # compiles some twenty programs, in quick mode, too
def test_fused_kernels(tmp_path):
    cells, found = execute(
        "11_fused_kernels",
        tmp_path,
        *("sizes", "arrays_kept", "walk", "errors", "rounding", "z", "y", "g", "by_formula"),
        *("sums", "ppo_gap", "hidden", "unembedding", "tokens", "by_kernel_here"),
        *("library_errors", "rows", "kl_gap", "kl_operations", "COUNTS", "gradient_errors"),
        *("reverse_error", "joined", "capped_gap", "grpo_gap", "sum_errors", "SIZES"),
        one_token="logits[0]",
        gradients="list(gradients.values())",
        operations="list(operations.values())",
        gaps="list(gaps.values())",
        is_refused="'reduces over tokens' in refusal",
        memory="list(memory.values())",
        whole_arrays="list(whole_arrays.values())",
        ridges="list(ridges.values())",
        draws="DRAWS * len(exact)",
        milliseconds="[1e3 * one_kernel, 1e3 * recomputed]",
    )
    check_outputs(cells, plots=8)

    # 8192 tokens in float32; a program with all logits holds one array forward, four with gradient.
    arrays = 4 * 8192 * np.array([49_152, 151_936, 128_256])
    np.testing.assert_array_equal(found["sizes"][:, 2], arrays)
    np.testing.assert_allclose(found["sizes"][:, 3], arrays, rtol=0.01)
    np.testing.assert_allclose(found["sizes"][:, 4], 4 * arrays, rtol=0.01)
    np.testing.assert_allclose(found["arrays_kept"], [2, 3, 4], rtol=0.01)

    # Block by block: the peak, normaliser and entropy of the logits so far.
    ends = 256 * np.arange(1, 17)
    so_far = [found["one_token"][:end] for end in ends]
    wanted = [(x.max(), *normaliser_and_entropy(x)) for x in so_far]
    np.testing.assert_allclose(found["walk"], wanted, atol=5e-6)
    assert found["errors"].max() < 2e-6
    without_peak, by_sum, apart = found["rounding"]  # [sign, log-prob or entropy, shift]
    assert apart.max() < 2e-6
    assert not np.isfinite(without_peak[..., 5:]).any()  # from 100 on
    assert np.isfinite(without_peak[:, 0, :4]).all()
    assert (by_sum[:, 0, 9] > 1e-4).all()  # at 10^4
    assert (by_sum[:, 0, 9] < 1e-3).all()
    assert (by_sum[:, 1, 9] > 1).all()

    # The gradient once more, by the softmax's Jacobian: p is moved by J, and H by -J z.
    for z, y, g, by_formula in zip(found["z"], found["y"], found["g"].T, found["by_formula"]):
        p = np.exp(z - normaliser_and_entropy(z)[0])
        jacobian = np.diag(p) - np.outer(p, p)
        wanted = g[0] * ((np.arange(12) == y) - p) - g[1] * (jacobian @ z) + g[2] * p
        np.testing.assert_allclose(by_formula, wanted, atol=1e-12)
    np.testing.assert_allclose(found["gradients"] - found["by_formula"], 0, atol=2e-6)
    np.testing.assert_allclose(found["sums"] - [[0], [0], [1]], 0, atol=1e-12)

    np.testing.assert_allclose(found["operations"], [[2, 6], [2, 8], [2, 6]], rtol=1e-3)
    assert max(*found["gaps"], found["ppo_gap"], found["grpo_gap"]) < 1e-5
    assert found["is_refused"]
    keep, recompute, in_forward = found["memory"]
    np.testing.assert_allclose(keep, 16 * 8192 * found["SIZES"], rtol=0.03)
    assert recompute.max() < 50e6
    assert recompute[-1] < 2 * recompute[0]
    assert in_forward[-1] < keep[-1] / 30
    assert found["whole_arrays"][0] > 0
    np.testing.assert_array_equal(found["whole_arrays"][1:], 0)

    wide = found["hidden"] @ found["unembedding"].T
    logs, entropy = np.array([normaliser_and_entropy(z) for z in wide]).T
    chosen = wide[np.arange(100), found["tokens"].astype(int)]
    np.testing.assert_allclose(found["by_kernel_here"], [chosen - logs, entropy], atol=1e-5)
    assert found["library_errors"].max() < 1e-5
    np.testing.assert_allclose(found["ridges"], [153, 241, 295, 560], rtol=0.01)

    # k1 deviates by √(2 KL), k3 by about as much as the KL, the exact one not at all.
    kl, k1, k3, k1_deviation, k3_deviation = found["rows"].T
    assert found["kl_gap"] < 1e-5
    assert found["kl_operations"] == pytest.approx(2)
    assert (np.abs(k1 - kl) < 5 * k1_deviation / np.sqrt(found["draws"])).all()
    assert (np.abs(k3 - kl) < 5 * k3_deviation / np.sqrt(found["draws"])).all()
    np.testing.assert_allclose(k1_deviation[:4], np.sqrt(2 * kl[:4]), rtol=0.1)
    assert (kl[:4] < k3_deviation[:4]).all()
    assert (k3_deviation[:4] < 3 * kl[:4]).all()
    # Gradients: k1's is none, k3's is on its way to the other KL's, k3_unbiased's to the right one.
    none, other, right = found["gradient_errors"]
    assert none[-1] == pytest.approx(1, abs=0.15)
    assert other[-1] == pytest.approx(found["reverse_error"], abs=0.5)
    assert right[-1] < 0.65
    assert other[-1] > right[-1] + 0.1
    root = np.sqrt(found["COUNTS"][-1] / found["COUNTS"][0])
    assert right[0] / right[-1] == pytest.approx(root, rel=0.5)
    assert right[0] > 2

    assert found["joined"].max() < 2e-6
    assert found["capped_gap"] < 1e-5
    np.testing.assert_allclose(found["milliseconds"], [5.3, 2.4], atol=0.05)
    one_by_one, in_blocks = found["sum_errors"]
    assert in_blocks < one_by_one < 1e-4
