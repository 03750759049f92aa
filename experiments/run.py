"""Trains, evaluates, checkpoints and draws one run; the same command continues it where it stopped.

python -m experiments.run --config=experiments/configs/ppo_cartpole.py --workdir=runs/cartpole
"""

import sys
from collections.abc import Sequence

from experiments.cli import one_line, parse


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns its exit code.

    0 done; 1 failed while running; 2 a config, flag or file is wrong, before anything is compiled
    or written; 130 after Ctrl-C, 143 after SIGTERM, both with everything saved.
    """
    try:
        config, path = parse(argv)
        from experiments.build import (
            build,
        )  # jax is imported here: wrong flags need not wait for it
        from experiments.rows import NotFinite
        from experiments.train import train
        from rljax.runtime.workdir import open_workdir
    except ValueError as error:
        return fail(error, 2)
    try:
        run = build(config)
        with open_workdir(path, config.to_dict()) as workdir:
            return train(config, run, workdir.path, argv)
    except ValueError as error:
        return fail(error, 2)
    except (NotFinite, OSError) as error:
        return fail(error, 1)
    except KeyboardInterrupt:
        return fail(KeyboardInterrupt("interrupted before anything was saved"), 130)


def fail(error: BaseException, code: int) -> int:
    print(f"error: {one_line(error)}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv))
