"""The progress display, on a terminal and off it."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import termios
import threading
import time

import pytest

from rljax.runtime.progress import Progress, progress_display


def plain(updates, **options):
    stream = io.StringIO()
    options = {"total_steps": 1000, "title": "ppo", "stream": stream, **options}
    with progress_display(**options) as progress:
        for step, values in updates:
            progress.update(step, values)
    return stream.getvalue().splitlines(), progress


def test_few_lines_and_always_the_last():
    lines, _ = plain((step, {"episode/return_mean": float(step)}) for step in range(1, 801))
    assert len(lines) == 2
    assert lines[0].startswith("ppo    0%  1/1,000 steps  ")
    assert "return 1" in lines[0]
    assert lines[1].startswith("ppo   80%  800/1,000 steps  ")
    assert lines[1].endswith("return 800")


def test_a_value_stays_until_it_is_replaced():
    updates = [
        (10, {"episode/return_mean": 1.0, "eval/return_mean": 500.0, "loss/policy": 9.9}),
        (20, {"episode/return_mean": 2.0, "eval/return_mean": None}),
        (30, {"episode/return_mean": float("nan")}),
    ]
    lines, _ = plain(updates)
    assert lines[-1].endswith("return 2  eval return 500")
    assert "9.9" not in lines[-1]


def test_no_update_and_an_error_on_the_way():
    assert plain([])[0] == []
    stream = io.StringIO()

    def interrupted():
        with progress_display(10, title="a2c", stream=stream) as progress:
            progress.update(1, {})
            progress.update(2, {})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().splitlines()[-1].startswith("a2c   20%  2/10 steps")


def test_logged_lines_stay():
    stream = io.StringIO()
    with progress_display(10, title="ppo", stream=stream) as progress:
        progress.log("saved [step 5] to /tmp/x")
    assert stream.getvalue() == "saved [step 5] to /tmp/x\n"


def test_speed_counts_the_steps_of_this_process_only():
    """9,000 steps were there before; 100 were made in at least 0.05 s, so at most 2,000 a second.

    900 are left, which is then at least 0.45 s. With the 9,000 the speed would be 180,000.
    """
    stream = io.StringIO()
    with progress_display(10_000, initial_step=9_000, title="ppo", stream=stream) as progress:
        assert progress.seconds_left is None
        progress.update(9_000, {})
        assert progress.steps_per_second is None
        time.sleep(0.05)
        progress.update(9_100, {})
    assert 0 < progress.steps_per_second <= 2000
    assert progress.seconds_left >= 0.45


def test_the_first_update_is_not_counted_once_there_is_a_second():
    """200 steps, the first 100 with 0.3 s of compilation and the others with none."""
    _, progress = plain([])
    time.sleep(0.3)
    progress.update(100, {})
    assert progress.steps_per_second <= 100 / 0.3
    progress.update(200, {})
    assert progress.steps_per_second > 200 / 0.3


def test_time_left_is_readable():
    progress = Progress(8000, 0, lambda _: None, print)
    progress.step, progress.steps_per_second = 1000, 2.0
    assert progress.place == " 12%  1,000/8,000 steps  58:20 left"  # 7000 / 2 = 3500 s
    progress.steps_per_second = 0.5
    assert progress.place.endswith("3:53:20 left")  # 14000 s = 3 h 53 min 20 s
    progress.step = 8000
    assert progress.place == "100%  8,000/8,000 steps  00:00 left"
    progress.step = 9000  # a whole last update may go beyond
    assert progress.place.endswith("00:00 left")
    assert Progress(0, 0, lambda _: None, print).place.startswith("100%")


def on_a_terminal(monkeypatch, run, columns=80):
    """What `run(stream)` writes to a real pseudo-terminal."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    written = bytearray()

    def read():  # while it is written: a terminal that nobody reads makes its writer wait
        with contextlib.suppress(OSError):  # the other end is closed
            while chunk := os.read(ours, 4096):
                written.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w") as stream:
        run(stream)
    reader.join()
    os.close(ours)
    return written.decode()


def test_a_live_display_on_a_terminal(monkeypatch):
    def run(stream):
        with progress_display(1000, title="ppo_cartpole", stream=stream) as progress:
            progress.update(100, {"episode/return_mean": 21.5})
            progress.log("saved [step 100]")
            progress.update(500, {"eval/return_mean": 499.0})

    written = on_a_terminal(monkeypatch, run)
    assert "\x1b[?25l" in written  # the cursor is hidden meanwhile
    assert written.rstrip().endswith("\x1b[?25h")  # and is back at the end
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r", "")
    assert "saved [step 100]\n" in text
    *_, last, measured, _ = text.split("\n")
    assert re.match(r"ppo_cartpole  ━+.* 50%  500/1,000 steps  \d\d:\d\d left", last)
    assert re.match(r"[\d,]+ steps/s  return 21.5  eval return 499$", measured)


def test_a_dumb_terminal_gets_lines(monkeypatch):
    def run(stream):
        monkeypatch.setenv("TERM", "dumb")
        with progress_display(10, title="ppo", stream=stream) as progress:
            progress.update(10, {})

    assert on_a_terminal(monkeypatch, run).startswith("ppo  100%  10/10 steps  00:00 left")
