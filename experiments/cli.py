"""Command line to config: absl flags with ml_collections, and every mistake as one line."""

import difflib
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

USAGE = (
    "usage: python -m experiments.run --config=experiments/configs/NAME.py[:quick] --workdir=DIR "
    "[--config.FIELD=VALUE ...]"
)
CONFIGS = Path(__file__).parent / "configs"


class HelpWanted(Exception):
    """The user asked for the usage."""


class UsageError(ValueError):
    """Something the user typed is wrong; the message is one line and says what is allowed."""


def parse(argv: Sequence[str]) -> tuple[ConfigDict, Path]:
    """The config with its overrides, and the workdir.

    Args:
      argv: as in sys.argv, the program's name first.

    Raises:
      UsageError: for a flag, field, type or file that is not allowed.
      HelpWanted: for --help.
    """
    check_help(argv)
    files = flags.FlagValues()
    files.set_gnu_getopt(True)  # overrides, unknown as yet, may stand before the two flags
    for name in ("config", "workdir"):
        flags.DEFINE_string(name, None, "", flag_values=files)
    try:
        rest = files(list(argv), known_only=True)
    except flags.Error as error:
        raise UsageError(one_line(error)) from error
    given = files.flag_values_dict()
    for name in ("config", "workdir"):
        if not given[name]:
            raise UsageError(f"--{name} is missing; {USAGE}")
    return override(load_config(given["config"]), rest), Path(given["workdir"])


def check_help(argv: Sequence[str]) -> None:
    """Raises HelpWanted if the command line asks for help."""
    if {"-h", "-help", "--help", "--helpshort", "--helpfull"} & {*argv}:
        raise HelpWanted


def parse_flags(values: flags.FlagValues, argv: Sequence[str], hint: str) -> dict[str, Any]:
    """The flags' values by name, where `argv` holds flags alone; `hint` says what is allowed.

    Raises:
      UsageError: for any other flag, value or argument.
    """
    try:
        positional = values(list(argv))[1:]
    except flags.UnrecognizedFlagError as error:
        raise UsageError(f"unknown flag --{error.flagname}; {hint}") from error
    except flags.Error as error:
        raise UsageError(one_line(error)) from error
    if positional:
        raise UsageError(f"unexpected argument {positional[0]!r}; {hint}")
    return values.flag_values_dict()


def load_config(text: str) -> ConfigDict:
    """What `get_config` of a file returns; `text` is PATH or PATH:VARIANT."""
    path, *variant = text.split(":", 1)
    if not Path(path).is_file():
        names = sorted(file.name for file in CONFIGS.glob("[!_]*_*.py"))
        raise UsageError(f"no config file {path}; in {CONFIGS} there are {', '.join(names)}")
    try:
        config = runpy.run_path(path)["get_config"](*variant)
    except Exception as error:  # it is the user's program
        raise UsageError(
            f"config file {text}: {type(error).__name__}: {one_line(error)}"
        ) from error
    if not isinstance(config, ConfigDict):
        kind = type(config).__name__
        raise UsageError(f"config file {text}: get_config returned {kind}, not a ConfigDict")
    return config


def override(config: ConfigDict, argv: Sequence[str]) -> ConfigDict:
    """The config after --config.FIELD=VALUE; nothing else is allowed in `argv`."""
    values = flags.FlagValues()
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=[*argv])
        positional = values(list(argv))[1:]
    except flags.UnrecognizedFlagError as error:
        allowed = "--config, --config.FIELD and --workdir"
        raise UsageError(f"unknown flag --{error.flagname}; allowed are {allowed}") from error
    except Exception as error:  # the flag libraries raise a dozen kinds
        raise UsageError(unknown_field(config, argv) or one_line(error)) from error
    if positional:
        raise UsageError(f"unexpected argument {positional[0]!r}; {USAGE}")
    return values.flag_values_dict()["config"]


def unknown_field(config: ConfigDict, argv: Sequence[str]) -> str | None:
    """Which override names a field that the config does not have, and what the config has there."""
    for arg in argv:
        if not arg.startswith("--config."):
            continue
        node, path = config, arg.removeprefix("--config.").partition("=")[0].split(".")
        for depth, name in enumerate(path):
            where = ".".join(["config", *path[:depth]])
            if not isinstance(node, ConfigDict):
                return f"{where} is {node!r}: it has no fields"
            if name not in node:
                near = difflib.get_close_matches(name, node, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                return f"{where} has no field {name!r}{hint}; allowed are {', '.join(sorted(node))}"
            node = node[name]
    return None


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__
