"""The registry of baselines and its mistakes, and the results that are committed."""

import json

import pytest

from experiments.baselines.registry import (
    REGISTRY,
    ROOT,
    Baseline,
    read_registry,
    run_flags,
    settings_of,
)
from experiments.baselines.results import difference, read_curves, read_result
from experiments.baselines.table import rows_of, with_table

RESULTS = REGISTRY.parent / "results"
RUNS = read_registry()
GOOD = """
[[run]]
id = "a"
config = "a2c_line_world:quick"
seeds = 2
[[run.published]]
value = 985
metric = "final_evaluation"
steps = 1600
env = "LineWorld-v0"
source = "notes, table 1"
"""


@pytest.mark.errors
@pytest.mark.parametrize(
    ("old", "new", "needed"),
    [
        ('id = "a"', "", "run 1: id is missing"),
        ('id = "a"', 'id = "A/b"', "run 'A/b': id is 'A/b': it must be letters"),
        ('id = "a"', "id = 3", "run 3: id is 3: it must be a text"),
        ("seeds = 2", "", "run 'a': seeds is missing"),
        ("seeds = 2", "seeds = 0", "run 'a': seeds is 0: it must be at least 1"),
        ("seeds = 2", "seeds = true", "run 'a': seeds is True: it must be an integer"),
        ("seeds = 2", "seeds = 2\nseed = 3", "run 'a': unknown field 'seed'; allowed are id"),
        ("seeds = 2", "seeds = 2\noverrides = 3", "overrides is 3: it must be a table"),
        ("seeds = 2", "seeds = 2\noverrides = {a = [1]}", "overrides is {'a': [1]}: it must be"),
        (":quick", ".py", "config is 'a2c_line_world.py': it must be NAME or NAME:VARIANT"),
        ("value = 985", "", "run 'a': published 1: value is missing"),
        ("value = 985", 'value = "985"', "published 1: value is '985': it must be a number"),
        ("value = 985", "value = 985\nspread = 3", "spread and spread_over go together"),
        ("value = 985", 'value = 985\nspread = -3\nspread_over = "seeds"', "spread is -3"),
        ("value = 985", 'value = 985\nspread = 3\nspread_over = "x"', "one of seeds, episodes"),
        ('"final_evaluation"', '"best"', "metric is 'best': it must be one of final_evaluation"),
        ("steps = 1600", "steps = 1e6", "steps is 1000000.0: it must be an integer"),
        ("[[run.published]]", "[run.published]", "run 'a': published must be [[run.published]]"),
        ("[[run]]", "[run]", "must have [[run]] entries and nothing else"),
        ("[[run]]", "x = 1\n[[run]]", "must have [[run]] entries and nothing else"),
        ("seeds = 2", "seeds = ", "line 5"),
        (GOOD, GOOD + GOOD, "run 'a': id is there twice"),
    ],
)
def test_registries_that_are_wrong(old, new, needed, tmp_path):
    path = tmp_path / "registry.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ValueError, match=r"registry .*\.toml") as caught:
        read_registry(path)
    assert needed in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({"config": "nothing"}, "run 'a': no config file"),
        ({"config": "ppo_cartpole:slow"}, "run 'a': config file"),
        ({"overrides": {"algo.clipp": 1}}, "run 'a': config.algo has no field 'clipp'"),
        ({"overrides": {"total_steps": "many"}}, "run 'a': flag --config.total_steps=many"),
    ],
)
def test_entries_that_are_no_config(fields, needed):
    with pytest.raises(ValueError, match="run 'a'") as caught:
        settings_of(Baseline("a", "ppo_cartpole", 1)._replace(**fields))
    assert str(caught.value).startswith(needed)


def test_the_flags_give_the_settings(tmp_path):
    """The settings that are compared are those of the process that is started."""
    from experiments.cli import parse

    overrides = {"algo.clip": 0.1, "optimizer.anneal": False, "optimizer.name": "sgd"}
    run = Baseline("a", "ppo_cartpole:quick", 3, overrides | {"total_steps": 4096})
    config, workdir = parse(["run", *run_flags(run, [2, 3], tmp_path)])
    assert (config.seed, config.num_seeds, workdir) == (2, 2, tmp_path)
    assert config.optimizer.anneal is False
    assert difference(json.loads(config.to_json_best_effort()), settings_of(run)) is None


# What is committed


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.id)
def test_every_registered_config_exists_and_has_the_published_budget(run):
    settings = settings_of(run)
    assert settings["algo"]["name"] == run.id.split("_")[0]
    for row in run.published:
        assert row.steps == settings["total_steps"], "compare only at the same number of steps"
        assert row.env.split("-")[0] == settings["env"]["name"].split("-")[0]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.id)
def test_results_are_whole_and_small(run):
    result = read_result(RESULTS, run.id)
    files = [RESULTS / f"{run.id}.{suffix}" for suffix in ("json", "csv", "png")]
    assert [path.exists() for path in files] == [result is not None] * 3
    if result is None:
        return
    curves = read_curves(files[1], result["seeds"])
    for seed, numbers in result["seeds"].items():
        step, (_, evaluation) = max(curves[int(seed)].items())
        assert step == numbers["steps"] >= result["settings"]["total_steps"]
        assert evaluation == pytest.approx(numbers["final_evaluation"], rel=1e-5)
        assert numbers["max_evaluation"] >= numbers["final_evaluation"]
        assert "--workdir=runs/" in numbers["command"]
    assert all(path.stat().st_size < 200_000 for path in files)


def test_no_result_is_left_of_a_run_that_is_gone():
    assert {path.stem for path in RESULTS.glob("*")} <= {run.id for run in RUNS}


def all_rows() -> list[list[str]]:
    return [
        row for run in RUNS for row in rows_of(run, settings_of(run), read_result(RESULTS, run.id))
    ]


def test_whatever_is_below_has_its_cause():
    assert [row for row in all_rows() if row[-1].startswith("below") and ":" not in row[-1]] == []


def test_the_readme_has_the_table():
    """To write it: python -m experiments.reproduce --list --readme=README.md"""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_table(readme, all_rows(), "experiments/baselines/results") == readme
