"""The processes that are missing for a result, one after the other."""

import datetime
import hashlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.baselines.registry import ROOT, Baseline, run_flags
from experiments.baselines.results import missing_seeds, read_result, save_result
from rljax.runtime.files import to_json
from rljax.runtime.interrupts import Interrupt, catch_signals


class Job(NamedTuple):
    """One process of experiments.run: all seeds side by side."""

    baseline: Baseline
    settings: Mapping[str, Any]
    seeds: Sequence[int]

    @property
    def folder(self) -> str:
        """Its name holds the settings: a workdir keeps one config for good."""
        digest = hashlib.sha256(to_json([self.settings, len(self.seeds)]).encode()).hexdigest()
        return f"{self.baseline.id}-{digest[:8]}-seed{self.seeds[0]}"

    @property
    def steps(self) -> int:
        return self.settings["total_steps"] * len(self.seeds)

    def __str__(self) -> str:
        last = f"-{self.seeds[-1]}" if len(self.seeds) > 1 else ""
        return f"{self.baseline.id}, seed{'s' if last else ''} {self.seeds[0]}{last}"


def job_of(baseline: Baseline, settings: Mapping[str, Any]) -> Job:
    """All seeds side by side, so that acting costs one call for all of them."""
    return Job(baseline, settings, range(baseline.seeds))


def plan(
    baselines: Sequence[Baseline], settings: Mapping[str, Mapping[str, Any]], results: Path
) -> list[Job]:
    """The processes that have a seed without a result for the settings of now."""
    return [
        job_of(baseline, settings[baseline.id])
        for baseline in baselines
        if missing_seeds(baseline, settings[baseline.id], read_result(results, baseline.id))
    ]


def work(jobs: Sequence[Job], runs: Path, results: Path) -> list[Job]:
    """Does one job after the other, and keeps the result of each as soon as it is there.

    Args:
      jobs: of `plan`.
      runs: the folder of their workdirs.
      results: the folder of the results.

    Returns:
      Those that failed.

    Raises:
      KeyboardInterrupt: with the signal's number, once the run in progress has saved.
    """
    failed = []
    with catch_signals() as signals:
        for i, job in enumerate(jobs):
            left = time_left(jobs[i:], results)
            print(f"\n[{i + 1}/{len(jobs)}] {job}{left}", flush=True)
            code = run_process(job, runs / job.folder, signals)
            if code == 0:
                workdir = runs / job.folder
                save_result(results, job.baseline, job.settings, job.seeds, workdir)
            elif not signals.signal:
                failed.append(job)
            if signals.signal:
                raise KeyboardInterrupt(signals.signal)
    return failed


def run_process(job: Job, workdir: Path, signals: Interrupt) -> int:
    """experiments.run on the job, with its progress on our screen; returns the exit code.

    It has a process group of its own: a signal reaches it once, through us.
    """
    argv = [sys.executable, "-m", "experiments.run", *run_flags(job.baseline, job.seeds, workdir)]
    told = False
    with subprocess.Popen(argv, cwd=ROOT, process_group=0) as process:
        try:
            while process.poll() is None:
                if signals.signal and not told:
                    process.send_signal(signals.signal)
                    told = True
                time.sleep(0.1)
        except BaseException:  # a second Ctrl-C
            process.kill()
            raise
    return process.returncode


def time_left(jobs: Sequence[Job], results: Path) -> str:
    """In words, at the pace of what has a result: of the same run or else on the same backend."""
    paces: dict[str, list[float]] = {}
    for path in results.glob("*.json"):
        result = read_result(results, path.stem) or {"seeds": {}}
        for seed in result["seeds"].values():
            pace = seed["seconds"] / seed["steps"] / seed["seeds_in_the_program"]
            for key in (path.stem, result["settings"]["env"]["backend"]):
                paces.setdefault(key, []).append(pace)
    known = [
        paces.get(job.baseline.id) or paces.get(job.settings["env"]["backend"]) for job in jobs
    ]
    if not all(known):
        return ""
    seconds = sum(job.steps * sum(pace) / len(pace) for job, pace in zip(jobs, known) if pace)
    return f" (about {datetime.timedelta(seconds=round(seconds))} left in all)"
