"""Ctrl-C and SIGTERM as a flag that the training loop looks at between steps."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


class Interrupt:
    """`signal` is None, or the number of the first signal that came."""

    def __init__(self):
        self.signal: int | None = None


@contextlib.contextmanager
def catch_signals() -> Iterator[Interrupt]:
    """Turns the first SIGINT or SIGTERM into a flag, so that the loop can save and leave.

    A second SIGINT raises KeyboardInterrupt; a second SIGTERM ends the process at once with exit
    code 143. Outside the main thread, where Python allows no handlers, the flag stays None.

    Returns:
      A context manager that gives an `Interrupt`. The handlers of before are back at its end.

    >>> with catch_signals() as interrupt:
    ...     signal.raise_signal(signal.SIGTERM)
    >>> interrupt.signal == signal.SIGTERM
    True
    """
    interrupt = Interrupt()
    seen: set[int] = set()

    def handle(number: int, frame: object) -> None:
        if number in seen:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            os._exit(128 + number)
        seen.add(number)
        interrupt.signal = interrupt.signal or number

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            # None: a handler that was not set from Python and that Python cannot set again.
            before[number] = signal.signal(number, handle) or signal.SIG_DFL
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
