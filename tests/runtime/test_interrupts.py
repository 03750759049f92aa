"""Signals become a flag; a second one gets through."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rljax.runtime.interrupts import catch_signals

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_flag_and_handlers_return(number):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with catch_signals() as interrupt:
        assert interrupt.signal is None
        signal.raise_signal(number)
        assert interrupt.signal == number
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_the_first_of_two_kinds_counts():
    with catch_signals() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert interrupt.signal == signal.SIGTERM


def test_a_second_ctrl_c_raises_and_handlers_return_all_the_same():
    before = signal.getsignal(signal.SIGINT)
    reached = []

    def press_twice():
        with catch_signals():
            signal.raise_signal(signal.SIGINT)
            reached.append(1)
            signal.raise_signal(signal.SIGINT)
            reached.append(2)

    with pytest.raises(KeyboardInterrupt):
        press_twice()
    assert reached == [1]
    assert signal.getsignal(signal.SIGINT) == before


def test_another_thread_gets_a_flag_that_stays_down():
    seen = []

    def run():
        with catch_signals() as interrupt:
            seen.append(interrupt.signal)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [None]


WAIT = """
import time
from rljax.runtime.interrupts import catch_signals

with catch_signals() as interrupt:
    print("ready", flush=True)
    while interrupt.signal is None:
        time.sleep(0.01)
    try:
        print("caught", interrupt.signal, flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "code", "rest"),
    [(signal.SIGINT, -signal.SIGINT, "cleaned up\n"), (signal.SIGTERM, 143, "")],
)
def test_a_second_signal_ends_a_process_that_hangs(number, code, rest):
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"caught {int(number)}\n"
        process.send_signal(number)
        assert process.stdout.read() == rest
    assert process.returncode == code
