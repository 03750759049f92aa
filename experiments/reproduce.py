"""Runs registered baselines and prints our results beside the published ones.

python -m experiments.reproduce --only=cartpole

What is finished is kept: the same command goes on where it was stopped, and runs again only what
was run with another config.
"""

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from experiments.baselines.jobs import job_of, plan, work
from experiments.baselines.registry import (
    REGISTRY,
    ROOT,
    Baseline,
    read_registry,
    run_flags,
    settings_of,
)
from experiments.baselines.results import read_result
from experiments.baselines.table import markdown, rows_of, with_table
from experiments.cli import HelpWanted, check_help, parse_flags
from experiments.run import fail, terminate
from experiments.screen import lenient
from rljax.runtime.files import write_atomically

USAGE = """\
usage: python -m experiments.reproduce [--only=REGEX] [--list] [--readme=FILE] [--runs=DIR]
       [--registry=FILE]
  --only      the runs whose name has a match; without it all
  --list      runs nothing, prints the table with what there is
  --readme    writes the table of all runs between the two marks of this file
  --runs      where the runs' folders lie (runs/reproduce)
  --registry  another registry; results are kept in the folder `results` beside it"""


class Options(NamedTuple):
    only: str
    list: bool
    readme: Path | None
    runs: Path
    registry: Path

    @property
    def results(self) -> Path:
        return self.registry.parent / "results"


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns its exit code.

    0 done; 1 a run failed, and those after it have been done all the same; 2 a flag, the registry
    or a config is wrong, before anything is run; 130 after Ctrl-C, 143 after SIGTERM, once the run
    in progress has saved.
    """
    try:
        return run(argv)
    except KeyboardInterrupt as stop:
        print(f"stopped; to continue: python -m experiments.reproduce {shlex.join(argv[1:])}")
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)


def run(argv: Sequence[str]) -> int:
    """The same, but for a KeyboardInterrupt."""
    try:
        options = parse(argv)
        baselines = read_registry(options.registry)
        chosen = select(baselines, options.only)
        all_or_chosen = baselines if options.readme else chosen
        settings = {baseline.id: settings_of(baseline) for baseline in all_or_chosen}
        rows = table(all_or_chosen, settings, options.results)
        if options.readme:  # what is wrong with it is better said now than after days
            with_table(options.readme.read_text(encoding="utf-8"), rows, "")
        jobs = [] if options.list else plan(chosen, settings, options.results)
    except HelpWanted:
        print(USAGE)
        return 0
    except (ValueError, OSError) as error:
        return fail(error, 2)
    try:
        failed = work(jobs, options.runs, options.results)
        print("\n" + markdown(table(chosen, settings, options.results)))
        print(commands(chosen, settings))
        if options.readme:
            rows = table(baselines, settings, options.results)
            pictures = os.path.relpath(options.results, options.readme.parent)
            text = with_table(options.readme.read_text(encoding="utf-8"), rows, pictures)
            write_atomically(options.readme, text.encode())
    except (ValueError, OSError) as error:
        return fail(error, 1)
    for job in failed:
        fail(RuntimeError(f"failed: {job} in {options.runs / job.folder}"), 1)
    return 1 if failed else 0


def parse(argv: Sequence[str]) -> Options:
    """The options.

    Raises:
      ValueError: in one line, for what is no flag of ours; HelpWanted for --help.
    """
    check_help(argv)
    values = flags.FlagValues()
    flags.DEFINE_string("only", "", "", flag_values=values)
    flags.DEFINE_boolean("list", False, "", flag_values=values)
    flags.DEFINE_string("readme", None, "", flag_values=values)
    flags.DEFINE_string("runs", str(ROOT / "runs/reproduce"), "", flag_values=values)
    flags.DEFINE_string("registry", str(REGISTRY), "", flag_values=values)
    allowed = ", ".join(f"--{name}" for name in ("only", "list", "readme", "runs", "registry"))
    given = parse_flags(values, argv, f"allowed are {allowed}")
    readme = given.pop("readme")
    runs, registry = (Path(given.pop(name)).resolve() for name in ("runs", "registry"))
    return Options(**given, readme=readme and Path(readme).resolve(), runs=runs, registry=registry)


def select(baselines: Sequence[Baseline], only: str) -> list[Baseline]:
    """Those in whose names the regular expression is found."""
    try:
        chosen = [baseline for baseline in baselines if re.search(only, baseline.id)]
    except re.error as error:
        raise ValueError(f"--only={only} is no regular expression: {error}") from None
    if not chosen:
        names = ", ".join(baseline.id for baseline in baselines)
        raise ValueError(f"--only={only} matches none of {names}")
    return chosen


def table(
    baselines: Sequence[Baseline], settings: Mapping[str, Mapping[str, Any]], results: Path
) -> list[list[str]]:
    """The rows of all these, with what there is now."""
    return [
        row
        for baseline in baselines
        for row in rows_of(baseline, settings[baseline.id], read_result(results, baseline.id))
    ]


def commands(baselines: Sequence[Baseline], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """What a result comes from, process by process."""
    jobs = [job_of(baseline, settings[baseline.id]) for baseline in baselines]
    width = max(len(str(job)) for job in jobs)
    return "\n".join(
        f"{str(job).ljust(width)}  python -m experiments.run "
        + shlex.join(run_flags(job.baseline, job.seeds, Path("runs/reproduce", job.folder)))
        for job in jobs
    )


if __name__ == "__main__":
    sys.stdout, sys.stderr = lenient(sys.stdout), lenient(sys.stderr)
    signal.signal(signal.SIGTERM, terminate)
    sys.exit(main(sys.argv))
