"""Curves that show what was measured, whatever was."""

import numpy as np
import pytest
from matplotlib.image import imread

from rljax.runtime import plots
from rljax.runtime.metrics import MetricsWriter
from rljax.runtime.plots import plot_curves

COLUMNS = [
    "episode/return_mean",
    *(f"episode/return_mean/seed{seed}" for seed in range(3)),
    "eval/return_mean",
    "loss/policy",
    "loss/value",
    "policy/entropy",
    "policy/behaviour_kl",
    "time/steps_per_second",
]


def write(folder, rows, columns=COLUMNS):
    with MetricsWriter(folder, columns) as metrics:
        for step, values in rows:
            metrics.write(step, values)
    return metrics.path


def row(step):
    returns = {f"episode/return_mean/seed{seed}": step * (1.0 + seed) for seed in range(3)}
    return step, {
        "episode/return_mean": step * 2.0,
        **returns,
        "eval/return_mean": step * 3.0 if step % 3 == 0 else None,
        "loss/policy": -1.0 / (step + 1),
        "policy/entropy": float("inf") if step == 2 else 0.7,
        "time/steps_per_second": 1e4,
    }


@pytest.mark.parametrize(
    ("rows", "reference"), [(0, None), (0, 100), (1, None), (2, {"solved": 100.0, "random": 0.0})]
)
def test_any_number_of_rows(tmp_path, rows, reference):
    path = write(tmp_path, [row(step) for step in range(rows)])
    plot_curves(path, tmp_path / "curves.png", title="ppo $ on _CartPole", reference=reference)
    image = imread(tmp_path / "curves.png")
    assert image.ndim == 3
    assert image.shape[1] >= 800
    assert sorted(file.name for file in tmp_path.glob("*curves*")) == ["curves.png"]


def colour_share(image, red, green, blue):
    """Share of pixels within 5% of a colour."""
    return np.mean(np.all(np.abs(image[..., :3] - np.array([red, green, blue])) < 0.05, axis=-1))


def test_each_curve_is_seen(tmp_path):
    """Blue #4477aa is the training return, its band 20% of that on white, orange
    #cc6633 evaluation.
    """
    blue, orange, band = (0.267, 0.467, 0.667), (0.8, 0.4, 0.2), (0.853, 0.893, 0.933)

    def shares(name, keep):
        (tmp_path / name).mkdir()
        columns = [column for column in COLUMNS if keep(column)]
        rows = [row(step) for step in range(40)]
        rows = [(step, {k: v for k, v in values.items() if keep(k)}) for step, values in rows]
        path = write(tmp_path / name, rows, columns)
        plot_curves(path, tmp_path / name / "curves.png", title="ppo")
        image = imread(tmp_path / name / "curves.png")
        return [colour_share(image, *colour) > 1e-3 for colour in (blue, orange, band)]

    assert shares("all", lambda column: True) == [True, True, True]
    assert shares("one_seed", lambda column: "seed" not in column) == [True, True, False]
    assert shares("no_eval", lambda column: "eval" not in column) == [True, False, True]
    assert shares("eval_only", lambda column: "episode" not in column) == [False, True, False]
    assert shares("losses_only", lambda column: "return" not in column) == [False] * 3


def test_a_curve_is_the_mean_of_the_seeds_without_what_was_not_measured():
    nan = np.nan
    metrics = {
        "step": np.array([1, 2, 3, 4]),
        "r": np.array([9.0, 9.0, 9.0, 9.0]),
        "r/seed0": np.array([1.0, nan, nan, np.inf]),
        "r/seed1": np.array([3.0, nan, 5.0, 7.0]),
        "r/seed0_of_another": np.array([0.0, 0.0, 0.0, 0.0]),
        "other": np.array([nan, nan, nan, 1.0]),
    }
    steps, values = plots._curve(metrics, "r")
    np.testing.assert_array_equal(steps, [1, 3, 4])
    np.testing.assert_array_equal(values, [[1.0, 3.0], [nan, 5.0], [nan, 7.0]])
    steps, values = plots._curve(metrics, "other")
    np.testing.assert_array_equal(steps, [4])
    np.testing.assert_array_equal(values, [[1.0]])


def test_small_panels_are_the_losses_that_were_measured():
    one, none = np.ones(1), np.full(1, np.nan)
    names = "time/x eval/kl loss/policy grad/norm loss/critic policy/entropy a b loss/value/seed0"
    metrics = {"step": np.arange(1), **{name: one for name in names.split()}, "loss/value": none}
    assert plots._small_names(metrics) == [
        "loss/policy",
        "loss/value",  # through its seed
        "policy/entropy",
        "loss/critic",
        "grad/norm",
    ]
    many = {"step": np.arange(1), **{f"loss/{i}": one for i in range(9)}}
    assert len(plots._small_names(many)) == 6
