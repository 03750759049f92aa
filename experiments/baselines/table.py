"""The table of our results beside the published ones, from the registry and the results alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.baselines.compare import Estimate, estimate, verdict
from experiments.baselines.registry import Baseline, Published
from experiments.baselines.results import difference

COLUMNS = ("run", "environment", "algorithm", "steps", "metric", "published", "source", "ours")
COLUMNS += ("verdict",)
BEGIN, END = "<!-- reproduce: begin -->", "<!-- reproduce: end -->"
WORDS = """\
Ours is the mean over seeds with its 95% Student t interval over the n seeds. *Below* and *above*:
the whole interval lies outside the published value ± spread (a standard deviation over what stands
beside it; none counts as 0); otherwise *within*. *Final evaluation*: mean return after the last
step, with the policy's most likely actions. *Training return*: mean return of the training episodes
in the last tenth of the steps. *Max evaluation*: the best evaluation during the run, of each seed.
Where the published number is of another version of the environment, that version stands beside it.
`python -m experiments.reproduce --only='^RUN$'` runs a row again; the name of a run leads to its
curves, beside which lie its numbers with the commands.
"""


def rows_of(
    run: Baseline, settings: Mapping[str, Any], result: Mapping[str, Any] | None
) -> list[list[str]]:
    """The cells of a run: a row for each published number, one row if there is none."""
    cells = [run.id, settings["env"]["name"], settings["algo"]["name"].upper()]
    changed = result and difference(result["settings"], settings)
    rows = []
    for published in run.published or (None,):
        metric = published.metric if published else "final_evaluation"
        ours, words = "-", "not run"
        if result:
            there = [result["seeds"].get(str(seed), {}).get(metric) for seed in range(run.seeds)]
            values = [value for value in there if value is not None]
            words = "not measured"
            if values:
                mine = estimate(values)
                ours, words = show(mine), judge(mine, published)
                words += f" ({mine.n} of {run.seeds} seeds)" if mine.n < run.seeds else ""
            if changed:
                words = f"stale: config changed, {changed}"
        rows.append(
            [
                *cells,
                count(settings["total_steps"]),
                metric.replace("_", " "),
                *describe(published, settings),
                ours,
                words,
            ]
        )
    return rows


def judge(ours: Estimate, published: Published | None) -> str:
    if published is None:
        return "not published"
    found = verdict(ours, published.value, published.spread)
    return f"below: {published.cause}" if found == "below" and published.cause else found


def describe(published: Published | None, settings: Mapping[str, Any]) -> tuple[str, str]:
    """The published number and where it stands; environment and steps where they are others."""
    if published is None:
        return "-", "-"
    text = f"{published.value:.1f}"
    if published.spread is not None:
        text += f" ± {published.spread:.1f} over {published.spread_over}"
    if published.env != settings["env"]["name"]:
        text += f", {published.env}"
    if published.steps != settings["total_steps"]:
        text += f", {count(published.steps)} steps"
    return text, f"{published.source} ({published.note})" if published.note else published.source


def show(ours: Estimate) -> str:
    half = "" if ours.half_width is None else f" ± {ours.half_width:.1f}"
    return f"{ours.mean:.1f}{half} (n={ours.n})"


def count(steps: int) -> str:
    """1M for a million, 20k for 20,000; other numbers in full.

    >>> count(1_000_000), count(1_500_000), count(20_000), count(100)
    ('1M', '1500k', '20k', '100')
    """
    for unit, letter in ((1_000_000, "M"), (1000, "k")):
        if steps % unit == 0:
            return f"{steps // unit}{letter}"
    return str(steps)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned, so that it reads on a terminal too."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (COLUMNS, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    cells.insert(1, ["-" * width for width in widths])
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |" for row in cells]
    return "\n".join(lines) + "\n"


def with_table(readme: str, rows: Sequence[Sequence[str]], pictures: str) -> str:
    """The README's text with everything between its two marks replaced by words and table.

    Args:
      readme: the text; it has each of BEGIN and END once, in this order.
      rows: of all runs; the name of a run that has a result becomes a link to its curves.
      pictures: the folder of the results, from the README.

    Raises:
      ValueError: the marks are not there so.
    """
    if (readme.count(BEGIN), readme.count(END)) != (1, 1) or readme.index(BEGIN) > readme.index(
        END
    ):
        raise ValueError(f"the README must have a line {BEGIN} and, below it, a line {END}")
    head, tail = readme.split(BEGIN)[0], readme.split(END)[1]
    linked = [
        row if row[-2] == "-" else [f"[{row[0]}]({pictures}/{row[0]}.png)", *row[1:]]
        for row in rows
    ]
    return f"{head}{BEGIN}\n{WORDS}\n{markdown(linked)}{END}{tail}"
