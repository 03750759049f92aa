"""From the metrics of a chunk of updates to one row of the metrics file."""

from collections.abc import Callable, Sequence

import numpy as np

EPISODE_METRICS = ("episode/return_mean", "episode/length_mean", "episode/count")


class NotFinite(ArithmeticError):
    """A loss, a gradient or a parameter has become NaN or inf."""


def chunk_means(rows: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """[n, S] rows of n updates to [S] means; of episodes, over those that ended (NaN if none)."""
    values = {name: rows[name].mean(0, dtype=np.float64) for name in names}
    sums = {
        name: rows[f"episode/{name}"].sum(0, dtype=np.float64)
        for name in ("count", "return_sum", "length_sum")
    }
    with np.errstate(invalid="ignore"):
        values["episode/return_mean"] = sums["return_sum"] / sums["count"]
        values["episode/length_mean"] = sums["length_sum"] / sums["count"]
    return values | {"episode/count": sums["count"]}


def over_seeds(values: dict[str, np.ndarray]) -> dict[str, float | None]:
    """Each metric's mean over the seeds and, if there are several, the value of each beside it.

    None stands for a mean over no episode.
    """
    row = {}
    for name, by_seed in values.items():
        known = by_seed[~np.isnan(by_seed)]
        row[name] = float(known.mean()) if known.size else None
        if len(by_seed) > 1:
            for s, value in enumerate(by_seed):
                row[f"{name}/seed{s}"] = None if np.isnan(value) else float(value)
    return row


def check_rows(
    rows: dict[str, np.ndarray],
    update: int,
    steps: Callable[[int], int],
    newest: Callable[[], str],
) -> None:
    """Raises NotFinite at the first update whose loss or gradient is NaN or inf.

    Args:
      rows: [n, S] metrics of n updates of S seeds.
      update: updates done before them.
      steps: number of updates -> environment steps done by then.
      newest: names the last good checkpoint.
    """
    bad = [
        (*np.argwhere(~np.isfinite(x))[0], name)
        for name, x in rows.items()
        if not np.isfinite(x).all()
    ]
    if bad:
        i, seed, name = min(bad)
        raise NotFinite(
            f"{name} is {rows[name][i, seed]} at step {steps(update + i + 1)} "
            f"(update {update + i}, seed index {seed}); last good: {newest()}"
        )
