"""Trains, evaluates, checkpoints and draws one run; the same command continues it where it stopped.

python -m experiments.run --config=experiments/configs/ppo_cartpole.py --workdir=runs/cartpole
"""

import shlex
import signal
import sys
from collections.abc import Sequence

from experiments.screen import lenient


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns its exit code.

    0 done; 1 failed while running; 2 a config, flag or file is wrong, before anything is compiled
    or written; 130 after Ctrl-C, 143 after SIGTERM, both with everything saved.
    """
    try:
        return run(argv)
    except KeyboardInterrupt as stop:  # before or after the training, which saves what it has
        print(f"stopped; to continue: python -m experiments.run {shlex.join(argv[1:])}")
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)


def run(argv: Sequence[str]) -> int:
    """The same, but for a KeyboardInterrupt. Imports late: a wrong flag need not wait for jax."""
    from experiments.cli import USAGE, HelpWanted, parse

    try:
        config, path = parse(argv)
    except HelpWanted:
        print(USAGE)
        return 0
    except ValueError as error:
        return fail(error, 2)

    from jax.errors import JaxRuntimeError

    from experiments.build import build
    from experiments.rows import NotFinite
    from experiments.train import train
    from rljax.runtime.interrupts import catch_signals
    from rljax.runtime.workdir import open_workdir

    try:
        built = build(config)
        # Signals are a flag from here on: an exception of theirs could get lost in somebody's code.
        with catch_signals() as signals, open_workdir(path, config.to_dict()) as workdir:
            return train(config, built, workdir.path, argv, signals)
    except ValueError as error:
        return fail(error, 2)
    except (NotFinite, OSError, MemoryError, JaxRuntimeError) as error:
        return fail(error, 1)


def fail(error: BaseException, code: int) -> int:
    from experiments.cli import one_line

    print(f"error: {one_line(error)}", file=sys.stderr, flush=True)
    return code


def terminate(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.stdout, sys.stderr = lenient(sys.stdout), lenient(sys.stderr)
    signal.signal(signal.SIGTERM, terminate)
    sys.exit(main(sys.argv))
