"""Tries block sizes on the GPU or TPU that is here, and keeps the fastest.

`python -m kernels_pallas.autotune [--only=REGEX]` times each candidate for each kernel and type,
and writes the best to the file that the heuristics give way to (`settings`). On a TPU it looks at
the kernels that take hidden states, on a GPU at all. Exit 2 where there is neither.
"""

import argparse
import importlib
import sys

import jax

from kernels_pallas import settings


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels_pallas.autotune", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    only, platform = parser.parse_args(arguments).only, jax.default_backend()
    if platform not in ("gpu", "tpu"):
        print(f"autotune: no TPU and no GPU here; JAX runs on {platform}", file=sys.stderr)
        return 2
    for key, blocks in importlib.import_module(f"kernels_pallas.{platform}.autotune").search(only):
        settings.keep(key, blocks)
        print(f"{key}: {blocks}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
