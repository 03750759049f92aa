"""Curves of a run as one PNG."""

import io
import os
import re
from collections.abc import Mapping
from typing import Any, SupportsFloat

import numpy as np

from rljax.runtime.files import write_atomically
from rljax.runtime.metrics import read_metrics

_MAIN = {
    "episode/return_mean": ("train", "return"),
    "eval/return_mean": ("evaluation", "return"),
    "reward/mean": ("train", "reward"),
    "eval/reward_mean": ("evaluation", "reward"),
}
_COLOURS = {"train": "#4477aa", "evaluation": "#cc6633"}
_SMALL = (  # in this order, the first six that were measured
    r"loss/policy",
    r"loss/value",
    r"policy/entropy",
    r"policy/behaviour_kl",
    r"value/explained_variance",
    r"loss/.*",
    r".*kl.*",
    r".*entropy.*",
    r"grad/norm",
)
_MAX_SMALL = 6


def _curve(metrics: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] and values [N, S] of a metric: its seeds where they are apart, else S = 1."""
    seeds = [key for key in metrics if re.fullmatch(re.escape(name) + r"/seed\d+", key)]
    values = np.stack([metrics[key] for key in seeds or [name]], axis=-1)
    values = np.where(np.isfinite(values), values, np.nan)
    measured = ~np.all(np.isnan(values), axis=-1)
    return metrics["step"][measured], values[measured]


def _draw(
    axes: Any,
    curve: tuple[np.ndarray, np.ndarray],
    colour: str,
    *,
    label: str | None = None,
    width: float = 1.6,
) -> None:
    steps, values = curve
    many = values.shape[1] > 1
    if many:
        low, high = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    if label is not None and many:
        label = f"{label}, mean and range of {values.shape[1]} seeds"
    # A lone point has no line; a few points are worth seeing as such.
    marker = "o" if len(steps) <= 30 else None
    mean = np.nanmean(values, axis=1)
    axes.plot(steps, mean, color=colour, label=label, marker=marker, markersize=3, linewidth=width)


def _small_names(metrics: Mapping[str, np.ndarray]) -> list[str]:
    names = [name for name in metrics if name not in _MAIN and not re.search(r"/seed\d+$", name)]
    names = [name for name in names if not name.startswith(("step", "time/", "eval/", "episode/"))]
    matches = [name for pattern in _SMALL for name in names if re.fullmatch(pattern, name)]
    measured = [name for name in dict.fromkeys(matches) if len(_curve(metrics, name)[0])]
    return measured[:_MAX_SMALL]


def plot_curves(
    metrics_csv: str | os.PathLike,
    png: str | os.PathLike,
    *,
    title: str,
    reference: SupportsFloat | Mapping[str, SupportsFloat] | None = None,
) -> None:
    """Draws the return over steps, in training and evaluation, above small panels of the losses.

    Where a metric `NAME` has columns `NAME/seed0`, `NAME/seed1` ..., the line is their mean and the
    band reaches from the lowest to the highest.

    Args:
      metrics_csv: written by `MetricsWriter`; it may hold any number of rows.
      png: the picture, replaced at one stroke.
      title: above it.
      reference: a return, or returns by label, drawn as dashed lines.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "metrics.csv").write_text("step,eval/return_mean\\n100,9.5\\n")
    >>> plot_curves(folder / "metrics.csv", folder / "curves.png", title="ppo", reference=500)
    >>> (folder / "curves.png").exists()
    True
    """
    # Matplotlib takes most of a second to import, and a run plots at its end only. Its figures
    # are used without pyplot, which would keep them and may look for a screen.
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    metrics = read_metrics(metrics_csv)
    small = _small_names(metrics)
    columns = {1: 1, 2: 2, 4: 2}.get(len(small), 3)
    rows = -(-len(small) // columns)
    figure = Figure(figsize=(9, 4.2 + 1.9 * rows), dpi=120, layout="constrained")
    grid = figure.add_gridspec(1 + rows, columns, height_ratios=[4.2] + [1.9] * rows)
    last_step = max(metrics["step"], default=1)

    def panel(place: Any) -> Any:
        axes = figure.add_subplot(place)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlim(-0.02 * last_step, 1.02 * max(last_step, 1))
        return axes

    main = panel(grid[0, :])
    main.set_title(title, loc="left", fontweight="bold", parse_math=False)
    main.set_xlabel("steps")
    units = []
    for name, (label, unit) in _MAIN.items():
        if name in metrics:
            curve = _curve(metrics, name)
            if len(curve[0]):
                _draw(main, curve, _COLOURS[label], label=label)
                units.append(unit)
    main.set_ylabel(" / ".join(dict.fromkeys(units)) or "return")
    if not units:
        main.text(0.5, 0.5, "nothing measured yet", transform=main.transAxes, ha="center")
    if reference is not None:
        lines = reference if isinstance(reference, Mapping) else {"reference": reference}
        for value in lines.values():
            main.axhline(float(value), color="0.35", linestyle="--", linewidth=1)
        low, high = main.get_ylim()
        place = low
        for label, value in sorted(lines.items(), key=lambda line: float(line[1])):
            place = max(float(value), place)  # above the label of a line close below
            main.annotate(
                f"{label} {float(value):g}",
                (1, place),
                xycoords=("axes fraction", "data"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color="0.35",
            )
            place += 0.045 * (high - low)
    if main.get_legend_handles_labels()[0]:
        main.legend(frameon=False, loc="best")

    for i, name in enumerate(small):
        axes = panel(grid[1 + i // columns, i % columns])
        _draw(axes, _curve(metrics, name), "#556677", width=1.0)
        axes.set_title(name, loc="left", fontsize=9, parse_math=False)
        axes.tick_params(labelsize=8)

    save_figure(figure, png)


def save_figure(figure: Any, png: str | os.PathLike) -> None:
    """Writes a Matplotlib figure as PNG, replacing the file at one stroke."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomically(png, picture.getvalue())
