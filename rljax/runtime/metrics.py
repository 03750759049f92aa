"""The metrics of a run: one CSV file that resumes to the byte, and TensorBoard events."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.runtime.files import sync_folder, write_atomically

_FORBIDDEN = set(',"\r\n')


class MetricsWriter:
    """Writes `workdir/metrics.csv` and TensorBoard events in `workdir/tensorboard`.

    The header is `step` and the columns; a row is one `write`. A cell is the shortest decimal
    that gives the float64 back, `nan`, `inf`, or empty where there was nothing to measure.

    Args:
      workdir: an existing folder.
      columns: names of the metrics, without commas, quotes and line breaks.
      position: None starts both files anew. A number of bytes that `flush` returned cuts the CSV
        back to it and goes on there, so that a resumed run's file equals an uninterrupted one's.
      step: with a position, the last step that is kept: TensorBoard hides what was logged after.

    Raises:
      ValueError: a name is bad or there twice; or the file that `position` refers to is shorter,
        has other columns, or no row ends there.

    >>> import tempfile
    >>> with MetricsWriter(tempfile.mkdtemp(), ["loss", "return"]) as metrics:
    ...     metrics.write(10, {"loss": 0.1})
    ...     _ = metrics.flush()
    >>> metrics.path.read_text()
    'step,loss,return\\n10,0.1,\\n'
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        columns: Sequence[str],
        *,
        position: int | None = None,
        step: int = 0,
    ):
        self.columns = tuple(columns)
        for name in self.columns:
            if not name or _FORBIDDEN & set(name) or [*self.columns, "step"].count(name) > 1:
                raise ValueError(f"metrics cannot have a column {name!r} among {self.columns}")
        self.path = Path(workdir) / "metrics.csv"
        header = ",".join(["step", *self.columns]).encode() + b"\n"
        if position is None:
            write_atomically(self.path, header)
        else:
            _check(self.path, header, position)
            os.truncate(self.path, position)
        # Unbuffered: after an error nothing waits in a buffer to be written by close.
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        self._events = _Events(Path(workdir) / "tensorboard", None if position is None else step)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        try:
            self.close()
        except OSError:
            if error is None:  # else the error on its way says it already
                raise

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds one row.

        Args:
          step: the row's first cell.
          values: numbers by column. None, or no entry, gives an empty cell: no episode ended, say.

        Raises:
          ValueError: a name is none of the columns.
          OSError: the row could not be written whole, and what there was of it is gone.
        """
        unknown = sorted(set(values) - set(self.columns))
        if unknown:
            raise ValueError(f"no column {unknown[0]!r} in {self.path}; it has {self.columns}")
        numbers = {name: float(value) for name, value in values.items() if value is not None}
        cells = [repr(numbers[name]) if name in numbers else "" for name in self.columns]
        row = ",".join([str(int(step)), *cells]).encode() + b"\n"
        with _naming(self.path):
            self._append(row)
            self._events.write(int(step), numbers)

    def _append(self, row: bytes) -> None:
        start = self._file.tell()
        try:
            while row:  # an unbuffered write may take a part
                row = row[self._file.write(row) :]
        except OSError:
            self._file.truncate(start)
            raise

    def flush(self) -> int:
        """Brings everything to the disk; returns the length in bytes for `position`."""
        with _naming(self.path):
            os.fsync(self._file.fileno())
            self._events.flush()
            return self._file.tell()

    def close(self) -> None:
        """Closes the files. What was written is in them; `flush` also survives a power cut."""
        try:
            self._events.close()
        finally:
            self._file.close()


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Says whose failure it is: Python does so only where a file is opened."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


def _check(path: Path, header: bytes, position: int) -> None:
    try:
        with open(path, "rb") as file:
            found, size = file.read(len(header)), os.fstat(file.fileno()).st_size
            file.seek(max(position - 1, 0))
            end = file.read(1)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; the checkpoint goes on at byte {position}") from None
    if size < position:
        raise ValueError(f"{path} has {size} bytes; the checkpoint goes on at byte {position}")
    if found != header:
        line = found.split(b"\n")[0].decode(errors="replace")
        raise ValueError(f"{path} starts with {line!r}, not with {header.decode().strip()!r}")
    if position < len(header) or end != b"\n":
        raise ValueError(f"{path}: no row ends at byte {position}, where the checkpoint goes on")


class _Events:
    """TensorBoard events, written by the caller's thread.

    tensorboardX's SummaryWriter hands events to a thread; once the disk is full that thread is
    dead and its queue blocks the training for good. Its lower layer raises, as it should.
    """

    def __init__(self, folder: Path, resumed_step: int | None):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        protos: Any = event_pb2  # its classes are made at import, where pyright sees none
        summaries: Any = summary_pb2
        self._event, self._summary = protos.Event, summaries.Summary
        if resumed_step is None:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        # Numbered, since tensorboardX names files by the second and would overwrite.
        suffix = f".{len(list(folder.iterdir())):06d}"
        self._writer = EventsWriter(str(folder / "events"), suffix)
        if resumed_step is not None:
            # TensorBoard drops everything at or after the step of a START that it reads later.
            start = protos.SessionLog(status=protos.SessionLog.START)
            self._add(step=resumed_step + 1, session_log=start)
        self.flush()
        sync_folder(folder)

    def _add(self, **fields: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), **fields))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=tag, simple_value=x) for tag, x in numbers.items()]
        self._add(step=step, summary=self._summary(value=values))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def read_metrics(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads a metrics file.

    Args:
      path: written by `MetricsWriter`, perhaps still being written: a last row without its end is
        left out.

    Returns:
      One array per column, in order: `step` int64, the others float64 with NaN for empty cells.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "metrics.csv"
    >>> _ = path.write_text("step,loss\\n10,0.5\\n20,\\n30,0.")
    >>> read_metrics(path)
    {'step': array([10, 20]), 'loss': array([0.5, nan])}
    """
    header, *rows = Path(path).read_text(encoding="utf-8").split("\n")[:-1] or [""]
    names = header.split(",")
    cells = [row.split(",") for row in rows]
    columns = {
        name: np.array([float(row[i]) if row[i] else np.nan for row in cells])
        for i, name in enumerate(names)
        if i > 0
    }
    return {"step": np.array([int(row[0]) for row in cells], np.int64), **columns}
