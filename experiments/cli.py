"""Command line to config: absl flags with ml_collections, and every mistake as one line."""

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, config_flags

USAGE = (
    "usage: python -m experiments.run --config=experiments/configs/NAME.py[:quick] --workdir=DIR "
    "[--config.FIELD=VALUE ...]"
)


class UsageError(ValueError):
    """Something the user typed is wrong; the message is one line and says what is allowed."""


def parse(argv: Sequence[str]) -> tuple[ConfigDict, Path]:
    """The config with its overrides, and the workdir.

    Args:
      argv: as in sys.argv, the program's name first.

    Raises:
      UsageError: for a flag, field, type or file that is not allowed.
    """
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values)
    flags.DEFINE_string("workdir", None, "where everything is written", flag_values=values)
    shared_argv = sys.argv
    sys.argv = list(argv)  # ml_collections looks for the overrides there
    try:
        positional = values(list(argv))[1:]
        config = values.config
    except (
        Exception
    ) as error:  # the flag libraries raise a dozen kinds, some of them with tracebacks
        raise UsageError(explain(error, argv)) from error
    finally:
        sys.argv = shared_argv
    if positional:
        raise UsageError(f"unexpected argument {positional[0]!r}; {USAGE}")
    for name in ("config", "workdir"):
        if not values[name].value:
            raise UsageError(f"--{name} is missing; {USAGE}")
    return config, Path(values.workdir)


def explain(error: Exception, argv: Sequence[str]) -> str:
    """One line for an error of the flag libraries."""
    if isinstance(error, flags.UnrecognizedFlagError):
        return (
            f"unknown flag --{error.flagname}; allowed are --config, --config.FIELD and --workdir"
        )
    if isinstance(error, AttributeError | KeyError):
        return unknown_field(argv) or one_line(error)
    if isinstance(error, OSError):
        return f"no config file {config_path(argv)}: {last_line(error)}"
    if isinstance(error, flags.IllegalFlagValueError) and "Traceback" in str(error):
        return f"config file {config_path(argv)}: {last_line(error)}"
    return one_line(error)


def unknown_field(argv: Sequence[str]) -> str | None:
    """Which override names a field that the config does not have, and what the config has there."""
    bare = [arg for arg in argv if not arg.startswith("--config.")]
    try:
        config, _ = parse([*bare, "--workdir=unused"])
    except UsageError:
        return None
    for arg in argv:
        if not arg.startswith("--config."):
            continue
        node, path = config, arg.removeprefix("--config.").partition("=")[0].split(".")
        for depth, name in enumerate(path):
            if not isinstance(node, ConfigDict) or name not in node:
                allowed = sorted(node) if isinstance(node, ConfigDict) else []
                near = difflib.get_close_matches(name, allowed, n=1)
                hint = f", did you mean {near[0]}?" if near else ""
                where = ".".join(["config", *path[:depth]])
                return f"{where} has no field {name!r}{hint} Allowed are: {', '.join(allowed)}"
            node = node[name]
    return None


def config_path(argv: Sequence[str]) -> str:
    for arg, following in zip(argv, [*argv[1:], ""]):
        if arg.startswith("--config="):
            return arg.partition("=")[2]
        if arg == "--config":
            return following
    return ""


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__


def last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1].strip()
