"""Kernels compiled for cards that are not here; `make aot-check` has the environment for it."""

import pytest

from kernels_pallas.aot import gpu

pytestmark = pytest.mark.aot
INSTRUCTION = {"a100": "mma.sync", "h100": "wgmma.mma_async", "b200": "tcgen05.mma"}
FORM = {"a100": "none", "h100": "_hopper", "b200": "_blackwell"}
# What is nearest to its limit of registers, each kernel once; `make aot` compiles the rest.
PROGRAMS = (
    r"(linear_token_stats (forward|backward) bfloat16 \[V,D\]( options| rows split)?"
    r"|linear_kl (forward|backward) bfloat16 \[D,V\])$"
)
LOGITS = gpu.NUM_ROWS * gpu.VOCABULARY * 2  # bytes, in bfloat16

PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry ours(.param .u64 p)
{
  .reg .b32 %r<2>;
  mov.u32 %r1, 1;
  ret;
}
.visible .entry loop_fusion_1(.param .u64 p)
{
  ret;
}
"""


def test_ptxas_is_read():
    (entry,) = gpu.read_ptx(PTX)
    assert entry.name == "ours"
    assert entry.spilled == 0
    assert 0 < entry.registers < 32


@pytest.mark.parametrize("card", INSTRUCTION)
def test_nothing_is_spilled_and_no_logits_are_kept(card):
    rows = list(gpu.rows(f"^{card} {PROGRAMS}"))
    assert len(rows) == 13  # kernels of these programs
    for row in rows:
        assert "error" not in row, row
        assert row["spilled"] == 0, row
        assert row["instruction"] == INSTRUCTION[card], row
        assert row["temp_bytes"] < LOGITS / 8, row
    mosaic = [row["name"] for row in rows if "mosaic_gpu" in row["name"]]
    assert len(mosaic) == (0 if card == "a100" else 7)
    assert all(FORM[card] in name for name in mosaic)


def test_what_cannot_be_compiled_is_a_row(monkeypatch):
    monkeypatch.setattr(gpu, "ptxas", lambda: None)
    monkeypatch.setenv("PATH", "")
    (row,) = gpu.rows("(")  # no regular expression: the process ends
    assert "error" in row
