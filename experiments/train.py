"""The training of one run: advance, log, evaluate, checkpoint, until done or told to stop."""

import contextlib
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np

from experiments.build import Run
from experiments.configs.defaults import Config
from experiments.rows import EPISODE_METRICS, NotFinite, check_rows, chunk_means, over_seeds
from rljax.loops.evaluate import EVAL_METRICS
from rljax.runtime.checkpoint import Checkpoints
from rljax.runtime.files import to_json
from rljax.runtime.interrupts import Interrupt
from rljax.runtime.metrics import MetricsWriter
from rljax.runtime.plots import plot_curves
from rljax.runtime.progress import progress_display
from rljax.runtime.workdir import first_difference
from rljax.types import PyTree

TIME_METRICS = ("time/seconds", "time/steps_per_second")  # of this process; never compared
EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}


def train(config: Config, run: Run, workdir: Path, argv: Sequence[str], signals: Interrupt) -> int:
    """Trains to the last update or a signal, from the newest checkpoint if there is one.

    Returns:
      The exit code: 0, or 130 and 143 after SIGINT and SIGTERM.

    Raises:
      ValueError: if the checkpoints are corrupt or belong to another program; before anything is
        compiled.
      NotFinite: naming step, metric and the last good checkpoint.
      OSError: if something cannot be written.
    """
    loop = run.loop
    names = [name for name in loop.metric_names if not name.startswith("episode/")]
    seeds = range(config.num_seeds if config.num_seeds > 1 else 0)
    columns = [
        column
        for name in (*names, *EPISODE_METRICS, *EVAL_METRICS)
        for column in (name, *(f"{name}/seed{s}" for s in seeds))
    ]
    settings = json.loads(to_json(config.to_dict()))
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=config.keep_checkpoints, warn=warn)
    saved = checkpoints.restore(loop.template)
    difference = saved and first_difference(saved[1].get("config"), settings)
    if difference:  # its arrays fit all the same: they were copied here from another workdir
        raise ValueError(f"checkpoint of another config in {checkpoints.directory}: {difference}")
    update, position = (saved[1]["update"], saved[1]["position"]) if saved else (0, None)

    def steps(update: int) -> int:
        return loop.first_step + update * loop.steps_per_update

    if saved and update == run.num_updates:  # nothing is written but the picture, as it was
        checkpoints.close()
        return finish(config, workdir, loop.evaluate(loop.load(saved[0])))
    with (
        MetricsWriter(
            workdir,
            [*columns, *TIME_METRICS],
            position=position,
            step=steps(update) if saved else 0,
        ) as writer,
        checkpoints,
        progress_display(
            steps(run.num_updates),
            initial_step=steps(update) if saved else 0,
            title=f"{config.algo.name} {config.env.name}",
        ) as progress,
    ):
        if run.replay_bytes:
            progress.log(
                f"replay: {config.replay.capacity:,} transitions of each of {config.num_seeds} "
                f"seed(s), {run.replay_bytes / 1e6:,.1f} MB"
            )
        if saved:
            progress.log(f"resuming at step {steps(update)} of {workdir}")
            if config.env.backend == "envpool":
                progress.log("EnvPool's environments cannot be saved: fresh episodes from here on")
            if run.replay_bytes and not config.replay.checkpoint:
                progress.log(
                    f"config.replay.checkpoint is False: {loop.first_step} random "
                    "steps fill a new one, which the steps shown do not count"
                )
        state = loop.load(saved[0]) if saved else loop.init()
        del saved
        started, first = time.perf_counter(), update
        evaluation: dict[str, np.ndarray] = {}
        stopped = signals.signal
        while update < run.num_updates and not stopped:
            num_updates = min(config.log_interval, run.num_updates - update)
            with no_bad_argument():
                state, rows = loop.advance(state, num_updates)
            check_rows(rows, update, steps, partial(newest, checkpoints))
            update += num_updates
            step, last = steps(update), update == run.num_updates

            values = chunk_means(rows, names)
            evaluation = {}
            if last or update % config.eval_interval == 0:
                with no_bad_argument():
                    evaluation = loop.evaluate(state)
                values |= evaluation
            seconds = time.perf_counter() - started
            row = over_seeds(values) | {
                "time/seconds": seconds,
                "time/steps_per_second": (update - first)
                * loop.steps_per_update
                * config.num_seeds
                / seconds,
            }
            writer.write(step, row)
            progress.update(step, row)
            stopped = signals.signal  # looked at once, so that what is left has been saved
            if last or stopped or update % config.checkpoint_interval == 0:
                position = writer.flush()
                tree = loop.save(state)
                check_state(tree, step, partial(newest, checkpoints))
                checkpoints.save(
                    step,
                    tree,
                    {"update": update, "position": position, "config": settings},
                    metric=np.mean(evaluation["eval/return_mean"]) if evaluation else None,
                )

    if stopped and update < run.num_updates:
        draw(config, workdir)
        print(
            f"stopped at step {steps(update)}, "
            f"{'saved' if update else 'before anything was saved'}; to continue: "
            f"python -m experiments.run {shlex.join(argv[1:])}"
        )
        return EXIT_CODES[stopped]
    return finish(config, workdir, evaluation)


def finish(config: Config, workdir: Path, evaluation: dict[str, np.ndarray]) -> int:
    """Draws the curves and prints the final numbers."""
    print(f"curves: {draw(config, workdir)}")
    print("final " + " ".join(f"{k}={v!r}" for k, v in over_seeds(evaluation).items()))
    return 0


def draw(config: Config, workdir: Path) -> Path:
    curves = workdir / "curves.png"
    title = f"{config.algo.name} {config.env.name}"
    plot_curves(workdir / "metrics.csv", curves, title=title, reference=config.solved_return)
    return curves


@contextlib.contextmanager
def no_bad_argument() -> Iterator[None]:
    """A ValueError in here is a fault of the program: exit code 1, and the traceback is wanted."""
    try:
        yield
    except ValueError as error:
        raise RuntimeError("the run failed") from error


def check_state(tree: PyTree, step: int, newest: Callable[[], str]) -> None:
    """Raises NotFinite if a number in the algorithm's state is NaN or inf."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree.algo):
        if jax.numpy.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise NotFinite(f"{name} is not finite at step {step}; last good: {newest()}")


def newest(checkpoints: Checkpoints) -> str:
    """The newest checkpoint, for people."""
    checkpoints.wait()
    steps = checkpoints.steps()
    return str(checkpoints.path(steps[-1])) if steps else "no checkpoint"


def warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)
