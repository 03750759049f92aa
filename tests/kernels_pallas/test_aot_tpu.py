"""Kernels compiled for TPUs that are not here; `make aot-check` has the environment for it."""

import json

import pytest

from kernels_pallas.aot import tpu
from kernels_pallas.aot.__main__ import complaint

pytestmark = pytest.mark.aot
MAIN = r"linear_token_stats (forward|backward) 1024x2048x4096 bfloat16 \[D,V\]"


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_no_schedule_has_become_worse(chip):
    kept = json.loads(tpu.RATIOS.read_text())
    seen = list(tpu.rows(f"{chip} {MAIN}", (chip,)))
    assert len(seen) == 2
    for row in seen:
        assert f"{chip} {row['program']}" in kept
        assert not complaint(row, kept), row
        assert row["temporary"] < 2**20, row


def test_a_worse_ratio_and_temporary_memory_are_complaints():
    row = {"chip": "v5e", "program": "matmul", "ratio": 1.04, "temporary": 10_000}
    assert complaint(row, {"v5e matmul": 1.0})
    assert not complaint(row, {"v5e matmul": 1.02})
    assert complaint(row | {"temporary": 2**20}, {"v5e matmul": 1.02})
    assert not complaint({"chip": "v5e", "program": "matmul"}, {"v5e matmul": 1.0})  # no profile


def test_shards_of_the_vocabulary_send_a_few_sums():
    (row,) = tpu.rows(f"v5e {tpu.SHARDED}", ("v5e",))
    assert set(row["sent"]) == {"all-reduce"}
    assert row["sent"]["all-reduce"] <= 3
    assert row["temporary"] < 2**20


def test_masked_programs_of_every_chip():
    """Ragged, with mask, bias and softcap: nothing of the size of the logits, nor of a copy."""
    seen = list(tpu.rows("linear_token_stats forward .*options"))
    assert len(seen) == len(tpu.CHIPS)
    for row in seen:
        assert row["temporary"] < 2**20, row


def test_a_chip_that_cannot_be_compiled_for_is_a_row(monkeypatch):
    monkeypatch.setitem(tpu.CHIPS, "none", ("v5e:1x1", "TPU v5 lite"))
    rows = list(tpu.rows("none token_stats forward 256x4096", ("none",)))  # its process knows none
    assert rows
    assert all("error" in row for row in rows)
