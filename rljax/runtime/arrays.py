"""Arrays in a folder, written and read by orbax without a word on the terminal."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np


def write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes `folder/state`, or nothing where there are no arrays; raises what orbax raises."""
    if arrays:  # orbax refuses an empty tree
        ocp = _orbax()
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            checkpointer.save(folder / "state", args=ocp.args.StandardSave(arrays))


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote; raises what orbax raises.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_arrays(folder, {"x": np.arange(3)})
    >>> read_arrays(folder)
    {'x': array([0, 1, 2])}
    """
    if not (folder / "state").exists():
        return {}
    ocp = _orbax()
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        return checkpointer.restore(folder / "state")


def _orbax() -> Any:
    """Imports orbax when it is first needed (0.3 s) and keeps its failures off the terminal.

    They reach our caller anyway. But orbax logs every step and, for each failure, several
    tracebacks. And when a write fails it closes the event loop which the writes still under way
    report to: for each of these Python prints another traceback, from a thread of tensorstore's.
    """
    from absl import logging

    logging.get_absl_logger().addFilter(_not_from_orbax)  # adding it twice changes nothing
    if not isinstance(sys.unraisablehook, partial):
        sys.unraisablehook = partial(_report_unless_late, sys.unraisablehook)
    import orbax.checkpoint

    return orbax.checkpoint


def _not_from_orbax(record: Any) -> bool:
    return f"{os.sep}orbax{os.sep}" not in record.pathname


def _report_unless_late(report: Callable[[Any], None], unraisable: Any) -> None:
    if str(unraisable.exc_value) != "Event loop is closed":
        report(unraisable)
