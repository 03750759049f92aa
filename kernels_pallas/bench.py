"""Time and memory of every implementation beside log_softmax(hidden @ unembedding).

python -m kernels_pallas.bench [--shape=N,D,V] [--dtypes=float32,bfloat16] [--rounds=3]
    [--implementations=xla,...] [--out=runs/kernels_pallas]

Forward and backward of a sum of log-probabilities, by hidden states and unembedding, on whatever
machine it runs on. `naive` is what one writes without a kernel: the product, of the dtype of its
arguments, log_softmax of it in float32, and a gather. `policy` is `linear_policy_loss`, the others
are `linear_token_stats`; "+ entropy" adds that to the loss. "kl" is the exact divergence from a
second model that is held fixed, by `linear_kl`. "logits" and "logits kl" are `token_stats` and
`categorical_kl`, by logits that are there already. Wall time: rounds take turns, seconds are the
best of them, and the ratio is the median of the rounds' ratios. Memory is what the compiled
program needs beyond arguments and results. Writes bench.json and bench.png.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kernels_pallas import (
    categorical_kl,
    linear_kl,
    linear_policy_loss,
    linear_token_stats,
    token_stats,
)
from kernels_pallas.checks import DTYPES
from kernels_pallas.choose import PLATFORM_OF, choose, current_platform
from kernels_pallas.linear_token_stats.shapes import GOAL, QUICK, Shape

# How a name ends: what is compared with the same of naive, and what the gradient is of.
BY_STATES = ("hidden", "unembedding")
KINDS = {
    "": BY_STATES,
    " + entropy": BY_STATES,
    " kl": BY_STATES,
    " logits": ("logits",),
    " logits kl": ("logits",),
}


class Given(NamedTuple):
    hidden: Array  # [N, D]
    unembedding: Array  # [D, V]
    tokens: Array  # [N]
    ref_hidden: Array  # of the model that is held fixed
    ref_unembedding: Array
    logits: Array  # [N, V]
    ref_logits: Array


Loss = Callable[[Given], Array]


def kind_of(name: str) -> str:
    return max((kind for kind in KINDS if name.endswith(kind)), key=len)


def naive(kind: str) -> Loss:
    def loss(given: Given) -> Array:
        pairs = given[:2], given[3:5]
        both = given[5:] if "logits" in kind else [x @ y for x, y in pairs]
        log_probs, ref_log_probs = (jax.nn.log_softmax(x.astype(jnp.float32)) for x in both)
        if "kl" in kind:
            return jnp.sum(jnp.exp(log_probs) * (log_probs - ref_log_probs))
        total = -jnp.sum(jnp.take_along_axis(log_probs, given.tokens[:, None], axis=1))
        if "entropy" in kind:
            total += 0.01 * jnp.sum(jnp.exp(log_probs) * log_probs)
        return total

    return loss


def by_stats(implementation: str, entropy: bool) -> Loss:
    def loss(given: Given) -> Array:
        stats = linear_token_stats(*given[:3], entropy=entropy, implementation=implementation)
        total = -jnp.sum(stats.log_probs)
        return total if stats.entropy is None else total - 0.01 * jnp.sum(stats.entropy)

    return loss


def by_kl(implementation: str) -> Loss:
    return lambda given: jnp.sum(
        linear_kl(given[:2], jax.lax.stop_gradient(given[3:5]), implementation=implementation)
    )


def by_logits(implementation: str) -> Loss:
    def loss(given: Given) -> Array:
        stats = token_stats(given.logits, given.tokens, implementation=implementation)
        return -jnp.sum(stats.log_probs)

    return loss


def by_logits_kl(implementation: str) -> Loss:
    return lambda given: jnp.sum(
        categorical_kl(given.logits, given.ref_logits, implementation=implementation)
    )


def by_policy_loss(entropy: bool) -> Loss:
    def one(log_prob: Array, entropy: Array | None, _: None) -> Array:
        return -log_prob if entropy is None else -log_prob - 0.01 * entropy

    return lambda given: linear_policy_loss(*given[:3], None, one, entropy=entropy)[0]


def check(implementation: str, shape: Shape, dtype: str) -> None:
    """Raises ValueError if it cannot run here."""
    rows, width, vocabulary = shape
    choose("linear_token_stats", implementation, dtype=dtype, shape=(rows, width, vocabulary))
    choose("linear_kl", implementation, dtype=dtype, shape=(rows, width, width, vocabulary))
    for kernel in ("token_stats", "categorical_kl"):
        choose(kernel, implementation, dtype=dtype, shape=(rows, vocabulary))


def contestants(shape: Shape, dtype: str, wanted: list[str]) -> dict[str, Loss]:
    found = {f"naive{kind}": naive(kind) for kind in KINDS}
    for name in wanted:
        if name == "policy":
            found |= {"policy": by_policy_loss(False), "policy + entropy": by_policy_loss(True)}
            continue
        check(name, shape, dtype)
        found |= {
            name: by_stats(name, False),
            f"{name} + entropy": by_stats(name, True),
            f"{name} kl": by_kl(name),
            f"{name} logits": by_logits(name),
            f"{name} logits kl": by_logits_kl(name),
        }
    return found


def runnable(shape: Shape, dtype: str) -> list[str]:
    """What runs on this machine, but the definition, which is as large as `naive`."""
    names = ["xla", "policy"]
    for name, platform in PLATFORM_OF.items():
        if platform == current_platform():
            try:
                check(name, shape, dtype)
            except ValueError:
                continue
            names.append(name)
    return names


class Result(NamedTuple):
    seconds: list[float]  # of forward and backward, by rounds
    temporary_bytes: int


def measure(losses: dict[str, Loss], shape: Shape, dtype: str, rounds: int) -> dict[str, Result]:
    rng = np.random.default_rng(0)

    def draw(rows: int, columns: int, scale: float = 1.0) -> Array:
        return jnp.asarray(rng.normal(size=(rows, columns)) * scale, dtype)

    hidden, ref_hidden = (draw(shape.rows, shape.width) for _ in range(2))
    matrices = [draw(shape.width, shape.vocabulary, shape.width**-0.5) for _ in range(2)]
    tokens = jnp.asarray(rng.integers(0, shape.vocabulary, shape.rows), jnp.int32)
    logits = [draw(shape.rows, shape.vocabulary) for _ in range(2)]
    given = Given(hidden, matrices[0], tokens, ref_hidden, matrices[1], *logits)

    def forward_and_backward(name: str, loss: Loss) -> Any:
        def of(differentiated: tuple[Array, ...], given: Given) -> Array:
            return loss(given._replace(**dict(zip(KINDS[kind_of(name)], differentiated))))

        arrays = tuple(getattr(given, field) for field in KINDS[kind_of(name)])
        program = jax.jit(jax.value_and_grad(of)).lower(arrays, given).compile()
        return program, arrays

    compiled = {name: forward_and_backward(name, loss) for name, loss in losses.items()}
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for number in range(rounds + 1):  # the first warms up
        for name, (program, arrays) in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(program(arrays, given))
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {
        name: Result(seconds[name], program.memory_analysis().temp_size_in_bytes)
        for name, (program, _) in compiled.items()
    }


def ratios(results: dict[str, Result]) -> dict[str, tuple[float, float]]:
    """Time over naive's and naive's memory over ours, each beside the naive of its kind."""
    found = {}
    for name, result in results.items():
        base = results["naive" + kind_of(name)]
        time_ratio = np.median(np.divide(result.seconds, base.seconds))
        found[name] = float(time_ratio), base.temporary_bytes / max(result.temporary_bytes, 1)
    return found


def table(shape: Shape, dtype: str, results: dict[str, Result]) -> str:
    lines = [
        f"N={shape.rows} D={shape.width} V={shape.vocabulary} {dtype}, forward and backward",
        f"  {'':22}{'s':>9}{'x naive':>9}{'MB':>9}{'1 /':>7}",
    ]
    for name, (slower, smaller) in ratios(results).items():
        seconds, size = min(results[name].seconds), results[name].temporary_bytes / 1e6
        lines.append(f"  {name:22}{seconds:9.3f}{slower:9.2f}{size:9.0f}{smaller:7.1f}")
    return "\n".join(lines)


def plot(all_results: dict[str, dict[str, Result]], png: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1 + 3.2 * len(all_results)), dpi=120, layout="constrained")
    panels = figure.subplots(len(all_results), 2, squeeze=False)
    for (dtype, results), row in zip(all_results.items(), panels):
        of = ratios(results)
        values = ([x for x, _ in of.values()], [1 / y for _, y in of.values()])
        for axes, numbers, label in zip(row, values, ("time", "temporary memory")):
            bars = axes.barh([*of], numbers)
            axes.bar_label(bars, fmt="%.3g", padding=2, fontsize=7)
            axes.axvline(1.0, color="gray", lw=1, ls="--")
            axes.invert_yaxis()
            axes.set_title(f"{label} / naive, {dtype}", fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
        row[1].set_yticks([])
    figure.savefig(png)


def parse_shape(text: str) -> Shape:
    if text in ("goal", "quick"):
        return GOAL if text == "goal" else QUICK
    sizes = text.split(",")
    if len(sizes) != 3 or not all(x.isdecimal() and int(x) for x in sizes):
        raise ValueError(f"--shape must be goal, quick or three sizes N,D,V, got {text!r}")
    return Shape(*map(int, sizes))


def main(argv: list[str] | None = None) -> int:
    title = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser("python -m kernels_pallas.bench", description=title)
    parser.add_argument("--shape", default="goal", help="goal, quick, or N,D,V")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--implementations", default="", help="xla, policy, pallas_tpu ...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/kernels_pallas"))
    given = parser.parse_args(argv)
    try:
        shape, dtypes = parse_shape(given.shape), given.dtypes.split(",")
        if unknown := [x for x in dtypes if x not in DTYPES]:
            raise ValueError(f"--dtypes must be of {', '.join(DTYPES)}, got {unknown[0]!r}")
        asked = [x for x in given.implementations.split(",") if x]
        entries = {x: contestants(shape, x, asked or runnable(shape, x)) for x in dtypes}
        if given.rounds < 1:
            raise ValueError(f"--rounds must be at least 1, got {given.rounds}")
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")
    results = {}
    for dtype, losses in entries.items():
        results[dtype] = measure(losses, shape, dtype, given.rounds)
        print(table(shape, dtype, results[dtype]), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    record = {
        "shape": shape._asdict(),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "results": {
            dtype: {name: result._asdict() for name, result in of.items()}
            for dtype, of in results.items()
        },
    }
    (given.out / "bench.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    plot(results, given.out / "bench.png")
    print(f"{given.out / 'bench.json'} and bench.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
