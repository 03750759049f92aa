"""SHA-256 manifests of folders: has any byte of any file changed since it was written?"""

import hashlib
import json
import os
from pathlib import Path

from rljax.runtime.files import to_json

NAME = "manifest.json"


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[str]:
    paths = (Path(root, name) for root, _, names in os.walk(folder) for name in names)
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _render(files: dict) -> bytes:
    """The manifest's text; it carries its own digest, since a flipped bit may hit it as well."""
    own = hashlib.sha256(to_json(files).encode()).hexdigest()
    return to_json({"files": files, "sha256": own}).encode()


def write_manifest(folder: str | os.PathLike) -> None:
    """Writes `manifest.json` with the size and SHA-256 of every other file below `folder`.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.bin").write_bytes(b"abc")
    >>> write_manifest(folder)
    >>> find_damage(folder)
    """
    folder = Path(folder)
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)}
        for name in _files(folder)
        if name != NAME
    }
    (folder / NAME).write_bytes(_render(files))


def find_damage(folder: str | os.PathLike) -> str | None:
    """Compares a folder with its manifest.

    Args:
      folder: written by `write_manifest`.

    Returns:
      None if every byte is as it was; else the first file that differs and how, in a few words.

    >>> find_damage("/nowhere")
    'manifest.json is missing'
    """
    folder = Path(folder)
    present = _files(folder)
    if NAME not in present:
        return f"{NAME} is missing"
    try:
        content = (folder / NAME).read_bytes()
        files = json.loads(content)["files"]
        # Compared as text: a change that leaves the same JSON behind is still a change.
        if content != _render(files):
            return f"{NAME} is damaged: it does not match its own SHA-256"
        for name, expected in files.items():
            if name not in present:
                return f"{name} is missing"
            size = (folder / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes, not {expected['bytes']}"
            if _sha256(folder / name) != expected["sha256"]:
                return f"{name} is damaged: its SHA-256 differs"
    except (ValueError, KeyError, TypeError):
        return f"{NAME} is damaged: it cannot be parsed"
    except OSError as error:
        return f"it cannot be read: {error}"
    extra = sorted(set(present) - set(files) - {NAME})
    return f"{extra[0]} does not belong to it" if extra else None
