"""Our result against a published one: the interval over seeds, and the verdict."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit


class Estimate(NamedTuple):
    mean: float
    half_width: float | None  # None for one seed, which says nothing of the spread
    n: int


def estimate(values: Sequence[float]) -> Estimate:
    """Mean over seeds with its 95% Student t interval: mean ± t(0.975, n-1)·s/√n, s with ddof 1.

    Equal values give a half-width of 0.

    >>> round(estimate([1.0, 2.0, 3.0]).half_width, 2)  # t(0.975, 2)/√3 = 4.303/1.732
    2.48
    """
    x = np.asarray(values, np.float64)
    if len(x) < 2:
        return Estimate(float(x.mean()), None, len(x))
    half = stdtrit(len(x) - 1, 0.975) * x.std(ddof=1) / np.sqrt(len(x))
    return Estimate(float(x.mean()), float(half), len(x))


def verdict(ours: Estimate, value: float, spread: float | None) -> str:
    """`below`, `above` or `within`.

    With a published interval value ± spread: below if our whole 95% interval lies under
    value - spread, above if it lies over value + spread, else within. Without one the spread is 0:
    within means that our interval reaches the value. One seed has no interval and no verdict.

    >>> verdict(Estimate(90.0, 5.0, 10), 100.0, 10.0), verdict(Estimate(90.0, 5.0, 10), 100.0, None)
    ('within', 'below')
    """
    if ours.half_width is None:
        return "no interval"
    spread = spread or 0.0
    if ours.mean + ours.half_width < value - spread:
        return "below"
    if ours.mean - ours.half_width > value + spread:
        return "above"
    return "within"
