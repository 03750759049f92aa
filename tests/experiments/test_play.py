"""`python -m experiments.play`: what a trained policy does, as a GIF."""

import contextlib
import csv
import io
import itertools
import json
import re
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from experiments.play import main

from .command import Result, checkpoint_steps, digests, finish, quick, run_here, start

PLAY = ("-m", "experiments.play")


def play(*argv) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["play", *map(str, argv)])
    return Result(code, out.getvalue().splitlines(), err.getvalue().splitlines())


def played(*argv) -> tuple[float, int, str]:
    """Return, length and file of the last line."""
    result = play(*argv)
    assert (result.code, result.err) == (0, [])
    found = re.fullmatch(r"episode return=(\S+) length=(\d+) -> (.+)", result.out[-1])
    assert found, result.out
    return float(found[1]), int(found[2]), found[3]


def read(file) -> tuple[list[np.ndarray], int]:
    """Frames of a GIF, and for how many milliseconds they are shown."""
    with Image.open(file) as image:
        assert image.format == "GIF"
        frames, shown = [], 0
        for i in range(image.n_frames):
            image.seek(i)
            frames.append(np.asarray(image.convert("RGB")))
            shown += image.info["duration"]
    return frames, shown


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    """A short run, good enough to last a while."""
    workdir = tmp_path_factory.mktemp("cartpole")
    small = ("net.hidden_sizes=(16,)", "eval_episodes=2", "algo.epochs=8")
    result = run_here(quick("ppo_cartpole", workdir, *small))
    assert (result.code, result.err) == (0, [])
    return workdir


def test_line_world_gives_what_its_evaluation_found(finished, tmp_path):
    workdir, result = finished
    files = digests(workdir)
    total, length, file = played(f"--workdir={workdir}", f"--out={tmp_path}/world.GIF")
    assert (f"eval/return_mean={total!r} " in result.out[-1], length) == (True, 100)
    assert file == f"{tmp_path}/world.GIF"
    frames, shown = read(file)
    assert shown == 100 * 250 + 1000
    assert (frames[0] != frames[-1]).any() or total < 0  # only a bad policy stays where it is
    assert digests(workdir) == files  # nothing but the GIF is written


def test_cartpole(cartpole):
    total, length, file = played(f"--workdir={cartpole}")
    assert (total, file) == (length, f"{cartpole}/episode.gif")
    assert length > 15
    frames, shown = read(file)
    assert frames[0].shape == (267, 400, 3)
    assert length / 2 < len(frames) <= length + 1
    assert shown == 20 * length + 1000  # its steps are of 20 ms
    assert all((a != b).any() for a, b in itertools.pairwise(frames))

    first = (cartpole / "episode.gif").read_bytes()
    assert played(f"--workdir={cartpole}")[:2] == (total, length)
    assert (cartpole / "episode.gif").read_bytes() == first
    played(f"--workdir={cartpole}", "--seed=7")
    assert (cartpole / "episode.gif").read_bytes() != first
    assert [p.name for p in cartpole.iterdir() if p.name.endswith(".tmp")] == []


def test_checkpoints_and_sampling(cartpole, tmp_path):
    older, newest = checkpoint_steps(cartpole)
    out = f"--out={tmp_path}/a.gif"
    lengths = {
        played(f"--workdir={cartpole}", out, *more)[1]
        for more in [(f"--checkpoint={older}",), (f"--checkpoint={newest}",), ("--sample",)]
    }
    assert len(lengths) > 1
    named = played(f"--workdir={cartpole}", out, f"--checkpoint={newest}")
    assert named == played(f"--workdir={cartpole}", out, "--checkpoint=latest")
    played(f"--workdir={cartpole}", out, "--checkpoint=best")


def test_a_damaged_checkpoint_is_passed_over(cartpole, tmp_path):
    shutil.copytree(cartpole, tmp_path / "w")
    older, newest = checkpoint_steps(tmp_path / "w")
    (tmp_path / "w" / "checkpoints" / f"{newest:012d}" / "manifest.json").write_text("{}")
    result = play(f"--workdir={tmp_path}/w")
    assert (result.code, len(result.err)) == (0, 1)
    assert result.err[0].startswith("warning: checkpoint ")
    expected = played(f"--workdir={cartpole}", f"--checkpoint={older}")
    assert result.out[-1].startswith(f"episode return={expected[0]} length={expected[1]} ")
    result = play(f"--workdir={tmp_path}/w", f"--checkpoint={newest}")
    assert (result.code, len(result.err)) == (2, 2)


