"""Environment steps per second of PPO on CartPole, over environments and seeds, beside SB3.

python -m experiments.bench.on_policy --out=runs/bench

Both train the same networks (two 64-wide tanh layers each for policy and value) on the same batches
(128 steps, 4 epochs of 4 minibatches). Stable-Baselines3 (extra `bench`) runs in a process of its
own, started by this one, with the training of the other standing still; rounds take turns, and the
best of each counts, so that a busy moment of the machine hits neither alone. Several seeds are
shared out over all devices, each core of a CPU being one. Writes on_policy.json and on_policy.png.
Close other programs first.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from experiments.bench.rounds import process_round
from experiments.build import offer_cpu_devices
from experiments.cli import one_line
from experiments.run import fail
from rljax.runtime.files import to_json, write_atomically
from rljax.runtime.plots import save_figure

UNROLL_LENGTH, EPOCHS, MINIBATCHES = 128, 4, 4
LONG_SECONDS = 15.0  # of a round that is not repeated
MIN_SECONDS = 1.0  # of one timed round; a round of the largest batches is one update and longer


class Point(NamedTuple):
    """What was measured; SB3 has one seed and compiles nothing."""

    name: str  # "rljax" or "sb3"
    num_envs: int
    num_seeds: int
    num_devices: int
    steps_per_second: float  # of all seeds together, the best round
    compile_seconds: float  # the first update, less what an update takes


class Contestant(NamedTuple):
    name: str
    num_envs: int
    num_seeds: int
    num_devices: int
    compile_seconds: float
    round: Callable[[], float]  # trains for about MIN_SECONDS -> steps per second


def rljax_contestant(num_envs: int, num_seeds: int) -> Contestant:
    """Builds and compiles; a round is one call of `advance`."""
    import jax

    from experiments.configs.ppo_cartpole import get_config
    from rljax import envs
    from rljax.algos import ppo
    from rljax.loops.on_policy import jax_loop

    config = get_config()
    config.algo.epochs, config.algo.minibatches = EPOCHS, MINIBATCHES
    env = envs.make("CartPole-v1")
    num_devices = max(n for n in range(1, jax.device_count() + 1) if num_seeds % n == 0)
    loop = jax_loop(
        env,
        ppo.make(config, env.spec, num_updates=10**6),
        num_envs=num_envs,
        unroll_length=UNROLL_LENGTH,
        max_updates=1000,
        eval_episodes=1,
        num_seeds=num_seeds,
        num_devices=num_devices,
    )
    memory: dict[str, Any] = {"state": loop.init()}

    def train(num_updates: int) -> float:
        start = time.perf_counter()
        memory["state"], _ = loop.advance(memory["state"], num_updates)
        return time.perf_counter() - start

    first = train(1)
    one = train(1)
    num_updates = min(1000, max(1, round(MIN_SECONDS / one)))
    steps = num_updates * loop.steps_per_update * num_seeds

    def rate() -> float:
        return steps / train(num_updates)

    return Contestant("rljax", num_envs, num_seeds, num_devices, first - one, rate)


def sb3_contestant(num_envs: int) -> Contestant:
    """Starts the other process; a round is one line to it and one back."""
    missing = 'Stable-Baselines3 does not run: pip install "rljax[bench]"'
    round = process_round("experiments.bench.sb3", [str(num_envs)], missing)
    return Contestant("sb3", num_envs, 1, 1, 0.0, round)


def measure(contestants: Sequence[Contestant], rounds: int) -> list[Point]:
    """`rounds` rounds of each, in turns; those that are long are not repeated."""
    best, long = [0.0] * len(contestants), [False] * len(contestants)
    for _ in range(rounds):
        for i, contestant in enumerate(contestants):
            if not long[i]:
                start = time.perf_counter()
                best[i] = max(best[i], contestant.round())
                long[i] = time.perf_counter() - start > LONG_SECONDS
    return [
        Point(c.name, c.num_envs, c.num_seeds, c.num_devices, rate, c.compile_seconds)
        for c, rate in zip(contestants, best)
    ]


def table(points: Sequence[Point]) -> str:
    """One line for each point of ours: speed, compilation, and the ratios."""
    sb3 = {p.num_envs: p.steps_per_second for p in points if p.name == "sb3"}
    ours = [p for p in points if p.name == "rljax"]
    single = {p.num_envs: p.steps_per_second for p in ours if p.num_seeds == 1}
    lines = ["  envs  seeds devices    steps/s  compile s  x SB3 (steps/s)  x one seed"]
    for p in ours:
        peer = sb3.get(p.num_envs)
        ratio = f"{p.steps_per_second / peer:5.1f} ({peer:,.0f})" if peer else "-"
        seeds = p.steps_per_second / single[p.num_envs] if p.num_envs in single else float("nan")
        lines.append(
            f"{p.num_envs:6}{p.num_seeds:7}{p.num_devices:8}{p.steps_per_second:11,.0f}{p.compile_seconds:11.1f}"
            f"{ratio:>17}{seeds:12.2f}"
        )
    return "\n".join(lines)


def plot(points: Sequence[Point], png: Path) -> None:
    """Speed and the time of one update over the number of environments."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), dpi=120, layout="constrained")
    speed, cost = figure.subplots(1, 2)
    ticks = sorted({p.num_envs for p in points})
    for name, num_seeds in sorted({(p.name, p.num_seeds) for p in points}):
        line = sorted(p for p in points if (p.name, p.num_seeds) == (name, num_seeds))
        envs = [p.num_envs for p in line]
        label = (
            "Stable-Baselines3"
            if name == "sb3"
            else f"rljax, {num_seeds} seed{'s' if num_seeds > 1 else ''}"
        )
        style = "k--o" if name == "sb3" else "-o"
        speed.loglog(envs, [p.steps_per_second for p in line], style, label=label)
        batch = [UNROLL_LENGTH * p.num_envs * p.num_seeds / p.steps_per_second for p in line]
        cost.loglog(envs, batch, style, label=label)
    speed.set_ylabel("environment steps per second, all seeds")
    cost.set_ylabel("seconds per update, all seeds")
    for axes in (speed, cost):
        axes.set_xlabel("environments of each seed")
        axes.set_xticks(ticks, labels=map(str, ticks))
        axes.minorticks_off()
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    speed.legend(frameon=False)
    save_figure(figure, png)


