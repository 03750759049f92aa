"""What is reproduced: the runs of registry.toml, and the numbers that others published for them."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.cli import load_config, override
from rljax.runtime.files import to_json

ROOT = Path(__file__).parents[2]
REGISTRY = Path(__file__).with_name("registry.toml")
METRICS = ("final_evaluation", "training_return", "max_evaluation")
SPREADS = ("seeds", "episodes")


class Published(NamedTuple):
    """A number that others published. Their steps are the run's, unless a note says more."""

    value: float
    metric: str  # one of METRICS, or what comes closest to it; `note` says where it differs
    steps: int
    env: str  # the environment there, with its version
    source: str  # what stands before the first comma is the label in pictures
    spread: float | None = None  # the published ±, a standard deviation ...
    spread_over: str = ""  # ... over "seeds" or "episodes"
    note: str = ""
    cause: str = ""  # why we are below it, if we are


class Baseline(NamedTuple):
    """One thing that we run, all seeds side by side in one program."""

    id: str
    config: str  # NAME or NAME:VARIANT of experiments/configs/NAME.py
    seeds: int  # 0 ... seeds - 1
    overrides: Mapping[str, Any] = MappingProxyType({})  # fields of the config and their values
    published: tuple[Published, ...] = ()


CHECKS = {  # by field: what its value must be, and the words for it
    "id": (lambda x: re.fullmatch(r"[a-z0-9_]+", x), "letters a-z, digits and underscores"),
    "config": (lambda x: re.fullmatch(r"\w+(:\w+)?", x), "NAME or NAME:VARIANT"),
    "seeds": (lambda x: x >= 1, "at least 1"),
    "overrides": (
        lambda x: all(isinstance(value, str | int | float) for value in x.values()),
        "numbers, texts or booleans by field, quoted where it has a dot",
    ),
    "metric": (lambda x: x in METRICS, f"one of {', '.join(METRICS)}"),
    "steps": (lambda x: x >= 1, "at least 1"),
    "spread": (lambda x: x >= 0, "at least 0"),
    "spread_over": (lambda x: x in SPREADS, f"one of {', '.join(SPREADS)}"),
}
KINDS = {
    **dict.fromkeys(("value", "spread"), (int | float, "a number")),
    **dict.fromkeys(("steps", "seeds"), (int, "an integer")),
    "overrides": (dict, "a table"),
}


def read_registry(path: Path = REGISTRY) -> tuple[Baseline, ...]:
    """The runs of a registry file, in its order.

    Raises:
      ValueError: in one line that names the entry and its field.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"registry {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # bad TOML or bad UTF-8
        raise ValueError(f"registry {path}: {error}") from None
    if [*tables] != ["run"] or not is_tables(tables["run"]):
        raise ValueError(f"registry {path} must have [[run]] entries and nothing else")
    runs = []
    for number, table in enumerate(tables["run"], 1):
        name = f"run {table['id']!r}" if "id" in table else f"run {number}"
        published = table.pop("published", [])
        if not is_tables(published):
            raise ValueError(f"registry {path}: {name}: published must be [[run.published]]")
        run = record(Baseline, table, f"registry {path}: {name}")
        if any(run.id == other.id for other in runs):
            raise ValueError(f"registry {path}: {name}: id is there twice")
        rows = []
        for i, row in enumerate(published, 1):
            rows.append(record(Published, row, f"registry {path}: {name}: published {i}"))
            if (rows[-1].spread is None) != (rows[-1].spread_over == ""):
                raise ValueError(
                    f"registry {path}: {name}: published {i}: spread and spread_over go together"
                )
        runs.append(run._replace(published=tuple(rows)))
    return tuple(runs)


def is_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def record(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    """A NamedTuple from a TOML table, or ValueError."""
    allowed = [field for field in kind._fields if field != "published"]
    for field in table:
        if field not in allowed:
            raise ValueError(f"{where}: unknown field {field!r}; allowed are {', '.join(allowed)}")
    for field in allowed:
        if field not in table and field not in kind._field_defaults:
            raise ValueError(f"{where}: {field} is missing")
    for field, value in table.items():
        types, words = KINDS.get(field, (str, "a text"))
        if not isinstance(value, types) or isinstance(value, bool):
            raise ValueError(f"{where}: {field} is {value!r}: it must be {words}")
        check, words = CHECKS.get(field, (bool, "not empty"))
        if field in CHECKS and not check(value):
            raise ValueError(f"{where}: {field} is {value!r}: it must be {words}")
    return kind(**table)


def settings_of(run: Baseline) -> dict[str, Any]:
    """The config that the run has now, as JSON gives it back.

    Raises:
      ValueError: in one line; the file is missing or wrong, or an override does not fit.
    """
    file, *variant = run.config.split(":")
    path = ":".join([str(ROOT / "experiments/configs" / f"{file}.py"), *variant])
    try:
        config = override(load_config(path), ["reproduce", *override_flags(run)])
    except ValueError as error:
        raise ValueError(f"run {run.id!r}: {error}") from error
    return json.loads(to_json(config.to_dict()))


def override_flags(run: Baseline) -> list[str]:
    texts = {
        field: str(value).lower() if isinstance(value, bool) else str(value)
        for field, value in run.overrides.items()
    }
    return [f"--config.{field}={text}" for field, text in texts.items()]


def run_flags(run: Baseline, seeds: Sequence[int], workdir: Path) -> list[str]:
    """The flags of experiments.run for seeds that follow each other; the folder is the root's."""
    file, *variant = run.config.split(":")
    return [
        "--config=" + ":".join([f"experiments/configs/{file}.py", *variant]),
        f"--workdir={workdir}",
        *override_flags(run),
        f"--config.seed={seeds[0]}",
        f"--config.num_seeds={len(seeds)}",
    ]
