"""What the tests of language models share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """SmolLM2-135M-Instruct's GGUF: $RLJAX_SMOLLM, or what experiments/get_smollm.py fetched."""
    if named := os.environ.get("RLJAX_SMOLLM"):
        return Path(named)
    cached = sorted(Path("~/.cache/rljax/smollm2").expanduser().glob("*.gguf"))
    if not cached:
        pytest.skip("no SmolLM2: set RLJAX_SMOLLM or run python -m experiments.get_smollm")
    return cached[0]


@pytest.fixture(scope="session")
def references() -> Path:
    """Values that other libraries gave, each beside the script that made them."""
    return Path(__file__).with_name("references")
