"""A run that fails while running: exit 1, one line, and what was saved before stays good."""

import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from rljax.runtime.manifest import find_damage

from .command import (
    ROOT,
    assert_same_run,
    checkpoint_steps,
    finish,
    quick,
    read_checkpoint,
    read_table,
    run_here,
    start,
    wait_for,
)

pytestmark = pytest.mark.slow

LIMITS = {"metrics": 1, "checkpoint": 20_000}  # bytes of one file, once the run is under way


def long_run(workdir) -> list[str]:
    settings = "total_steps=1920", "eval_interval=5", "checkpoint_interval=1", "env.num_envs=2"
    return quick("a2c_cartpole", workdir, "unroll_length=32", *settings)  # 30 updates of 64 steps


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    result = finish(start(long_run(folder / "w"), cache=folder / "cache"))
    assert result.code == 0, result
    return folder, result


@pytest.mark.parametrize("what", LIMITS)
def test_a_full_disk(what, undisturbed, tmp_path):
    """Stood in for by a limit on the size of files, which fails in the same calls (EFBIG)."""
    folder, expected = undisturbed
    workdir = tmp_path / "w"
    process = start(long_run(workdir), cache=folder / "cache")
    wait_for(lambda: len(checkpoint_steps(workdir)) == 3, process)
    limit = LIMITS[what]
    if what == "checkpoint":
        assert (workdir / "metrics.csv").stat().st_size < limit / 2
        sizes = [path.stat().st_size for path in workdir.glob("checkpoints/*/state/**/*")]
        assert max(sizes) > limit
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    result = finish(process)
    assert result.code == 1, result
    assert len(result.err) == 1, result
    assert result.err[0].startswith("error: ")
    place = {"metrics": "metrics.csv'", "checkpoint": "cannot write checkpoint"}[what]
    assert place in result.err[0]
    assert "File too large" in result.err[0]

    steps = checkpoint_steps(workdir)
    assert len(steps) >= 3
    for step in steps:
        assert find_damage(workdir / "checkpoints" / f"{step:012d}") is None
    assert not list((workdir / "checkpoints").glob(".*"))
    rows = read_table(workdir)  # whole ones; some may be ahead of the checkpoints
    assert len(rows) >= 1 + steps[-1] // 64
    assert rows == read_table(folder / "w")[: len(rows)]

    again = finish(start(long_run(workdir), cache=folder / "cache"))
    assert again.code == 0, again
    assert again.out[-1] == expected.out[-1]
    assert_same_run(workdir, folder / "w")


FULL_FROM_THE_START = """
import resource, sys
from experiments.run import main
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.exit(main(["run", *sys.argv[1:]]))
"""


def test_a_disk_that_is_full_from_the_start(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", FULL_FROM_THE_START, *quick("a2c_line_world", tmp_path / "w")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (result.returncode, result.stdout) == (2, ""), result
    assert result.stderr.startswith(f"error: workdir {tmp_path / 'w'} cannot be used: ")
    assert result.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "w").iterdir()] == [".lock"]


def assert_only_finite_checkpoints(workdir) -> list[int]:
    steps = checkpoint_steps(workdir)
    for step in steps:
        for path, array in read_checkpoint(workdir, step)[0].items():
            if "algo" in path and np.issubdtype(array.dtype, np.floating):
                assert np.isfinite(array).all(), path
    return steps


def test_a_loss_that_becomes_infinite_names_step_metric_and_last_good_checkpoint(tmp_path):
    """With such a rate each update makes the values' error about ten times what it was."""
    argv = quick(
        *("a2c_line_world", tmp_path, "optimizer.learning_rate=50", "total_steps=40000"),
        *("checkpoint_interval=1", "eval_interval=50"),
    )
    result = run_here(argv)
    assert (result.code, len(result.err)) == (1, 1), result
    steps = assert_only_finite_checkpoints(tmp_path)
    assert len(steps) == 3
    newest = tmp_path / "checkpoints" / f"{steps[-1]:012d}"
    failed = steps[-1] + 400
    assert result.err[0] == (
        f"error: loss/value is inf at step {failed} (update {failed // 400 - 1}, seed index 0); "
        f"last good: {newest}"
    )
    rows = read_table(tmp_path)
    assert rows[-1][0] == str(steps[-1])
    assert all(np.isfinite([float(cell) for cell in row if cell]).all() for row in rows[1:])

    again = run_here(argv)
    assert (again.code, again.err) == (1, result.err)
    assert checkpoint_steps(tmp_path) == steps


@pytest.mark.parametrize(
    ("rate", "needed"),
    [
        ("1e30", " at step 800 (update 1, seed index 0); last good: "),
        # The update itself overflows; the metrics before it were fine.
        ("3e38", "is not finite at step 400; last good: no checkpoint"),
    ],
)
def test_parameters_that_are_not_finite_are_never_saved(rate, needed, tmp_path):
    override = f"optimizer.learning_rate={rate}"
    result = run_here(quick("a2c_line_world", tmp_path, override, "checkpoint_interval=1"))
    assert (result.code, len(result.err)) == (1, 1), result
    assert needed in result.err[0]
    assert_only_finite_checkpoints(tmp_path)