def main(argv: Sequence[str]) -> int:
    values = flags.FlagValues()
    flags.DEFINE_string("out", "runs/bench", "", flag_values=values)
    flags.DEFINE_multi_integer("envs", [4, 64, 2048], "", lower_bound=1, flag_values=values)
    flags.DEFINE_multi_integer("seeds", [1, 8, 64], "", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("rounds", 5, "", lower_bound=1, flag_values=values)
    flags.DEFINE_boolean("sb3", True, "", flag_values=values)
    try:
        values(list(argv))
    except flags.Error as error:
        allowed = "--out, --envs, --seeds, --rounds, --nosb3"
        return fail(ValueError(f"{one_line(error)}; allowed are {allowed}"), 2)
    given = values.flag_values_dict()
    offer_cpu_devices(os.cpu_count() or 1)
    points: list[Point] = []
    for num_envs in given["envs"]:
        try:
            contestants = [sb3_contestant(num_envs)] if given["sb3"] else []
        except RuntimeError as error:
            return fail(error, 1)
        for num_seeds in given["seeds"]:
            print(f"compiling: {num_envs} environments, {num_seeds} seeds", flush=True)
            contestants.append(rljax_contestant(num_envs, num_seeds))
        points += measure(contestants, given["rounds"])
        print(table(points), flush=True)
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    rows = [point._asdict() for point in points]
    write_atomically(out / "on_policy.json", to_json(rows).encode())
    plot(points, out / "on_policy.png")
    print(f"written: {out / 'on_policy.json'}, {out / 'on_policy.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
