"""Contestants of a benchmark take turns: what a round is, and the best of several of each."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Round = Callable[[], float]  # does the work once and returns a rate


def measure(rounds: dict[Any, Round], number: int) -> dict[Any, float]:
    """The best of `number` rounds of each, in turns."""
    best = dict.fromkeys(rounds, 0.0)
    for _ in range(number):
        for name, round in rounds.items():
            best[name] = max(best[name], round())
    return best


def process_round(module: str, argv: Sequence[str], missing: str) -> Round:
    """Starts `python -m module argv`, which says "ready"; a round is one line to it and one back.

    Raises:
      RuntimeError: with the text `missing`, if it ends before.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stdin: Any = process.stdin
    stdout: Any = process.stdout
    while (line := stdout.readline()).strip() != "ready":
        if not line:
            raise RuntimeError(missing)

    def round() -> float:
        stdin.write("go\n")
        stdin.flush()
        return float(stdout.readline())

    return round


def matrix_round(size: int) -> Round:
    """A round is the rate, FLOP/s, of a chain of products [size, size] · [size, size]."""
    import jax
    import jax.numpy as jnp

    length = max(1, 4 * (1024 // size) ** 3)
    x = jnp.full((size, size), 1.0 / size)
    chain = jax.jit(lambda x, w: jax.lax.fori_loop(0, length, lambda _, y: y @ w, x))
    jax.block_until_ready(chain(x, x))

    def round() -> float:
        start = time.perf_counter()
        jax.block_until_ready(chain(x, x))
        return 2.0 * size**3 * length / (time.perf_counter() - start)

    return round


def memory_round(megabytes: int = 512) -> Round:
    """A round is the rate, bytes/s, at which all cores together read an array once."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones((megabytes, 2**18), jnp.float32)
    total = jax.jit(jnp.sum)
    jax.block_until_ready(total(x))

    def round() -> float:
        start = time.perf_counter()
        jax.block_until_ready(total(x))
        return x.nbytes / (time.perf_counter() - start)

    return round
