"""Kernels compiled for TPUs that are not here; `make aot-check` has the environment for it."""

import json

import pytest

from kernels_pallas.aot import tpu

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(not tpu.available(), reason="libtpu is not installed (make aot-check)"),
]
MAIN = "linear_token_stats (forward|backward) 2048x2048x16384"


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_no_schedule_has_become_worse(chip):
    kept = json.loads(tpu.RATIOS.read_text())
    seen = list(tpu.rows(f"{chip} {MAIN}", (chip,)))
    assert seen
    for row in seen:
        assert "error" not in row, row
        assert row["temporary"] < 2**20, row
        assert row["ratio"] <= 1.03 * kept[f"{chip} {row['program']}"], row


def test_a_chip_that_cannot_be_compiled_for_is_a_row(monkeypatch):
    monkeypatch.setitem(tpu.CHIPS, "none", ("v5e:1x1", "TPU v5 lite"))
    rows = list(tpu.rows("none", ("none",)))  # the process knows no such chip
    assert all("error" in row for row in rows)
    assert len(rows) >= 1
