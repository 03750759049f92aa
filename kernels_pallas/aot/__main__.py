"""python -m kernels_pallas.aot [--only=REGEX] [--keep]: what compilers say of every kernel.

A program that cannot be compiled is a row that says why, and so is one that takes temporary memory
or whose ratio of cycles is 3% above the one kept in ratios.json: the exit status is 1. `--keep`
writes the ratios instead.
"""

import argparse
import json
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kernels_pallas.aot import tpu

TOLERANCE = 1.03
TEMPORARY = 2**20  # bytes, on a TPU; what needs more has copied something
TPU_COLUMNS = ("temporary B", "peak MiB", "cycles", "ratio", "matrix unit", "sent")
GPU_COLUMNS = ("temporary B", "peak MiB", "registers", "spilled B", "instruction", "")


def table_line(where: str, program: str, cells: Any) -> str:
    return f"{where:6} {program:58} " + " ".join(f"{cell:>11}" for cell in cells)


def tpu_cells(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['temporary']:,}",
        f"{row['peak'] / 2**20:,.1f}",
        f"{row['cycles']:,}" if "cycles" in row else "-",
        f"{row['ratio']:.3f}" if "ratio" in row else "-",
        f"{row['utilisation']:.1%}" if "utilisation" in row else "-",
        ", ".join(f"{count} {name}" for name, count in row.get("sent", {}).items()),
    ]


def gpu_cells(row: dict[str, Any]) -> list[str]:
    sizes = f"{row['temp_bytes']:,}", f"{row['peak_bytes'] / 2**20:,.1f}"
    return [*sizes, str(row["registers"]), str(row["spilled"]), row["instruction"], row["name"]]


def key(row: dict[str, Any]) -> str:
    return f"{row['chip']} {row['program']}"


def kept_ratios() -> dict[str, float]:
    return json.loads(tpu.RATIOS.read_text()) if tpu.RATIOS.exists() else {}


def complaint(row: dict[str, Any], kept: dict[str, float]) -> str:
    """What is wrong with a row, or an empty string."""
    if "error" in row:
        return row["error"]
    if row.get("spilled"):
        return "registers are spilled"
    before = kept.get(key(row)) if "chip" in row else None
    if row.get("temporary", 0) >= TEMPORARY:
        return f"{row['temporary']:,} bytes of temporary memory"
    if before and row.get("ratio", 0.0) > TOLERANCE * before:
        return f"the ratio was {before:.3f}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser("kernels_pallas.aot", description=__doc__)
    parser.add_argument("--only", default="", help="expression found in 'chip kernel ...'")
    parser.add_argument("--keep", action="store_true", help=f"write {tpu.RATIOS.name}")
    arguments = parser.parse_args()
    parts: list[Any] = [(tpu, "TPU", TPU_COLUMNS, tpu_cells)]
    if find_spec("kernels_pallas.aot.gpu"):
        gpu = import_module("kernels_pallas.aot.gpu")
        parts.append((gpu, "GPU", GPU_COLUMNS, gpu_cells))
    kept = {} if arguments.keep else kept_ratios()
    faults, ratios = 0, {}
    for part, platform, columns, cells in parts:
        if not part.available():
            print(f"{platform}: its compiler is not installed here (make aot)")
            faults += 1
            continue
        print(table_line(platform, "program", columns))
        for row in part.rows(arguments.only):
            fault = complaint(row, kept)
            faults += bool(fault)
            note = row.get("unsupported", fault)
            shown = [] if (note and not fault) or "error" in row else cells(row)
            where = row.get("chip") or row.get("card") or ""
            print(table_line(where, row["program"], shown), note, flush=True)
            if "ratio" in row:
                ratios[key(row)] = row["ratio"]
    if arguments.keep:
        text = json.dumps(dict(sorted((kept_ratios() | ratios).items())), indent=1)
        tpu.RATIOS.write_text(text + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
