"""Updates per second of SAC beside SBX and Stable-Baselines3, and what a sample costs.

python -m experiments.bench.off_policy --out=runs/bench

One environment step to each update, batches of 256, two 256-wide layers, on Pendulum (ours is the
pure-JAX one) and on HalfCheetah (Gymnasium's for all). The peers (extra `bench`) run in processes
of their own, started by this one; rounds take turns, and the best of each counts. The limit is the
float32 matrix rate over the multiplications of an update, measured in the same turns: once with
products of the update's own size, once with large ones. Writes off_policy.json and off_policy.png.
Close other programs first.
"""

import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments.bench.rounds import Round, matrix_round, measure, process_round
from experiments.cli import one_line
from experiments.run import fail
from rljax.runtime.files import to_json, write_atomically
from rljax.runtime.plots import save_figure

BATCH, HIDDEN, WARMUP = 256, (256, 256), 300
MIN_SECONDS = 2.0  # of one timed round
TASKS = {"Pendulum-v1": "sac_pendulum", "HalfCheetah-v5": "sac_halfcheetah"}
PEERS = {"sbx": "SBX", "sb3": "Stable-Baselines3"}
SIZES = {  # of an observation and of an action
    "Pendulum-v1": (3, 1),
    "HalfCheetah-v5": (17, 6),
}


def flop_of(observation: int, action: int) -> float:
    """Multiplications and additions in the matrix products of an update.

    A net's forward pass costs 2·N·Σ in·out; its gradient by the parameters as much again, that by
    the inputs as much but for the first layer. The actor is run on both observations and learns;
    twin critics are run by targets, learn, and are differentiated by their actions for the actor.
    """

    def layers(first: int, last: int) -> tuple[float, float]:
        sizes = [first, *HIDDEN, last]
        costs = [2.0 * BATCH * a * b for a, b in itertools.pairwise(sizes)]
        return sum(costs), sum(costs[1:])

    actor, actor_inner = layers(observation, 2 * action)
    critic, critic_inner = layers(observation + action, 1)
    by_action = 2.0 * BATCH * HIDDEN[0] * action
    learning = 2 * critic + critic_inner
    return (
        actor  # next actions
        + 2 * critic  # target critics
        + 2 * learning
        + 2 * actor
        + actor_inner
        + 2 * (critic + critic_inner + by_action)
    )


def rljax_round(task: str) -> Round:
    """Builds and compiles; a round is one call of `advance`."""
    from experiments.build import build
    from experiments.cli import load_config

    config: Any = load_config(f"experiments/configs/{TASKS[task]}.py")
    config.net.hidden_sizes, config.replay.batch_size = HIDDEN, BATCH
    config.replay.warmup_steps, config.replay.capacity = WARMUP, 100_000
    config.total_steps, config.log_interval = 10**6, 1000
    config.eval_interval = config.checkpoint_interval = 1000
    config.eval_episodes = 1
    loop = build(config).loop
    memory: dict[str, Any] = {"state": loop.init()}

    def train(num_updates: int) -> float:
        start = time.perf_counter()
        memory["state"], _ = loop.advance(memory["state"], num_updates)
        return time.perf_counter() - start

    train(1)
    num_updates = min(1000, max(50, round(100 * MIN_SECONDS / train(100))))
    return lambda: num_updates / train(num_updates)


def peer_round(peer: str, task: str) -> Round:
    missing = f'{PEERS[peer]} does not run: pip install "rljax[bench]"'
    return process_round("experiments.bench.sac_peers", [peer, task], missing)


def table(task: str, rates: dict[str, float]) -> str:
    """Ours, the ratios to the peers, and the share of both limits."""
    ours = rates["rljax"]
    flop = flop_of(*SIZES[task])
    lines = [f"{task}: {flop / 1e6:.0f} MFLOP per update", f"  {'rljax':24}{ours:8.1f} updates/s"]
    for name in PEERS:
        if name in rates:
            lines.append(
                f"  {PEERS[name]:24}{rates[name]:8.1f} updates/s   ours {ours / rates[name]:.2f} x"
            )
    for name in ("limit, own size", "limit, large"):
        limit = rates[name] / flop
        lines.append(f"  {name:24}{limit:8.1f} updates/s   ours {ours / limit:.2f} of it")
    return "\n".join(lines)


def plot(speeds: dict[str, dict[str, float]], samples: dict[str, dict[int, float]], png: Path):
    """Bars of updates per second by task; the cost of a sample over the size of the replay."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), dpi=120, layout="constrained")
    speed, cost = figure.subplots(1, 2)
    names = {"rljax": "rljax", **PEERS}
    for i, (name, label) in enumerate(names.items()):
        values = [rates.get(name, 0.0) for rates in speeds.values()]
        speed.bar([t + 0.27 * (i - 1) for t in range(len(speeds))], values, 0.25, label=label)
    speed.set_xticks(range(len(speeds)), labels=[*speeds])
    speed.set_ylabel("SAC updates per second")
    speed.legend(frameon=False)
    for kind, seconds in samples.items():
        cost.loglog([*seconds], [1e6 * s for s in seconds.values()], "-o", label=kind)
    cost.set_ylim(bottom=1)
    cost.set_xlabel("transitions in the replay")
    cost.set_ylabel("microseconds to add a step and sample 256")
    cost.legend(frameon=False)
    for axes in (speed, cost):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, png)


def main(argv: Sequence[str]) -> int:
    from experiments.bench import replay

    values = flags.FlagValues()
    flags.DEFINE_string("out", "runs/bench", "", flag_values=values)
    flags.DEFINE_multi_enum("task", [*TASKS], [*TASKS], "", flag_values=values)
    flags.DEFINE_integer("rounds", 5, "", lower_bound=1, flag_values=values)
    flags.DEFINE_boolean("peers", True, "", flag_values=values)
    try:
        values(list(argv))
    except flags.Error as error:
        allowed = f"--out, --task={{{','.join(TASKS)}}}, --rounds, --nopeers"
        return fail(ValueError(f"{one_line(error)}; allowed are {allowed}"), 2)
    given = values.flag_values_dict()
    speeds: dict[str, dict[str, float]] = {}
    for task in given["task"]:
        rounds = {"rljax": rljax_round(task)}
        try:
            rounds |= {peer: peer_round(peer, task) for peer in PEERS if given["peers"]}
        except RuntimeError as error:
            return fail(error, 1)
        rounds |= {"limit, own size": matrix_round(256), "limit, large": matrix_round(2048)}
        speeds[task] = measure(rounds, given["rounds"])
        print(table(task, speeds[task]), flush=True)
    samples = {kind: replay.measure(kind) for kind in replay.KINDS}
    print(replay.table(samples), flush=True)
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    numbers = {"speed": speeds, "sample_seconds": samples}
    write_atomically(out / "off_policy.json", to_json(numbers).encode())
    plot(speeds, samples, out / "off_policy.png")
    print(f"written: {out / 'off_policy.json'}, {out / 'off_policy.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
