"""Statistics of baselines by hand, their curves, and the table in the README."""

import doctest

import numpy as np
import pytest

from experiments.baselines import compare, measure, table
from experiments.baselines.compare import Estimate, estimate, verdict
from experiments.baselines.measure import thin, wall_seconds
from experiments.baselines.registry import (
    Baseline,
    Published,
    settings_of,
)
from experiments.baselines.results import (
    difference,
    missing_seeds,
    read_curves,
    write_curves,
)
from experiments.baselines.table import BEGIN, END, markdown, rows_of, with_table


@pytest.mark.parametrize("module", [compare, table])
def test_examples_run(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_the_interval_is_students():
    # Mean 2.5, s = sqrt(5/3) = 1.29099, s/sqrt(4) = 0.645497, and t(0.975, 3) = 3.182446.
    ours = estimate([1.0, 2.0, 3.0, 4.0])
    assert (ours.mean, ours.n) == (2.5, 4)
    assert ours.half_width == pytest.approx(2.054260, rel=1e-5)
    # Of two seeds: s/sqrt(2) = 5, t(0.975, 1) = 12.7062.
    assert estimate([10.0, 20.0]).half_width == pytest.approx(63.5310, rel=1e-5)
    assert estimate([500.0] * 10) == (500.0, 0.0, 10)
    assert estimate([3.0]) == (3.0, None, 1)


@pytest.mark.parametrize(
    ("ours", "value", "spread", "expected"),
    [
        ((90.0, 5.0), 100.0, None, "below"),  # 95 < 100
        ((96.0, 5.0), 100.0, None, "within"),  # 91 ... 101 reaches 100
        ((110.0, 5.0), 100.0, None, "above"),
        ((90.0, 5.0), 100.0, 5.0, "within"),  # 95 is not under 95
        ((90.0, 5.0), 100.0, 4.0, "below"),
        ((110.0, 5.0), 100.0, 5.0, "within"),
        ((110.1, 5.0), 100.0, 5.0, "above"),
        ((500.0, 0.0), 500.0, 0.0, "within"),
        ((499.0, 0.0), 500.0, 0.0, "below"),
        ((-170.0, 3.0), -174.0, None, "above"),
        ((400.0, None), 500.0, 1.0, "no interval"),
    ],
)
def test_verdicts(ours, value, spread, expected):
    assert verdict(Estimate(*ours, 3), value, spread) == expected


def metrics(count: int = 10, suffix: str = "") -> dict[str, np.ndarray]:
    return {
        "step": np.arange(1, count + 1) * 100,
        "episode/count" + suffix: np.ones(count),
        "episode/return_mean" + suffix: np.arange(count, dtype=float),
        "eval/return_mean" + suffix: np.full(count, np.nan),
    }


def test_each_kind_of_metric_by_hand():
    table = metrics(20, "/seed1")
    # The last tenth of 2000 steps is what comes after 1800: rows 18 and 19, 1 and 3 episodes.
    table["episode/count/seed1"][-2:] = [1, 3]
    table["eval/return_mean/seed1"][[4, 9, 19]] = [5.0, 30.0, 20.0]
    assert measure.measure(table, "/seed1") == {
        "final_evaluation": 20.0,
        "training_return": (18 + 3 * 19) / 4,
        "max_evaluation": 30.0,
    }
    table["episode/count/seed1"][-2:] = 0  # an empty mean is NaN in the file
    table["episode/return_mean/seed1"][-2:] = np.nan
    table["eval/return_mean/seed1"][:] = np.nan
    assert {*measure.measure(table, "/seed1").values()} == {None}


def test_curves_are_thinned_by_episodes():
    table = metrics(400)
    table["episode/count"][:4] = [1, 3, 0, 0]
    table["episode/return_mean"][2:4] = np.nan
    table["eval/return_mean"][5] = 7.0
    points = thin(table)
    assert len(points) == 200
    assert [*points][:3] == [200, 400, 600]
    assert [*points][-1] == 40_000
    assert points[200][0] == (0 * 1 + 1 * 3) / 4
    assert np.isnan(points[400][0])
    assert points[600] == (4.5, 7.0)
    assert len(thin(metrics(7))) == 7


def test_the_clock_of_every_process_counts():
    assert wall_seconds({"time/seconds": np.array([1.0, 2.0, 3.0, 0.5, 1.5])}) == 4.5


def test_curves_are_kept_by_seed(tmp_path):
    curves = {
        0: {100: (1.0, np.nan), 200: (3.0, 10.0)},
        1: {100: (2.0, np.nan), 200: (np.nan, 20.0)},
    }
    write_curves(tmp_path / "a.csv", curves)
    assert (tmp_path / "a.csv").read_text().splitlines()[1:] == [
        "100,1.5,1,2,,,",
        "200,3,3,,15,10,20",
    ]
    again = read_curves(tmp_path / "a.csv", ["0", "1"])
    for seed, points in curves.items():
        assert again[seed].keys() == points.keys()
        for step, point in points.items():
            np.testing.assert_array_equal(again[seed][step], point)


def test_changed_settings_are_seen():
    run = Baseline("a", "ppo_cartpole", 3)
    old = settings_of(run)
    result = {"settings": old, "seeds": {"0": {}, "2": {}}}
    assert missing_seeds(run, old, result) == [1]
    assert missing_seeds(run, old, None) == [0, 1, 2]
    now = settings_of(run._replace(overrides={"algo.clip": 0.1, "optimizer.anneal": False}))
    assert difference(old, now) == "algo.clip is 0.2 there and 0.1 here"
    assert missing_seeds(run, now, result) == [0, 1, 2]
    # What has no influence, and a field that is newer than the result and has its default.
    same = settings_of(run._replace(overrides={"seed": 7, "num_seeds": 3, "keep_checkpoints": 9}))
    del old["normalize_observations"], old["algo"]["dual_clip"]
    assert difference(old, same) is None
    newer = settings_of(run._replace(overrides={"normalize_observations": True}))
    assert difference(old, newer) == "normalize_observations is false there and true here"
    old["algo"]["gone"] = 1
    assert "algo.gone" in difference(old, same)


def published(**fields) -> Published:
    return Published(
        **{
            **dict(value=100.0, metric="final_evaluation", steps=500_000, env="CartPole-v1"),
            **dict(source="X, table 1"),
            **fields,
        }
    )


def test_rows_of_the_table():
    rows = (
        published(value=12.0, spread=1.0, spread_over="seeds"),
        published(cause="fewer layers", env="CartPole-v0", steps=1000, note="gSDE"),
        published(metric="max_evaluation"),
        published(metric="training_return"),
    )
    run = Baseline("a", "ppo_cartpole", 3, published=rows)
    settings = settings_of(run)
    seeds = {
        str(seed): {"final_evaluation": x, "max_evaluation": 99.0, "training_return": None}
        for seed, x in enumerate([10.0, 11.0, 12.0])
    }
    result = {"settings": settings, "seeds": seeds}
    first, second, third, fourth = rows_of(run, settings, result)
    assert first[:5] == ["a", "CartPole-v1", "PPO", "500k", "final evaluation"]
    # s = 1, t(0.975, 2)/sqrt(3) = 2.48
    assert first[5:] == ["12.0 ± 1.0 over seeds", "X, table 1", "11.0 ± 2.5 (n=3)", "within"]
    assert second[5:7] == ["100.0, CartPole-v0, 1k steps", "X, table 1 (gSDE)"]
    assert second[-1] == "below: fewer layers"
    assert third[4:] == ["max evaluation", "100.0", "X, table 1", "99.0 ± 0.0 (n=3)", "below"]
    assert fourth[-2:] == ["-", "not measured"]

    del seeds["1"]
    assert rows_of(run, settings, result)[2][-1] == "below (2 of 3 seeds)"
    assert rows_of(run, settings, None)[0][-2:] == ["-", "not run"]
    now = settings_of(run._replace(overrides={"algo.clip": 0.1}))
    words = "stale: config changed, algo.clip is 0.2 there and 0.1 here"
    assert {row[-1] for row in rows_of(run, now, result)} == {words}
    (alone,) = rows_of(run._replace(published=()), settings, result)
    assert alone[4:] == [
        "final evaluation",
        "-",
        "-",
        "11.0 ± 12.7 (n=2)",
        "not published (2 of 3 seeds)",
    ]


def test_the_table_is_markdown_and_replaces_what_was_there():
    row = ["a|b", *"bcdefg", "-", "not run"]
    lines = markdown([row]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2].startswith("| a\\|b | b ")
    done = ["x", *"bcdefg", "1.0 (n=1)", "within"]
    once = with_table(f"head\n{BEGIN}\nold\n{END}\ntail\n", [row, done], "some/results")
    assert once.startswith(f"head\n{BEGIN}\n")
    assert once.endswith(f"{END}\ntail\n")
    assert "old" not in once
    assert "| [x](some/results/x.png) |" in once
    assert "[a" not in once
    assert with_table(once, [row, done], "some/results") == once


@pytest.mark.errors
def test_a_readme_without_marks_is_refused():
    for text in ("", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}\n{END}\n{BEGIN}\n{END}"):
        with pytest.raises(ValueError, match="must have a line <!-- reproduce: begin"):
            with_table(text, [], "")
