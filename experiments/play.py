"""Renders an episode of a trained policy as a GIF.

python -m experiments.play --workdir=runs/cartpole [--out=FILE.gif]
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.run import fail
from experiments.screen import lenient

if TYPE_CHECKING:
    import numpy as np

    from rljax.envs.render import Stage
    from rljax.types import Algo, OffPolicyAlgo

USAGE = (
    "usage: python -m experiments.play --workdir=DIR [--out=FILE.gif] [--seed=N] [--sample] "
    "[--checkpoint=latest|best|STEP] [--seed-index=N]"
)


class Options(NamedTuple):
    workdir: Path
    out: Path
    seed: int  # of the episode
    seed_index: int  # which of the runs in a workdir with num_seeds > 1
    which: Any  # checkpoint: "latest", "best" or a step
    sample: bool  # actions as in training, not the most likely ones


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns its exit code, as that of `experiments.run`."""
    from experiments.cli import HelpWanted

    try:
        return play(parse(argv))
    except HelpWanted:
        print(USAGE)
        return 0
    except ValueError as error:
        return fail(error, 2)
    except (OSError, MemoryError, RuntimeError) as error:  # JaxRuntimeError is one
        return fail(error, 1)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def parse(argv: Sequence[str]) -> Options:
    """What the command line asks for; the workdir and the place of the file have been looked at.

    Raises:
      ValueError: for what is not allowed; HelpWanted for --help.
    """
    from absl import flags

    from experiments.cli import UsageError, check_help, parse_flags

    check_help(argv)
    values = flags.FlagValues()
    for name, default in (("workdir", None), ("out", None), ("checkpoint", "latest")):
        flags.DEFINE_string(name, default, "", flag_values=values)
    for name in ("seed", "seed-index"):
        flags.DEFINE_integer(name, 0, "", 0, 2**32 - 1, flag_values=values)
    flags.DEFINE_bool("sample", False, "", flag_values=values)
    given = parse_flags(values, argv, USAGE)
    if not given["workdir"]:
        raise UsageError(f"--workdir is missing; {USAGE}")
    workdir = Path(given["workdir"])
    if not (workdir / "config.json").is_file():
        raise UsageError(f"{workdir} is not the workdir of a run: it has no config.json")
    which = given["checkpoint"]
    if which not in ("latest", "best"):
        if not which.isdecimal():
            raise UsageError(f"--checkpoint is {which!r}: allowed are latest, best or a step")
        which = int(which)
    out = Path(given["out"] or workdir / "episode.gif")
    check_out(out)
    return Options(workdir, out, given["seed"], given["seed-index"], which, given["sample"])


def check_out(out: Path) -> None:
    """Raises unless a GIF can be written there."""
    folder = out.parent
    if out.suffix.lower() != ".gif":
        raise ValueError(f"--out is {out}: it must end with .gif")
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = "it is a folder" if out.is_dir() else f"folder {folder} cannot be written"
        raise ValueError(f"--out is {out}: {reason}")


def play(options: Options) -> int:
    from experiments.build import build
    from rljax.runtime.files import write_atomically
    from rljax.runtime.film import record, to_gif

    config = read_config(options.workdir / "config.json")
    check_checkpoint(options)
    if options.seed_index >= config.num_seeds:
        raise ValueError(
            f"--seed-index is {options.seed_index}: config.num_seeds is {config.num_seeds}"
        )
    stage = make_stage(config)  # first: how MuJoCo may draw is settled when it is imported
    built = build(config)
    act = make_policy(options, config.num_seeds, built.algo, built.loop.template)
    film, (total, length) = record(
        stage.picture, episode(stage, act, options.seed), frame_rate=stage.frame_rate
    )
    stage.close()
    write_atomically(options.out, to_gif(film, frame_rate=stage.frame_rate))
    print(f"episode return={total!r} length={length} -> {options.out}")
    return 0


def read_config(file: Path) -> Any:
    """The config of a run, for one device; lists are tuples again, as they were in the config."""
    from ml_collections import ConfigDict

    def tuples(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: tuples(x) for name, x in value.items()}
        return tuple(value) if isinstance(value, list) else value

    try:
        config: Any = ConfigDict(tuples(json.loads(file.read_bytes())))
        config.num_devices = 1
        if {"num_seeds", "env"} <= {*config} and {"name", "backend", "actions"} <= {*config.env}:
            return config
        raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{file} is not the config of a run") from None


def check_checkpoint(options: Options) -> None:
    """Raises unless there is the checkpoint asked for."""
    from rljax.runtime.checkpoint import list_steps

    folder = options.workdir / "checkpoints"
    steps = list_steps(folder)
    if not steps:
        raise ValueError(f"no checkpoint in {folder}")
    if isinstance(options.which, int) and options.which not in steps:
        allowed = ", ".join(map(str, steps))
        raise ValueError(f"--checkpoint is {options.which}: {folder} has {allowed}")


def make_stage(config: Any) -> "Stage":
    from experiments.build import make_jax_env, transform_host
    from rljax.envs.render import gymnasium_stage, jax_stage

    if config.env.backend == "jax":
        return jax_stage(make_jax_env(config))
    return gymnasium_stage(config.env.name, partial(transform_host, config))


def make_policy(
    options: Options, num_seeds: int, algo: "Algo | OffPolicyAlgo", template: Any
) -> Callable[[int, "np.ndarray"], "np.ndarray"]:
    """Step of the episode and observation [1, ...] to action, by the parameters that were saved."""
    import jax
    import numpy as np

    from experiments.train import warn
    from rljax.runtime.checkpoint import Checkpoints
    from rljax.types import OffPolicyAlgo

    with Checkpoints(options.workdir / "checkpoints", warn=warn) as checkpoints:
        saved = checkpoints.restore(template, which=options.which)
    if saved is None:  # deleted since
        raise ValueError(f"no checkpoint in {options.workdir / 'checkpoints'}")
    state = saved[0].algo
    if num_seeds > 1:
        state = jax.tree.map(lambda x: x[options.seed_index], state)
    key = jax.random.fold_in(jax.random.key(options.seed), 1)

    @jax.jit
    def act(state: Any, t: Any, observation: Any) -> Any:
        if options.sample:
            noise = algo.draw(jax.random.fold_in(key, t), (1,))
            if isinstance(algo, OffPolicyAlgo):
                late = jax.numpy.int32(2**31 - 1)  # exploring as at the end of training
                return algo.act(noise, algo.begin(1), state, observation, late)[0]
            return algo.act(noise, state, observation)[0]
        return algo.act_greedy(state, observation)

    return lambda t, observation: np.asarray(act(state, t, observation))


def episode(
    stage: "Stage", act: Callable[[int, "np.ndarray"], "np.ndarray"], seed: int
) -> Iterator[tuple[float, int]]:
    """Plays one; gives return and length so far, at its start and after each step."""
    observation, total = stage.reset(seed), 0.0
    yield total, 0
    for t in itertools.count():
        observation, reward, ended = stage.step(act(t, observation))
        total += reward
        yield total, t + 1
        if ended:
            return


if __name__ == "__main__":
    sys.stdout, sys.stderr = lenient(sys.stdout), lenient(sys.stderr)
    sys.exit(main(sys.argv))
