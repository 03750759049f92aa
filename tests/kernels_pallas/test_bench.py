"""The bench runs, prints both ratios, and says in one line what it does not take."""

import json

import pytest

from kernels_pallas import bench


def test_a_run_prints_ratios_and_writes_its_files(tmp_path, capsys):
    shape = ["--shape=24,8,300", "--dtypes=bfloat16", "--rounds=2", "--implementations=policy,xla"]
    assert bench.main([*shape, f"--out={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "N=24 D=8 V=300 bfloat16, forward and backward"
    kinds = "", " + entropy", " kl", " logits", " logits kl"
    assert {line.split("  ")[1] for line in lines[2:14]} == {
        *("policy", "policy + entropy"),
        *(f"{name}{kind}" for name in ("naive", "xla") for kind in kinds),
    }
    assert lines[2].split()[2] == "1.00"
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["shape"] == {"rows": 24, "width": 8, "vocabulary": 300}
    assert {len(x["seconds"]) for x in record["results"]["bfloat16"].values()} == {2}
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_ratios_are_medians_beside_the_naive_of_the_same_kind():
    results = {
        "naive": bench.Result([1.0, 2.0, 4.0], 100),
        "naive + entropy": bench.Result([2.0, 2.0, 2.0], 300),
        "naive kl": bench.Result([1.0, 1.0, 1.0], 50),
        "xla": bench.Result([0.5, 1.6, 1.0], 10),  # .5, .8, .25
        "xla + entropy": bench.Result([1.0, 3.0, 2.0], 60),  # .5, 1.5, 1
        "xla kl": bench.Result([3.0, 4.0, 5.0], 25),
        "naive logits kl": bench.Result([2.0, 2.0, 2.0], 40),
        "xla logits kl": bench.Result([1.0, 1.0, 1.0], 10),
    }
    found = bench.ratios(results)
    assert found["naive"] == found["naive + entropy"] == (1.0, 1.0)
    assert found["xla"] == (0.5, 10.0)
    assert found["xla + entropy"] == (1.0, 5.0)
    assert found["xla kl"] == (4.0, 2.0)
    assert found["xla logits kl"] == (0.5, 4.0)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--shape=1,2", "--shape must be goal, quick or three sizes N,D,V, got '1,2'"),
        ("--shape=0,2,3", "--shape must be goal, quick or three sizes N,D,V, got '0,2,3'"),
        ("--shape=a,2,3", "--shape must be goal, quick or three sizes N,D,V, got 'a,2,3'"),
        ("--dtypes=float16", "--dtypes must be of float32, bfloat16, got 'float16'"),
        ("--implementations=cuda", "implementation must be one of"),
        ("--implementations=pallas_tpu", "'pallas_tpu' cannot run: it needs a tpu"),
        ("--rounds=0", "--rounds must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_one_line(argument, message, capsys):
    with pytest.raises(SystemExit) as error:
        bench.main([argument])
    assert error.value.code == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
