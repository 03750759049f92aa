"""Standard output and error that may go away: `| head`, a closed terminal, a full disk below a log.

What is worth keeping is in the workdir, so a run goes on without them.
"""

import io
import os
from typing import Any, TextIO


class _Lenient(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def lenient(stream: TextIO | None) -> TextIO:
    """The same stream, whose writes never fail; None, a closed one, becomes a sink."""
    if stream is None:
        return open(os.devnull, "w")
    return io.TextIOWrapper(
        io.BufferedWriter(_Lenient(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=bool(stream.line_buffering),
    )
