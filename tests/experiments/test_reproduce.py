"""Real runs of a small registry: what is kept, what is run again, what the table says."""

import json
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from experiments.baselines.compare import estimate, verdict
from experiments.reproduce import main
from rljax.runtime.metrics import read_metrics

from .command import Result, checkpoint_steps, digests, finish, start, wait_for

REPRODUCE = (sys.executable, "-m", "experiments.reproduce")
REGISTRY = """
[[run]]
id = "world"
config = "a2c_line_world:quick"
seeds = 2

[[run.published]]
value = -5000
metric = "final_evaluation"
steps = 1600
env = "LineWorld-v0"
source = "notes, table 1"

[[run.published]]
value = 1000
spread = 1
spread_over = "seeds"
metric = "max_evaluation"
steps = 1600
env = "LineWorld-v1"
source = "a paper, table 2"

[[run]]
id = "host"
config = "a2c_cartpole:quick"
seeds = 2
[run.overrides]
"env.backend" = "gymnasium"
"env.num_envs" = 4
unroll_length = 8
total_steps = 480
eval_interval = 5
checkpoint_interval = 1
"""


class Finished(NamedTuple):
    folder: Path
    cache: Path
    result: Result


def flags(folder: Path, *more: str) -> list[str]:
    return [f"--registry={folder / 'registry.toml'}", f"--runs={folder / 'runs'}", *more]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A reproduction from nothing, of both kinds of runs."""
    folder = tmp_path_factory.mktemp("reproduce")
    (folder / "registry.toml").write_text(REGISTRY)
    (folder / "README.md").write_text("# us\n<!-- reproduce: begin -->\n<!-- reproduce: end -->\n")
    argv = flags(folder, f"--readme={folder / 'README.md'}")
    cache = tmp_path_factory.mktemp("cache")
    result = finish(start(argv, cache=cache, program=REPRODUCE))
    assert (result.code, result.err) == (0, [])
    return Finished(folder, cache, result)


def here(capsys, *argv: str) -> Result:
    """`main` in this process."""
    code = main(["reproduce", *argv])
    out, err = capsys.readouterr()
    return Result(code, out.splitlines(), err.splitlines())


def cells(result: Result) -> list[list[str]]:
    """The rows of the printed table."""
    lines = [line for line in result.out if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def jobs(result: Result) -> list[str]:
    """The lines that say what is being run."""
    return [line for line in result.out if line.startswith("[")]


@pytest.mark.slow
def test_everything_is_run_and_compared(finished):
    out = finished.result.out
    assert jobs(finished.result) == ["[1/2] world, seeds 0-1", "[2/2] host, seeds 0-1"]
    assert sum(line.startswith("final eval/return_mean=") for line in out) == 2
    world, other, host = cells(finished.result)
    assert world[:5] == ["world", "LineWorld-v0", "A2C", "1600", "final evaluation"]
    assert world[5:7] == ["-5000.0", "notes, table 1"]
    assert re.fullmatch(r"-?\d+\.\d ± \d+\.\d \(n=2\)", world[7])
    assert other[4:6] == ["max evaluation", "1000.0 ± 1.0 over seeds, LineWorld-v1"]
    seeds = json.loads((finished.folder / "results/world.json").read_text())["seeds"]
    ours = [seeds[seed]["max_evaluation"] for seed in ("0", "1")]
    assert other[-1] == verdict(estimate(ours), 1000.0, 1.0)
    assert host[:5] == ["host", "CartPole-v1", "A2C", "480", "final evaluation"]
    assert host[-1] == "not published"
    commands = [line for line in out if "python -m experiments.run " in line]
    assert len(commands) == 2
    assert "--config=experiments/configs/a2c_line_world.py:quick" in commands[0]
    assert "--config.env.backend=gymnasium" in commands[1]
    assert all("--config.seed=0 --config.num_seeds=2" in command for command in commands)


@pytest.mark.slow
def test_results_are_those_of_the_runs(finished):
    results = finished.folder / "results"
    assert sorted(path.name for path in results.iterdir()) == [
        *(f"{name}.{suffix}" for name in ("host", "world") for suffix in ("csv", "json", "png"))
    ]
    host = json.loads((results / "host.json").read_text())
    assert host["settings"]["env"]["backend"] == "gymnasium"
    assert [*host["seeds"]] == ["0", "1"]
    curves = read_metrics(results / "host.csv")
    assert curves["step"].tolist() == list(range(32, 481, 32))
    (workdir,) = (finished.folder / "runs").glob("host-*-seed0")
    metrics = read_metrics(workdir / "metrics.csv")
    for seed, numbers in host["seeds"].items():
        evaluations = metrics[f"eval/return_mean/seed{seed}"]
        assert numbers["final_evaluation"] == evaluations[-1]
        assert numbers["max_evaluation"] == np.nanmax(evaluations)
        assert numbers["steps"] == 480
        assert numbers["seconds"] == pytest.approx(metrics["time/seconds"][-1], abs=0.06)
        assert workdir.name in numbers["command"]
        assert str(finished.folder) not in numbers["command"]
        assert numbers["versions"]["python"] == sys.version.split()[0]
        for name in ("episode/return_mean", "eval/return_mean"):
            ours = metrics[f"{name}/seed{seed}"]
            np.testing.assert_allclose(curves[f"{name}/seed{seed}"], ours, rtol=1e-5)
    world = json.loads((results / "world.json").read_text())
    assert [seed["seeds_in_the_program"] for seed in world["seeds"].values()] == [2, 2]
    for path in results.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    text = "".join(path.read_text() for path in results.glob("*.json"))
    assert str(finished.folder) not in text


@pytest.mark.slow
def test_the_readme_gets_the_table(finished):
    text = (finished.folder / "README.md").read_text()
    assert text.startswith("# us\n<!-- reproduce: begin -->\n")
    assert "| [world](results/world.png)" in text
    assert "Student t" in text


@pytest.mark.slow
def test_what_is_there_is_not_run_again(finished, capsys):
    before = digests(finished.folder)
    again = here(capsys, *flags(finished.folder))
    assert (again.code, again.err) == (0, [])
    assert jobs(again) == []
    assert cells(again) == cells(finished.result)
    listed = here(capsys, *flags(finished.folder, "--list", "--only=^wor"))
    assert cells(listed) == cells(finished.result)[:2]
    assert digests(finished.folder) == before


@pytest.mark.slow
def test_another_config_makes_a_result_stale_and_is_run(finished, tmp_path, capsys):
    shutil.copytree(finished.folder, tmp_path, dirs_exist_ok=True)
    changed = REGISTRY.replace("seeds = 2\n\n", "seeds = 3\noverrides = {'algo.lambda_' = 0.5}\n\n")
    (tmp_path / "registry.toml").write_text(changed)
    listed = here(capsys, *flags(tmp_path, "--list"))
    words = "stale: config changed, algo.lambda_ is 0.9 there and 0.5 here"
    assert [row[-1] for row in cells(listed)] == [words, words, "not published"]

    argv = flags(tmp_path, "--only=world")
    rerun = finish(start(argv, cache=finished.cache, program=REPRODUCE))
    assert (rerun.code, rerun.err) == (0, [])
    assert jobs(rerun)[0].startswith("[1/1] world, seeds 0-2")
    assert ["(n=3)" in row[-2] and "stale" not in row[-1] for row in cells(rerun)] == [True] * 2
    result = json.loads((tmp_path / "results/world.json").read_text())
    assert result["settings"]["algo"]["lambda_"] == 0.5
    assert len(list((tmp_path / "runs").glob("world-*"))) == 2  # the old one is left alone


@pytest.mark.slow
def test_stopped_it_saves_and_goes_on(finished, tmp_path):
    """The signal reaches `reproduce` alone, which passes it on and waits."""
    longer = REGISTRY.replace("total_steps = 480", "total_steps = 2400")
    (tmp_path / "registry.toml").write_text(longer)
    process = start(flags(tmp_path, "--only=host"), cache=finished.cache, program=REPRODUCE)

    def saved_steps() -> list[int]:
        workdirs = (tmp_path / "runs").glob("host-*-seed0")
        return [step for workdir in workdirs for step in checkpoint_steps(workdir)]

    wait_for(lambda: len(saved_steps()) > 0, process)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process)
    assert (stopped.code, stopped.err) == (143, [])
    assert stopped.out[-1].startswith("stopped; to continue: python -m experiments.reproduce --re")
    assert not (tmp_path / "results").exists()
    saved = saved_steps()[-1]
    assert 0 < saved < 2400

    again = finish(start(flags(tmp_path, "--only=host"), cache=finished.cache, program=REPRODUCE))
    assert (again.code, again.err) == (0, [])
    assert any(line.startswith(f"resuming at step {saved} of") for line in again.out)
    result = json.loads((tmp_path / "results/host.json").read_text())
    assert result["seeds"]["0"]["steps"] == 2400
    assert len(read_metrics(tmp_path / "results/host.csv")["step"]) == 75


@pytest.mark.slow
def test_a_run_that_fails_does_not_keep_the_next_from_running(finished, tmp_path):
    bad = REGISTRY.replace(
        'config = "a2c_line_world:quick"\n',
        'config = "a2c_line_world:quick"\noverrides = {"optimizer.learning_rate" = 1e30}\n',
    )
    (tmp_path / "registry.toml").write_text(bad)
    result = finish(start(flags(tmp_path), cache=finished.cache, program=REPRODUCE))
    assert result.code == 1
    assert "at step" in result.err[0]  # what the run itself says
    assert result.err[-1].startswith("error: failed: world, seeds 0-1 in ")
    assert [row[-1] for row in cells(result)] == ["not run", "not run", "not published"]
    assert [path.stem for path in (tmp_path / "results").glob("*.json")] == ["host"]


@pytest.mark.errors
def test_bad_command_lines_are_one_line(tmp_path, capsys):
    (tmp_path / "registry.toml").write_text(REGISTRY)
    (tmp_path / "README.md").write_text("nothing\n")
    good = flags(tmp_path)
    for more, needed in [
        (["--epochs=3"], "unknown flag --epochs; allowed are --only, --list, --readme, --runs"),
        (["please"], "unexpected argument 'please'"),
        (["--only=hopper"], "--only=hopper matches none of world, host"),
        (["--only=("], "--only=( is no regular expression: "),
        (["--list=perhaps"], "perhaps"),
        (["--registry=/nowhere"], "registry /nowhere cannot be read"),
        ([f"--readme={tmp_path / 'README.md'}"], "must have a line <!-- reproduce: begin"),
        ([f"--readme={tmp_path / 'none.md'}"], "none.md"),
    ]:
        result = here(capsys, *good, *more)
        assert (result.code, result.out, len(result.err)) == (2, [], 1), result
        assert result.err[0].startswith("error: ")
        assert needed in result.err[0]
    (tmp_path / "results").mkdir()
    (tmp_path / "results/world.json").write_text("{")
    result = here(capsys, *good)
    assert (result.code, len(result.err)) == (2, 1)
    assert "world.json is not JSON" in result.err[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("README.md", "registry.toml", "results")
    ]


def test_help(capsys):
    result = here(capsys, "--help")
    assert result.code == 0
    assert result.out[0].startswith("usage: python -m experiments.reproduce [--only=REGEX]")
