"""Generated tokens per second beside transformers, and what limits them.

python -m experiments.bench.sampler [--model=DIR_OR_GGUF] [--out=runs/bench] [--rounds=3]
    [--nopeers] [--nogrowth]

SmolLM2-135M in float32 (fetched unless --model is given), drawn at temperature 1; nothing stops
before its last token. transformers (extra `bench`) runs in a process of its own; rounds take turns
and the best of each counts. The limits are measured in the same turns: the float32 matrix rate over
the multiplications of a token, and the rate of reading memory over the bytes of a step, which reads
every weight once. Then the rate as prompts, new tokens and groups grow; what a prefill costs by the
size of the group; and the time from the command line to the first token, with a warm cache of
compiled programs. Writes sampler.json and sampler.png. Close other programs first.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments.bench.rounds import Round, matrix_round, measure, memory_round, process_round
from experiments.bench.sampler_peers import Task
from experiments.cli import parse_flags
from experiments.run import fail
from rljax.runtime.files import to_json, write_atomically
from rljax.runtime.plots import save_figure

GROWTH = {
    "num_prompts": (1, 2, 4, 8),
    "group_size": (1, 2, 4, 8, 16),
    "new_tokens": (16, 64, 256),
}


def rljax_round(model: Any, task: Task, **settings: Any) -> Round:
    """A round is the generated tokens per second of one call."""
    import jax
    import numpy as np

    from rljax.llm.sampler import generate
    from rljax.nets.transformer import unstack

    cpu = jax.default_backend() == "cpu"
    params = jax.jit(unstack)(model.params) if cpu else model.params
    size = (task.num_prompts, task.prompt_length)
    prompts = np.random.default_rng(0).integers(0, model.net.config.vocab_size, size)

    def round() -> float:
        start = time.perf_counter()
        completions = generate(
            *(jax.random.key(0), model.net, params, prompts, np.ones(size)),
            group_size=task.group_size,
            max_new_tokens=task.new_tokens,
            stop_tokens=(),
            pad_token=0,
            **settings,
        )
        jax.block_until_ready(completions)
        return task.num_tokens / (time.perf_counter() - start)

    round()  # compiles
    return round


def first_token_seconds(model: Path) -> float:
    """From starting Python to the end of a completion of one token, the second time."""
    argv = [sys.executable, "-m", "experiments.generate", f"--model={model}", "--prompt=Hello"]
    for _ in range(2):
        start = time.perf_counter()
        subprocess.run([*argv, "--max_new_tokens=1"], check=True, capture_output=True)
    return time.perf_counter() - start


def per_token(config: Any) -> tuple[float, float]:
    """FLOP of a token's matrix products, and bytes of all weights in float32."""
    from rljax.nets.presets import num_params

    used = num_params(config)
    if not config.tie_embeddings:
        used -= config.vocab_size * config.model_size  # looked up, not multiplied
    return 2.0 * used, 4.0 * used


def table(task: Task, config: Any, rates: dict[str, float]) -> str:
    ours = rates["rljax"]
    flop, weights = per_token(config)
    rows = task.num_prompts * task.group_size
    limits = {
        "matrix limit": rates["matrix"] / flop,
        "memory limit": rates["memory"] / weights * rows,
    }
    lines = [
        f"{task.num_prompts} prompts of {task.prompt_length} tokens, groups of {task.group_size}, "
        f"{task.new_tokens} new tokens",
        f"  {'rljax':16}{ours:8.0f} tokens/s",
    ]
    if "transformers" in rates:
        peer = rates["transformers"]
        lines.append(f"  {'transformers':16}{peer:8.0f} tokens/s   ours {ours / peer:.2f} x")
    lines += [
        f"  {name:16}{limit:8.0f} tokens/s   ours {ours / limit:.2f} of it"
        for name, limit in limits.items()
    ]
    return "\n".join(lines)


def plot(rates: dict[str, float], growth: dict[str, dict[int, float]], png: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), dpi=120, layout="constrained")
    panels = figure.subplots(1, len(growth), sharey=True)
    for axes, (name, values) in zip(panels, growth.items()):
        axes.plot([*values], [*values.values()], "-o")
        if "transformers" in rates:
            axes.axhline(rates["transformers"], color="gray", ls="--", lw=1)
            axes.text(max(values), rates["transformers"], "transformers, 2 x 8 rows", ha="right",
                      va="bottom", fontsize=7, color="gray")  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks([*values], labels=[str(x) for x in values])
        axes.set_xlabel(name.replace("_", " "))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("generated tokens per second")
    save_figure(figure, png)


def main(argv: Sequence[str]) -> int:
    values = flags.FlagValues()
    flags.DEFINE_string("out", "runs/bench", "", flag_values=values)
    flags.DEFINE_string("model", None, "", flag_values=values)
    flags.DEFINE_integer("rounds", 3, "", lower_bound=1, flag_values=values)
    flags.DEFINE_boolean("peers", True, "", flag_values=values)
    flags.DEFINE_boolean("growth", True, "", flag_values=values)
    try:
        allowed = "--out, --model, --rounds, --nopeers, --nogrowth"
        given = parse_flags(values, argv, f"allowed are {allowed}")
    except ValueError as error:
        return fail(error, 2)

    from experiments.get_smollm import smollm_path
    from rljax.llm.load import load_language_model

    path = Path(given["model"]) if given["model"] else smollm_path()
    model, task = load_language_model(path), Task()
    rounds = {"rljax": rljax_round(model, task)}
    if given["peers"]:
        missing = 'transformers does not run: pip install "rljax[bench]"'
        argv = ["transformers", str(path)]
        try:
            rounds["transformers"] = process_round("experiments.bench.sampler_peers", argv, missing)
        except RuntimeError as error:
            return fail(error, 1)
    rounds |= {"matrix": matrix_round(2048), "memory": memory_round()}
    rates = measure(rounds, given["rounds"])
    print(table(task, model.net.config, rates), flush=True)

    prefills = {
        group: task.num_prompts * group / rate
        for group, rate in measure(
            {
                group: rljax_round(model, task._replace(group_size=group, new_tokens=1))
                for group in (1, 16)
            },
            2 * given["rounds"],
        ).items()
    }
    print(
        f"prefill and first token: groups of 16 take {1e3 * prefills[16]:.0f} ms, of 1 "
        f"{1e3 * prefills[1]:.0f} ms, {prefills[16] / prefills[1]:.2f} x",
        flush=True,
    )
    seconds = first_token_seconds(path)
    print(f"from the command line to the first token: {seconds:.1f} s", flush=True)
    growth = {}
    for name, sizes in GROWTH.items() if given["growth"] else ():
        tasks = {size: task._replace(**{name: size}) for size in sizes}
        growth[name] = measure({n: rljax_round(model, t) for n, t in tasks.items()}, 2)
        line = ", ".join(f"{size}: {rate:.0f}" for size, rate in growth[name].items())
        print(f"tokens/s by {name.replace('_', ' ')}: {line}", flush=True)
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    numbers = {
        "tokens_per_second": rates,
        "prefill_seconds": prefills,
        "first_token_seconds": seconds,
        "growth": growth,
    }
    write_atomically(out / "sampler.json", to_json(numbers).encode())
    print(f"written: {out / 'sampler.json'}", end="")
    if growth:
        plot(rates, growth, out / "sampler.png")
        print(f", {out / 'sampler.png'}", end="")
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
