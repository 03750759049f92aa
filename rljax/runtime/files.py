"""Files that are whole or absent, whatever happens while they are written."""

import json
import os
from pathlib import Path
from typing import Any


def sync_folder(folder: str | os.PathLike) -> None:
    """Makes the names in `folder` survive a power cut; the files' own contents are synced apart."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: str | os.PathLike) -> None:
    """Makes every file and folder below `folder` survive a power cut."""
    for root, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(root, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(root)


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
    """Writes `content` so that a reader finds the old file or the new one, never a part.

    Args:
      path: the file; its folder must exist, and one process at a time writes it.
      content: all of it.

    Raises:
      OSError: nothing was written; an existing file is as it was.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(path, b"whole")
    >>> path.read_bytes()
    b'whole'
    """
    path = Path(path)
    # A fixed name: what a killed process leaves is overwritten by the next one, not piled up.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def to_json(value: Any) -> str:
    """JSON, sorted and indented, of Python, NumPy and JAX values; equal values give equal text.

    Raises:
      TypeError: `value` holds something that JSON has no word for.

    >>> import numpy as np
    >>> to_json({"b": np.float32(0.5), "a": (1, None)}).split()
    ['{', '"a":', '[', '1,', 'null', '],', '"b":', '0.5', '}']
    """

    def convert(item: Any) -> Any:
        if hasattr(item, "tolist"):  # NumPy and JAX arrays and scalars
            return item.tolist()
        if isinstance(item, os.PathLike):
            return os.fspath(item)
        raise TypeError(f"{type(item).__name__} cannot be written as JSON: {item!r}")

    return json.dumps(value, indent=2, sort_keys=True, default=convert) + "\n"


def one_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where there is none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
