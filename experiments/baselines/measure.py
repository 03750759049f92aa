"""From the metrics file of a finished run to the numbers and the curve of each of its seeds."""

from collections.abc import Mapping

import numpy as np

MAX_ROWS = 200
LAST = 0.1  # share of the steps whose episodes make `training_return`

Points = dict[int, tuple[float, float]]  # by step: training return and evaluation, NaN for none


def measure(metrics: Mapping[str, np.ndarray], suffix: str = "") -> dict[str, float | None]:
    """Each kind of metric of one finished seed; None where nothing was measured.

    final_evaluation is the mean return of the evaluation after the last step, with the policy's
    most likely actions; max_evaluation the largest of the evaluations during the run;
    training_return the mean return of the training episodes that end in the last tenth of the
    steps.

    Args:
      metrics: of `read_metrics`.
      suffix: "/seed3" picks the columns of the fourth seed.
    """
    evaluations = metrics["eval/return_mean" + suffix]
    counts = metrics["episode/count" + suffix]
    late = (metrics["step"] > (1 - LAST) * metrics["step"][-1]) & (counts > 0)
    returns = metrics["episode/return_mean" + suffix][late]
    known = evaluations[~np.isnan(evaluations)]
    return {
        "final_evaluation": None if np.isnan(evaluations[-1]) else float(evaluations[-1]),
        "training_return": float(np.average(returns, weights=counts[late])) if late.any() else None,
        "max_evaluation": float(known.max()) if known.size else None,
    }


def thin(metrics: Mapping[str, np.ndarray], suffix: str = "") -> Points:
    """At most MAX_ROWS points of a seed's curves: step to training return and evaluation.

    A point stands for rows that follow each other: the mean over their episodes, their last
    evaluation, at their last step; NaN where there was none.
    """
    count = len(metrics["step"])
    points = {}
    for rows in np.array_split(np.arange(count), min(count, MAX_ROWS)):
        counts = metrics["episode/count" + suffix][rows]
        returns = metrics["episode/return_mean" + suffix][rows]
        evaluations = metrics["eval/return_mean" + suffix][rows]
        evaluations = evaluations[~np.isnan(evaluations)]
        ended = counts > 0
        points[int(metrics["step"][rows[-1]])] = (
            float(np.average(returns[ended], weights=counts[ended])) if ended.any() else np.nan,
            float(evaluations[-1]) if evaluations.size else np.nan,
        )
    return points


def wall_seconds(metrics: Mapping[str, np.ndarray]) -> float:
    """The seconds of all processes of a run: the clock begins anew with each of them."""
    seconds = metrics["time/seconds"]
    last = np.append(seconds[1:] < seconds[:-1], True)
    return float(seconds[last].sum())
