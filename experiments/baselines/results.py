"""What our runs gave: results/ID.json with every seed's numbers, ID.csv the curve, ID.png drawn.

The JSON is written last: a seed that stands there is complete.
"""

import importlib.metadata
import json
import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.baselines.measure import Points, measure, thin, wall_seconds
from experiments.baselines.registry import Baseline, run_flags
from experiments.configs import defaults
from rljax.runtime.files import to_json, write_atomically
from rljax.runtime.metrics import read_metrics
from rljax.runtime.plots import plot_curves
from rljax.runtime.workdir import first_difference

CURVES = ("episode/return_mean", "eval/return_mean")
UNIMPORTANT = ("seed", "num_seeds", "num_workers", "keep_checkpoints", "checkpoint_interval")
UNIMPORTANT += ("solved_return",)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "mujoco")


def read_result(folder: Path, id: str) -> dict[str, Any] | None:
    """The contents of results/ID.json; None if there is none.

    Raises:
      ValueError: in one line, if it is not what `save_result` writes.
    """
    path = folder / f"{id}.json"
    try:
        result = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        raise ValueError(f"{path} is not JSON") from None
    if not isinstance(result, dict) or not {"settings", "seeds"} <= {*result}:
        raise ValueError(f"{path} has no settings and seeds; is it a result?")
    return result


def difference(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first setting that has changed since a result; None if the result still stands.

    A field that the config did not have then counts with its default, which is to be what was done
    before there was a field.
    """
    expected = defaults.run("")
    expected.algo = getattr(defaults, now["algo"]["name"], dict)()
    stored = filled(stored, json.loads(to_json(expected.to_dict())))
    return first_difference(
        {field: value for field, value in stored.items() if field not in UNIMPORTANT},
        {field: value for field, value in now.items() if field not in UNIMPORTANT},
    )


def filled(there: Mapping[str, Any], missing: Mapping[str, Any]) -> dict[str, Any]:
    """`there` with what it lacks taken from `missing`, at every depth."""
    whole = {**missing, **there}
    for field, value in missing.items():
        if isinstance(value, dict) and isinstance(whole[field], dict):
            whole[field] = filled(whole[field], value)
    return whole


def missing_seeds(run: Baseline, settings: Mapping[str, Any], result: Any) -> list[int]:
    """The seeds without a result for these settings, in order."""
    done = {} if result is None or difference(result["settings"], settings) else result["seeds"]
    return [seed for seed in range(run.seeds) if str(seed) not in done]


def save_result(
    folder: Path,
    run: Baseline,
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    workdir: Path,
) -> dict[str, Any]:
    """Adds the seeds of a finished run to its result; those of other settings are dropped.

    Args:
      folder: of the results; made if absent.
      run: the registry's entry.
      settings: that it has now.
      seeds: that were run in one program in `workdir`.

    Returns:
      The result, as it was written.
    """
    metrics = read_metrics(workdir / "metrics.csv")
    result = read_result(folder, run.id)
    curves = {}
    if result is None or difference(result["settings"], settings):
        result = {"settings": settings, "seeds": {}}
    else:
        curves = read_curves(folder / f"{run.id}.csv", result["seeds"])
    for i, seed in enumerate(seeds):
        suffix = f"/seed{i}" if len(seeds) > 1 else ""
        curves[seed] = thin(metrics, suffix)
        result["seeds"][str(seed)] = measure(metrics, suffix) | {
            "steps": int(metrics["step"][-1]),
            "seconds": round(wall_seconds(metrics), 1),
            "seeds_in_the_program": len(seeds),
            "command": "python -m experiments.run "
            + shlex.join(run_flags(run, seeds, Path("runs/reproduce", workdir.name))),
            "versions": versions(),
        }
    folder.mkdir(parents=True, exist_ok=True)
    write_curves(folder / f"{run.id}.csv", curves)
    plot_curves(
        folder / f"{run.id}.csv",
        folder / f"{run.id}.png",
        title=f"{settings['algo']['name']} {settings['env']['name']}",
        reference={
            f"{row.source.split(',')[0]}, {row.metric.replace('_', ' ')}": row.value
            for row in run.published
        },
    )
    write_atomically(folder / f"{run.id}.json", to_json(result).encode())
    return result


def versions() -> dict[str, str]:
    """Of Python, the machine's kind, and the packages that are there."""
    found = {"python": platform.python_version(), "platform": platform.system()}
    found["machine"] = platform.machine()
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def read_curves(path: Path, seeds: Sequence[str]) -> dict[int, Points]:
    """By seed and step, the training return and the evaluation."""
    metrics = read_metrics(path)
    return {
        int(seed): {
            int(step): (float(train), float(evaluation))
            for step, train, evaluation in zip(
                metrics["step"], *(metrics[f"{name}/seed{seed}"] for name in CURVES)
            )
        }
        for seed in seeds
    }


def write_curves(path: Path, curves: Mapping[int, Points]) -> None:
    """A metrics file with a column for each seed and, before them, their mean."""
    seeds = sorted(curves)
    names = [[name, *(f"{name}/seed{seed}" for seed in seeds)] for name in CURVES]
    lines = [",".join(["step", *names[0], *names[1]])]
    for step in sorted({step for points in curves.values() for step in points}):
        cells = [str(step)]
        for i in range(len(CURVES)):
            values = [curves[seed].get(step, (np.nan, np.nan))[i] for seed in seeds]
            known = [value for value in values if not np.isnan(value)]
            mean = float(np.mean(known)) if known else np.nan
            cells += ["" if np.isnan(x) else f"{x:.6g}" for x in (mean, *values)]
        lines.append(",".join(cells))
    write_atomically(path, ("\n".join(lines) + "\n").encode())
