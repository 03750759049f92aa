"""Checkpoints of a whole run: written beside the training, whole or absent, checked when read.

directory/000000010000/state/         the arrays, by orbax
                       metadata.json  step, metric, the caller's metadata, kinds of the leaves
                       manifest.json  size and SHA-256 of every file
"""

import contextlib
import fcntl
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, SupportsFloat

from rljax.runtime.arrays import read_arrays, write_arrays
from rljax.runtime.files import one_line, sync_folder, sync_tree, to_json
from rljax.runtime.leaves import find_difference, pack, unpack
from rljax.runtime.manifest import find_damage, write_manifest
from rljax.types import PyTree

_DIGITS = 12
_HIDDEN = ".tmp-"  # being written, or being deleted


def list_steps(directory: str | os.PathLike) -> list[int]:
    """The steps of the checkpoints in a folder, ascending; none if there is no such folder.

    >>> list_steps("/nowhere")
    []
    """
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdecimal())


class Checkpoints:
    """The checkpoints of one run.

    `save` copies the state and returns; one thread writes it into a hidden folder, syncs it and
    renames it, so that a checkpoint under its final name is complete. Any number of processes may
    read a directory; one at a time may save.

    Args:
      directory: made if absent. What killed processes left half-written in it is removed.
      keep_last: this many of the newest are kept.
      keep_best: and this many of those with the highest metric; of equals the newer.
      warn: called with one line for each checkpoint that had to be passed over.

    >>> import numpy as np, tempfile
    >>> with Checkpoints(tempfile.mkdtemp()) as checkpoints:
    ...     checkpoints.save(7, {"w": np.ones(2)}, {"note": "seven"})
    ...     checkpoints.restore({"w": np.zeros(2)})
    ({'w': array([1., 1.])}, {'note': 'seven'})
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        keep_last: int = 3,
        keep_best: int = 1,
        warn: Callable[[str], object] = print,
    ):
        if keep_last < 1 or keep_best < 0:
            raise ValueError(
                f"keep_last must be at least 1 and keep_best at least 0, "
                f"not {keep_last} and {keep_best}"
            )
        self.directory = Path(directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._keep_last, self._keep_best, self._warn = keep_last, keep_best, warn
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future | None = None
        for leftover in self.directory.glob(f"{_HIDDEN}*"):
            _remove_unless_in_use(leftover)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        try:
            self.close()
        except OSError as failure:
            if error is None:
                raise
            if not isinstance(error, OSError):  # the same disk is full, and that is being said
                self._warn(one_line(failure))  # the error on its way matters more

    def path(self, step: int) -> Path:
        """Where the checkpoint of `step` is or would be."""
        return self.directory / f"{step:0{_DIGITS}d}"

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, ascending."""
        return list_steps(self.directory)

    def save(
        self, step: int, state: PyTree, metadata: dict, *, metric: SupportsFloat | None = None
    ) -> None:
        """Copies `state` to host memory and has it written while the caller goes on.

        Waits for the previous save first. A checkpoint of the same step is replaced.

        Args:
          step: updates, or environment steps, done when `state` was reached; 0 ... 10^12 - 1.
          state: any pytree that `leaves.pack` takes; it may be donated as soon as this returns.
          metadata: anything JSON can hold; `restore` returns it.
          metric: decides which is best, higher is better; None and NaN never are.

        Raises:
          OSError: the previous save failed. What it wrote is gone, older checkpoints are intact.
          ValueError: the step is out of range, or the state holds a leaf that cannot be stored.
        """
        if not 0 <= step < 10**_DIGITS:
            raise ValueError(f"step must be from 0 to 10^{_DIGITS} - 1, not {step}")
        self.wait()
        arrays, leaves = pack(state)
        score = math.nan if metric is None else float(metric)
        score = None if math.isnan(score) else score
        document = {"step": step, "metric": score, "metadata": metadata, "leaves": leaves}
        self._pending = self._worker.submit(self._write, step, arrays, to_json(document))

    def wait(self) -> None:
        """Returns when nothing is being written.

        Raises:
          OSError: the last save failed; said once.
        """
        if self._pending is None:
            return
        pending = self._pending
        try:
            pending.result()
        finally:
            if pending.done():  # not so if Ctrl-C ended the waiting
                self._pending = None

    def close(self) -> None:
        """Waits, and ends the thread. Raises as `wait` does."""
        try:
            self.wait()
        finally:
            self._worker.shutdown()

    def restore(
        self, template: PyTree, *, which: Literal["latest", "best"] | int = "latest"
    ) -> tuple[PyTree, dict] | None:
        """Reads the newest checkpoint, or the best, that is what was written, to the byte.

        One that is not is reported by `warn`, and the next one in order is tried.

        Args:
          template: a tree of the same structure, kinds and shapes as the saved one, which gives
            the shardings; see `leaves.unpack`.
          which: "latest", or "best": by metric, those without one last; or a step, and no other.

        Returns:
          (state, metadata); or None if the directory holds no checkpoint.

        Raises:
          ValueError: there are checkpoints and all are damaged; or `template` differs from what
            was saved, in which case the first differing leaf is named.
        """
        if which not in ("latest", "best") and not isinstance(which, int):
            raise ValueError(f"which must be 'latest', 'best' or a step, not {which!r}")
        self.wait()
        reason = None
        for step in self._in_order(which):
            folder = self.path(step)
            reason = find_damage(folder)
            if reason is None:
                document = json.loads((folder / "metadata.json").read_bytes())
                difference = find_difference(template, document["leaves"])
                if difference is not None:
                    raise ValueError(f"checkpoint {folder} is of another run: {difference}")
                try:
                    arrays = read_arrays(folder)
                except Exception as error:  # whatever orbax raises, an older one may do
                    reason = f"orbax cannot read it: {one_line(error)}"
                else:
                    return unpack(template, arrays, document["leaves"]), document["metadata"]
            self._warn(f"checkpoint {folder} is not used: {reason}")
        if reason is not None:
            raise ValueError(f"no usable checkpoint in {self.directory}; the last tried: {reason}")
        return None

    def _in_order(self, which: str | int) -> list[int]:
        newest_first = self.steps()[::-1]
        if isinstance(which, int):
            return [step for step in newest_first if step == which]
        if which == "latest":
            return newest_first
        metrics = {step: _read_metric(self.path(step)) for step in newest_first}
        return sorted(newest_first, key=lambda step: _worst_last(metrics[step]))

    def _write(self, step: int, arrays: dict, document: str) -> None:
        """In the thread: everything between the copy and the pruning."""
        final = self.path(step)
        try:
            with self._staging(f"{final.name}-") as staging:
                write_arrays(staging, arrays)
                (staging / "metadata.json").write_text(document)
                write_manifest(staging)
                sync_tree(staging)
                with self._set_aside([step] if final.exists() else []):
                    os.rename(staging, final)
                sync_folder(self.directory)
            self._prune(step)
        except Exception as error:
            raise OSError(f"cannot write checkpoint {final}: {one_line(error)}") from error

    def _prune(self, written: int) -> None:
        steps = self.steps()
        # Later steps than the one just written are of a future that was given up, say after damage.
        # They must not push out good ones; they go when the run has passed them.
        kept = {step for step in steps if step > written}
        kept.update([step for step in steps if step <= written][-self._keep_last :])
        scored = [step for step in steps[::-1] if _read_metric(self.path(step)) is not None]
        scored.sort(key=lambda step: _worst_last(_read_metric(self.path(step))))
        kept.update(scored[: self._keep_best])
        with self._set_aside([step for step in steps if step not in kept]):
            pass

    @contextlib.contextmanager
    def _staging(self, name: str) -> Iterator[Path]:
        """A hidden folder, gone at the end unless it was renamed, and known to be in use."""
        # Not by tempfile, whose folders only their owner may read: this one becomes a checkpoint.
        folder = self.directory / f"{_HIDDEN}{name}{uuid.uuid4().hex}"
        folder.mkdir()
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield folder
        finally:
            _remove(folder)
            os.close(descriptor)

    @contextlib.contextmanager
    def _set_aside(self, steps: list[int]) -> Iterator[None]:
        """Takes checkpoints out of sight, each at one stroke, and deletes them at the end."""
        with self._staging("old-") as grave:
            for step in steps:
                os.rename(self.path(step), grave / str(step))
            yield


def _remove(folder: Path) -> None:
    for _ in range(20):  # after a failure tensorstore's threads may write into it for a moment
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)


def _remove_unless_in_use(folder: Path) -> None:
    with contextlib.suppress(OSError):  # locked by a living process, or gone meanwhile
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _read_metric(folder: Path) -> float | None:
    try:
        metric = json.loads((folder / "metadata.json").read_bytes())["metric"]
        return None if metric is None else float(metric)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # damaged; restore will say so


def _worst_last(metric: float | None) -> tuple[bool, float]:
    return (metric is None, -(metric or 0.0))