def test_one_seed_of_several(tmp_path):
    overrides = ("num_seeds=2", "total_steps=800", "log_interval=1")
    assert run_here(quick("a2c_line_world", tmp_path, *overrides)).code == 0
    with open(tmp_path / "metrics.csv", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    for index in (0, 1):
        total, length, _ = played(f"--workdir={tmp_path}", f"--seed-index={index}")
        assert (total, length) == (float(last[f"eval/return_mean/seed{index}"]), 100)


def test_fewer_devices_than_the_run_had(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "w")
    file = tmp_path / "w" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_devices": 64}))
    assert played(f"--workdir={tmp_path}/w")[1] == 100


def test_an_environment_of_gymnasium(tmp_path):
    overrides = ("env.name=Pendulum-v1", "unroll_length=64", "eval_episodes=1", "algo.epochs=1")
    overrides += ("total_steps=512", "net.hidden_sizes=(8,)")
    assert run_here(quick("ppo_halfcheetah", tmp_path, *overrides)).code == 0
    total, length, file = played(f"--workdir={tmp_path}")
    assert length == 200
    assert -3600 < total < 0
    frames, shown = read(file)
    assert len(frames) > 100
    assert shown == pytest.approx(200 / 30 * 1000 + 1000, rel=0.02)


def test_what_was_learned_from_a_replay(tmp_path):
    """Greedy, and with the exploration of the end of its training."""
    assert run_here(quick("dqn_cartpole", tmp_path, "eval_episodes=2")).code == 0
    for more in ([], ["--sample"]):
        total, length, _ = played(f"--workdir={tmp_path}", *more)
        assert total == length > 5


@pytest.mark.errors
def test_a_wrong_command_is_answered_with_one_line(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "w")
    files = digests(tmp_path)
    good = f"--workdir={tmp_path / 'w'}"
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "unsaved").mkdir()
    shutil.copy(tmp_path / "w" / "config.json", tmp_path / "unsaved")
    steps = ", ".join(map(str, checkpoint_steps(tmp_path / "w")))
    for argv, needed in [
        ([], "--workdir is missing; usage:"),
        ([good, "--epochs=3"], "unknown flag --epochs; usage:"),
        ([good, "please"], "unexpected argument 'please'"),
        ([good, "--seed=x"], "seed"),
        ([good, "--seed=-1"], "seed"),
        ([good, "--seed-index=1"], "--seed-index is 1: config.num_seeds is 1"),
        ([good, "--checkpoint=old"], "'old': allowed are latest, best or a step"),
        ([good, "--checkpoint=3"], f"--checkpoint is 3: {tmp_path}/w/checkpoints has {steps}"),
        ([good, f"--out={tmp_path}/a.mp4"], "a.mp4: it must end with .gif"),
        ([good, f"--out={tmp_path}/none/a.gif"], f"{tmp_path}/none cannot be written"),
        ([good, f"--out={tmp_path}/folder.gif"], "it is a folder"),
        ([f"--workdir={tmp_path}/nowhere"], "is not the workdir of a run"),
        ([f"--workdir={tmp_path}/empty"], "it has no config.json"),
        ([f"--workdir={tmp_path}/unsaved"], f"no checkpoint in {tmp_path}/unsaved/checkpoints"),
    ]:
        result = play(*argv)
        assert (result.code, result.out, len(result.err)) == (2, [], 1), result
        assert result.err[0].startswith("error: ")
        assert needed in result.err[0]
    shutil.rmtree(tmp_path / "unsaved")
    assert digests(tmp_path) == files

    config = json.loads((tmp_path / "w" / "config.json").read_text())
    for broken, needed in [
        ("[]", "is not the config of a run"),
        ("{}", "is not the config of a run"),
        ("not json", "is not the config of a run"),
        (json.dumps(config | {"new": 1}), "config.new is unknown"),
    ]:
        (tmp_path / "w" / "config.json").write_text(broken)
        result = play(good)
        assert (result.code, len(result.err)) == (2, 1), result
        assert needed in result.err[0]


def test_help():
    assert play("--help").out[0].startswith("usage: python -m experiments.play --workdir=DIR")


@pytest.mark.slow
def test_as_a_process_without_a_screen(finished, tmp_path):
    program = (sys.executable, *PLAY)
    argv = [f"--workdir={finished[0]}", f"--out={tmp_path}/a.gif"]
    result = finish(start(argv, cache=tmp_path / "cache", program=program))
    assert (result.code, result.err) == (0, [])
    assert result.out[-1].startswith("episode return=")
    result = finish(start([], cache=tmp_path / "cache", program=program))
    assert (result.code, result.out, len(result.err)) == (2, [], 1)
