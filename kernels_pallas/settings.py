"""Block sizes that were measured: `python -m kernels_pallas.autotune` keeps them in a file.

From "kernel/chip/dtype" to what the kernels of that chip take for blocks; the heuristics of
`gpu.blocks` and `tpu.mosaic` give way to it.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any


def settings_file() -> Path:
    """Where autotune writes; KERNELS_PALLAS_BLOCKS names another file."""
    default = Path.home() / ".cache" / "kernels_pallas" / "blocks.json"
    return Path(os.environ.get("KERNELS_PALLAS_BLOCKS", default))


@cache
def measured() -> dict[str, list[Any]]:
    """All that is in the file: tuples as lists."""
    file = settings_file()
    return json.loads(file.read_text()) if file.is_file() else {}


def keep(key: str, blocks: Any) -> None:
    """Writes one more entry, or another in its place."""
    file = settings_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(measured() | {key: blocks}, indent=1))
    measured.cache_clear()
