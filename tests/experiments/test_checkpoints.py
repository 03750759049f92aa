"""Checkpoints that cannot be used are refused in one line, before anything is compiled."""

import shutil

import pytest

from .command import checkpoint_steps, digests, quick, run_here


@pytest.fixture
def workdir(finished, tmp_path):
    """The checkpoints of a finished run of a2c_line_world alone, as one might copy them."""
    shutil.copytree(finished[0] / "checkpoints", tmp_path / "w" / "checkpoints")
    return tmp_path / "w"


@pytest.mark.parametrize(
    ("name", "override", "needed"),
    [
        # The arrays of these two fit: a table, and plain gradient descent, which has no state.
        ("vpg_line_world", "seed=0", 'algo.name is "a2c" there and "vpg" here'),
        ("a2c_line_world", "algo.discount=0.8", "algo.discount is 0.9 there and 0.8 here"),
        ("a2c_line_world", "env.num_envs=8", "int32[16] in the checkpoint and int32[8] here"),
        ("a2c_line_world", "num_seeds=2", "float32[5,3] in the checkpoint and float32[2,5,3] here"),
        ("a2c_line_world", "optimizer.name=adam", "absent in the checkpoint"),
        ("a2c_line_world", "net.name=mlp", "absent in the checkpoint"),
    ],
)
def test_of_another_run(name, override, needed, workdir):
    files = digests(workdir)
    result = run_here(quick(name, workdir, override))
    assert (result.code, result.out, len(result.err)) == (2, [], 1), result
    assert result.err[0].startswith("error: checkpoint ")
    assert str(workdir / "checkpoints") in result.err[0]
    assert needed in result.err[0]
    assert result.compilations <= 1  # to put a restored key on the device
    assert digests(workdir).items() >= files.items()


def test_all_of_them_damaged(workdir):
    steps = checkpoint_steps(workdir)
    for step in steps:
        manifest = workdir / "checkpoints" / f"{step:012d}" / "manifest.json"
        manifest.write_bytes(manifest.read_bytes()[:-10])
    files = digests(workdir)
    result = run_here(quick("a2c_line_world", workdir))
    assert (result.code, result.out) == (2, []), result
    *warnings, error = result.err
    assert [line.partition(" is not used: ")[0] for line in warnings] == [
        f"warning: checkpoint {workdir / 'checkpoints' / f'{step:012d}'}" for step in steps[::-1]
    ]
    assert error.startswith(f"error: no usable checkpoint in {workdir / 'checkpoints'}; ")
    assert result.compilations == 0
    assert digests(workdir).items() >= files.items()


def test_metrics_that_end_before_the_checkpoint(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "w")
    newest = checkpoint_steps(tmp_path / "w")[-1]
    shutil.rmtree(tmp_path / "w" / "checkpoints" / f"{newest:012d}")  # so that there is work to do
    metrics = tmp_path / "w" / "metrics.csv"
    metrics.write_bytes(metrics.read_bytes()[:300])
    result = run_here(quick("a2c_line_world", tmp_path / "w"))
    assert (result.code, result.out, len(result.err)) == (2, [], 1), result
    assert f"{metrics} has 300 bytes" in result.err[0]
    assert result.compilations == 0
    assert metrics.stat().st_size == 300
