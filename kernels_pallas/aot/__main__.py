"""python -m kernels_pallas.aot [--only=REGEX] [--keep]: what compilers say of every kernel.

`--keep` writes the ratios it has measured into the file that the tests compare with. A program
that cannot be compiled is a row that says why, and the exit status is 1.
"""

import argparse
import json
from typing import Any

from kernels_pallas.aot import tpu


def line(row: dict[str, Any]) -> str:
    start = f"{row['chip']:6} {row['program']:62}"
    if "error" in row:
        return f"{start} {row['error']}"
    ratio = f"{row['ratio']:.3f}" if "ratio" in row else "-"
    peak = row["peak"] / 2**20
    return f"{start} {row['temporary']:>11,} {peak:>10,.1f} {row['cycles']:>12,} {ratio:>7}"


def key(row: dict[str, Any]) -> str:
    return f"{row['chip']} {row['program']}"


def main() -> int:
    parser = argparse.ArgumentParser("kernels_pallas.aot", description=__doc__)
    parser.add_argument("--only", default="", help="expression found in 'chip kernel ...'")
    parser.add_argument("--keep", action="store_true", help=f"write {tpu.RATIOS.name}")
    arguments = parser.parse_args()
    if not tpu.available():
        print("TPU: libtpu is not installed here (make aot)")
        return 1
    print(
        f"{'TPU':6} {'program':62} {'temporary B':>11} {'peak MiB':>10} {'cycles':>12} {'ratio':>7}"
    )
    rows = []
    for row in tpu.rows(arguments.only):
        rows.append(row)
        print(line(row), flush=True)
    if arguments.keep:
        kept = json.loads(tpu.RATIOS.read_text()) if tpu.RATIOS.exists() else {}
        kept |= {key(row): row["ratio"] for row in rows if "ratio" in row}
        tpu.RATIOS.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
