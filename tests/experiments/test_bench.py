"""The benchmarks run, and their ratios are those of the numbers they print."""

import json

import pytest

from experiments.bench import host, on_policy
from experiments.bench.on_policy import Contestant, Point, measure, table


def test_ratios_by_hand():
    """900 against 300 steps/s are 3.0 x SB3; 1800 with two seeds are 6.0 x and twice one seed."""
    points = [
        Point("sb3", 4, 1, 1, 300.0, 0.0),
        Point("rljax", 4, 1, 1, 900.0, 2.5),
        Point("rljax", 4, 2, 2, 1800.0, 3.5),
    ]
    one, two = (line.split() for line in table(points).splitlines()[1:])
    assert one == ["4", "1", "1", "900", "2.5", "3.0", "(300)", "1.00"]
    assert two == ["4", "2", "2", "1,800", "3.5", "6.0", "(300)", "2.00"]


def test_rounds_take_turns_and_the_best_counts():
    order, rates = [], {"a": iter([1.0, 5.0, 2.0]), "b": iter([4.0, 3.0, 1.0])}

    def round(name):
        order.append(name)
        return next(rates[name])

    contestants = [Contestant(name, 4, 1, 1, 0.0, lambda n=name: round(n)) for name in rates]
    assert [p.steps_per_second for p in measure(contestants, 3)] == [5.0, 4.0]
    assert order == ["a", "b"] * 3


@pytest.mark.slow
def test_on_policy_writes_numbers_and_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(on_policy, "MIN_SECONDS", 0.01)
    argv = ["bench", f"--out={tmp_path}", "--envs=2", "--seeds=1", "--seeds=2", "--rounds=1"]
    assert on_policy.main([*argv, "--nosb3"]) == 0
    rows = json.loads((tmp_path / "on_policy.json").read_text())
    assert [(row["num_envs"], row["num_seeds"]) for row in rows] == [(2, 1), (2, 2)]
    assert all(row["steps_per_second"] > 0 and row["compile_seconds"] > 0 for row in rows)
    assert (tmp_path / "on_policy.png").read_bytes().startswith(b"\x89PNG")
    assert "x one seed" in capsys.readouterr().out


def test_unknown_flag(capsys):
    assert on_policy.main(["bench", "--speed=1"]) == 2
    assert "allowed are --out" in capsys.readouterr().err


@pytest.mark.slow
def test_host_prints_three_rates(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(host, "ROUNDS", 1)
    config = "experiments/configs/ppo_swimmer.py:quick"
    assert host.main(["bench", f"--config={config}", f"--workdir={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("steps/s")[0].split()[0] for line in lines] == [
        "gymnasium",
        "adaptor",
        "training",
    ]
