"""The training of one run: advance, log, evaluate, checkpoint, until done or told to stop."""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np

from experiments.build import Run
from experiments.configs.defaults import Config
from experiments.rows import EPISODE_METRICS, NotFinite, check_rows, chunk_means, over_seeds
from rljax.loops.evaluate import EVAL_METRICS
from rljax.runtime.checkpoint import Checkpoints
from rljax.runtime.interrupts import catch_signals
from rljax.runtime.metrics import MetricsWriter
from rljax.runtime.plots import plot_curves
from rljax.runtime.progress import progress_display
from rljax.types import PyTree

TIME_METRICS = ("time/seconds", "time/steps_per_second")  # of this process; never compared
EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}


def train(config: Config, run: Run, workdir: Path, argv: Sequence[str]) -> int:
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
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=config.keep_checkpoints, warn=warn)
    saved = checkpoints.restore(loop.template)
    update, position = (saved[1]["update"], saved[1]["position"]) if saved else (0, None)
    with (
        catch_signals() as signals,
        MetricsWriter(
            workdir,
            [*columns, *TIME_METRICS],
            position=position,
            step=update * loop.steps_per_update,
        ) as writer,
        checkpoints,
        progress_display(
            run.num_updates * loop.steps_per_update,
            initial_step=update * loop.steps_per_update,
            title=f"{config.algo.name} {config.env.name}",
        ) as progress,
    ):
        if saved:
            progress.log(f"resuming at step {update * loop.steps_per_update} of {workdir}")
        state = loop.load(saved[0]) if saved else loop.init()
        del saved
        started, first = time.perf_counter(), update
        evaluation: dict[str, np.ndarray] = {}
        while update < run.num_updates and signals.signal is None:
            num_updates = min(config.log_interval, run.num_updates - update)
            state, rows = loop.advance(state, num_updates)
            check_rows(rows, update, loop.steps_per_update, partial(newest, checkpoints))
            update += num_updates
            step, last = update * loop.steps_per_update, update == run.num_updates

            values = chunk_means(rows, names)
            evaluation = {}
            if last or update % config.eval_interval == 0:
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
            if last or signals.signal or update % config.checkpoint_interval == 0:
                position = writer.flush()
                tree = loop.save(state)
                check_state(tree, step, partial(newest, checkpoints))
                checkpoints.save(
                    step,
                    tree,
                    {"update": update, "position": position},
                    metric=np.mean(evaluation["eval/return_mean"]) if evaluation else None,
                )
        checkpoints.wait()
        if not evaluation and update == run.num_updates:  # it was complete already
            evaluation = loop.evaluate(state)

    curves = workdir / "curves.png"
    plot_curves(
        workdir / "metrics.csv",
        curves,
        title=f"{config.algo.name} {config.env.name}",
        reference=config.solved_return,
    )
    if signals.signal and update < run.num_updates:
        print(
            f"stopped at step {update * loop.steps_per_update} and saved; to continue: "
            f"python -m experiments.run {shlex.join(argv[1:])}"
        )
        return EXIT_CODES[signals.signal]
    print(f"curves: {curves}")
    print("final " + " ".join(f"{k}={v!r}" for k, v in over_seeds(evaluation).items()))
    return 0


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
