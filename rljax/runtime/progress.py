"""Progress on the screen: a live display on a terminal, a line now and then elsewhere."""

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

Stream = TextIO | io.TextIOBase

_SECONDS_BETWEEN_LINES = 5.0
_SHOWN = {  # the metrics that are shown where they exist, and their names on the screen
    "episode/return_mean": "return",
    "reward/mean": "reward",
    "eval/return_mean": "eval return",
    "eval/reward_mean": "eval reward",
}


class Progress:
    """How far a run is, how fast, and what it measured last; made by `progress_display`."""

    def __init__(
        self,
        total_steps: int,
        initial_step: int,
        show: Callable[["Progress"], None],
        log: Callable[[str], None],
    ):
        self.step, self.total_steps = initial_step, total_steps
        self.steps_per_second: float | None = None
        self.log = log
        self._show = show
        self._values: dict[str, float] = {}
        self._start = (initial_step, time.monotonic())
        self._updates = 0

    def update(self, step: int, values: Mapping[str, Any]) -> None:
        """Tells how many steps are done and what was measured; a value stays until replaced."""
        now = time.monotonic()
        first_step, began = self._start
        self.step = step
        if step > first_step and now > began:
            self.steps_per_second = (step - first_step) / (now - began)
        if self._updates == 0:  # what came before it was mostly compilation
            self._start = (step, now)
        self._updates += 1
        for name in _SHOWN:
            value = values.get(name)
            if value is not None and (number := float(value)) == number:
                self._values[name] = number
        self._show(self)

    @property
    def seconds_left(self) -> float | None:
        """From the speed of this process alone; None before there is one."""
        if self.step >= self.total_steps:
            return 0.0
        if not self.steps_per_second:
            return None
        return (self.total_steps - self.step) / self.steps_per_second

    @property
    def place(self) -> str:
        """Steps done, of all, and the time left."""
        share = 100 * self.step // self.total_steps if self.total_steps else 100
        left = _duration(self.seconds_left)
        return f"{share:3d}%  {self.step:,}/{self.total_steps:,} steps  {left} left"

    @property
    def measured(self) -> str:
        """Speed, and the last value of each metric that is shown."""
        parts = [
            f"{label} {self._values[k]:.4g}" for k, label in _SHOWN.items() if k in self._values
        ]
        if self.steps_per_second is not None:
            parts.insert(0, f"{self.steps_per_second:,.0f} steps/s")
        return "  ".join(parts)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "--:--"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


@contextlib.contextmanager
def progress_display(
    total_steps: int, *, initial_step: int = 0, title: str, stream: Stream | None = None
) -> Iterator[Progress]:
    """Shows how a run gets on: a bar on a terminal, elsewhere a line every few seconds at most.

    Speed and time left count the steps of this process, not those before a resume, and leave out
    the first update once there is a second, since it waits for the compiler. The last update is
    always shown.

    Args:
      total_steps: steps of the whole run.
      initial_step: steps that an earlier process did.
      title: stands in front.
      stream: where to; None is standard output.

    Returns:
      A context manager that gives a `Progress` with `update(step, values)` and `log(line)`, which
      prints a line that stays.

    >>> with progress_display(100, initial_step=40, title="ppo", stream=sys.stdout) as progress:
    ...     progress.log("resumed at step 40")
    resumed at step 40
    """
    target = sys.stdout if stream is None else stream
    live = target.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    with (_live if live else _lines)(title, target) as (show, log):
        yield Progress(total_steps, initial_step, show, log)


@contextlib.contextmanager
def _lines(title: str, stream: Stream) -> Iterator[tuple[Callable, Callable]]:
    printed_at, waiting = -float("inf"), None

    def log(line: str) -> None:
        print(line, file=stream, flush=True)

    def show(progress: Progress) -> None:
        nonlocal printed_at, waiting
        waiting = f"{title}  {progress.place}  {progress.measured}".rstrip()
        if time.monotonic() - printed_at >= _SECONDS_BETWEEN_LINES:
            log(waiting)
            printed_at, waiting = time.monotonic(), None

    try:
        yield show, log
    finally:
        if waiting is not None:
            log(waiting)


@contextlib.contextmanager
def _live(title: str, stream: Stream) -> Iterator[tuple[Callable, Callable]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    latest: Progress | None = None

    def render() -> Group:
        # Drawn by rich's thread between updates: it reads numbers that are whole at any time.
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        if latest is None:
            row.add_row(Text(title, "bold"), ProgressBar(pulse=True), Text("compiling"))
            return Group(row)
        bar = ProgressBar(max(latest.total_steps, 1), min(latest.step, latest.total_steps))
        row.add_row(Text(title, "bold"), bar, Text(latest.place, "cyan"))
        return Group(row, Text(latest.measured, "green", no_wrap=True, overflow="ellipsis"))

    def show(progress: Progress) -> None:
        nonlocal latest
        latest = progress

    file: Any = stream
    console = Console(file=file, force_terminal=True)

    def log(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with Live(console=console, get_renderable=render, refresh_per_second=4):
        yield show, log
