"""The folder of a run: one process at a time, one config for good."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from rljax.runtime.checkpoint import list_steps
from rljax.runtime.files import to_json, write_atomically


class Workdir(NamedTuple):
    """A locked folder; `with` or `close` frees it, and so does the end of the process."""

    path: Path
    resumed: bool  # it holds a checkpoint to go on from
    lock: int  # descriptor of the locked file

    def __enter__(self) -> "Workdir":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self.close()

    @property
    def checkpoints(self) -> Path:
        """The folder for `Checkpoints`."""
        return self.path / "checkpoints"

    def close(self) -> None:
        """Lets another process have the folder."""
        os.close(self.lock)


def open_workdir(path: str | os.PathLike, config: dict) -> Workdir:
    """Makes or reopens the folder of a run and locks it against other processes.

    The config is written to `config.json` the first time and compared with it afterwards. The lock
    belongs to the process, children apart, and falls with it, by kill -9 too.

    Args:
      path: made with its parents if absent.
      config: nested dicts of what JSON can hold.

    Returns:
      `Workdir(path, resumed, lock)`; resumed is False where a run was killed before it saved.

    Raises:
      ValueError: in one line. `path` cannot be made or written, another process has it, or its
        config.json is unreadable or differs; the first differing field is named.

    >>> import tempfile
    >>> with open_workdir(tempfile.mkdtemp(), {"seed": 0}) as workdir:
    ...     print(workdir.resumed, (workdir.path / "config.json").exists())
    False True
    """
    path = Path(path)
    try:
        text = to_json(config)
    except TypeError as error:
        raise ValueError(f"the config cannot be written as JSON: {error}") from None
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Not flock: children would hold it too, and a process pool may outlive its killed parent.
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ValueError(f"workdir {path} cannot be used: {error}") from None
    try:
        _lock(lock, path)
        _match_config(path / "config.json", text)
        return Workdir(path, bool(list_steps(path / "checkpoints")), lock)
    except OSError as error:
        os.close(lock)
        raise ValueError(f"workdir {path} cannot be used: {error}") from None
    except BaseException:
        os.close(lock)
        raise


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
        raise ValueError(f"workdir {path} is in use by another process") from None


def _match_config(file: Path, text: str) -> None:
    """Writes the config, or raises if another one was written."""
    try:
        there = json.loads(file.read_bytes())
    except FileNotFoundError:
        write_atomically(file, text.encode())
        return
    except ValueError:
        raise ValueError(f"{file} is not JSON; is this the workdir of a run?") from None
    difference = first_difference(there, json.loads(text))
    if difference is not None:
        raise ValueError(f"workdir of another config: {difference} ({file})")


def first_difference(there: Any, here: Any, name: str = "") -> str | None:
    """The first field in which two configs, as JSON gives them back, differ, with both values.

    >>> first_difference({"algo": {"clip": 0.2}}, {"algo": {"clip": 0.1}})
    'algo.clip is 0.2 there and 0.1 here'
    """
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            full = f"{name}.{key}" if name else key
            if key not in there:
                return f"{full} is absent there and {json.dumps(here[key])} here"
            if key not in here:
                return f"{full} is {json.dumps(there[key])} there and absent here"
            difference = first_difference(there[key], here[key], full)
            if difference is not None:
                return difference
        return None
    # Compared as text: 1, 1.0 and true are three values, and NaN equals itself.
    there, here = json.dumps(there), json.dumps(here)
    return None if there == here else f"{name or 'it'} is {there} there and {here} here"
