"""The command line as its tests use it: in this process, or as a process of its own."""

import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from experiments.run import main

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "experiments/configs").glob("[!_]*_*.py"))
RUN = (sys.executable, "-m", "experiments.run")
COMPILED = "/jax/core/compile/backend_compile_duration"


class Result(NamedTuple):
    code: int
    out: list[str]  # lines of standard output
    err: list[str]
    compilations: int | None = None


def quick(name: str, workdir: os.PathLike, *overrides: str) -> list[str]:
    """The arguments for the quick variant of a config; an override is "algo.clip=0.1", say."""
    return [
        f"--config={ROOT / 'experiments/configs' / name}.py:quick",
        f"--workdir={workdir}",
        *(f"--config.{override}" for override in overrides),
    ]


def run_here(argv: Sequence[str]) -> Result:
    """`main` in this process."""
    compilations = 0

    def count(event: str, duration: float, **_) -> None:
        nonlocal compilations
        compilations += event == COMPILED

    out, err = io.StringIO(), io.StringIO()
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["run", *argv])
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    return Result(code, out.getvalue().splitlines(), err.getvalue().splitlines(), compilations)


def start(
    argv: Sequence[str], *, cache: Path, program: Sequence[str] = RUN, extra=(), **popen
) -> subprocess.Popen:
    """A process of its own; processes with the same `cache` share what they compile."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict(extra),
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [*program, *argv],
        **{"cwd": ROOT, "env": environment, "text": True, **pipes, **popen},
    )


def finish(process: subprocess.Popen, timeout: float = 240) -> Result:
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return Result(process.returncode, (out or "").splitlines(), (err or "").splitlines())


def wait_for(
    condition: Callable[[], bool], process: subprocess.Popen, timeout: float = 240
) -> None:
    """Looks every millisecond; the process must still live when it comes true."""
    deadline = time.monotonic() + timeout
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"it ended too early: {finish(process)}")
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.001)


def checkpoint_steps(workdir: Path) -> list[int]:
    folder = workdir / "checkpoints"
    names = os.listdir(folder) if folder.exists() else []
    return sorted(int(name) for name in names if name.isdecimal())


def being_written(workdir: Path) -> bool:
    return any((workdir / "checkpoints").glob(".tmp-0*"))


def read_checkpoint(workdir: Path, step: int) -> tuple[dict[str, np.ndarray], dict]:
    """Arrays by path, and everything else that was saved, of one checkpoint."""
    folder = workdir / "checkpoints" / f"{step:012d}"
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        arrays = checkpointer.restore(folder / "state")
    return arrays, json.loads((folder / "metadata.json").read_text())


def read_table(workdir: Path) -> list[list[str]]:
    """The cells of metrics.csv as text, without the columns that depend on the clock."""
    with open(workdir / "metrics.csv", newline="") as file:
        rows = list(csv.reader(file))
    kept = [i for i, name in enumerate(rows[0]) if not name.startswith("time/")]
    assert all(len(row) == len(rows[0]) for row in rows)
    return [[row[i] for i in kept] for row in rows]


def assert_same_run(workdir: Path, other: Path) -> None:
    """Metrics, the newest checkpoint and its metadata are equal to the last bit."""
    assert read_table(workdir) == read_table(other)
    step = checkpoint_steps(other)[-1]
    assert checkpoint_steps(workdir)[-1] == step
    arrays, metadata = read_checkpoint(workdir, step)
    other_arrays, other_metadata = read_checkpoint(other, step)
    assert arrays.keys() == other_arrays.keys()
    assert any("params" in path for path in arrays)
    for path, array in arrays.items():
        assert array.dtype == other_arrays[path].dtype
        assert array.tobytes() == other_arrays[path].tobytes(), path
    # The position is that of a file whose clock columns differ in length.
    metadata["metadata"].pop("position")
    other_metadata["metadata"].pop("position")
    assert metadata == other_metadata


def digests(workdir: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(workdir)): path.read_bytes()
        for path in sorted(workdir.rglob("*"))
        if path.is_file()
    }
