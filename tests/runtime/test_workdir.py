"""The folder of a run: one process, one config."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rljax.runtime.checkpoint import Checkpoints
from rljax.runtime.workdir import open_workdir

ROOT = Path(__file__).parents[2]
CONFIG = {"algo": {"name": "ppo", "clip": 0.2, "clip_high": None}, "seed": 1, "sizes": (64, 64)}


def test_config_is_written_once_and_found_again(tmp_path):
    path = tmp_path / "runs" / "first"
    for _ in range(2):
        with open_workdir(path, CONFIG) as workdir:
            assert (workdir.path, workdir.resumed) == (path, False)  # no checkpoint yet
    text = (path / "config.json").read_text()
    assert json.loads(text) == {
        "algo": {"name": "ppo", "clip": 0.2, "clip_high": None},
        "seed": 1,
        "sizes": [64, 64],
    }
    assert text.startswith('{\n  "algo": {\n    "clip": 0.2,')  # sorted and indented
    assert sorted(os.listdir(path)) == [".lock", "config.json"]


def test_it_is_resumed_when_there_is_a_complete_checkpoint(tmp_path):
    (tmp_path / "checkpoints" / ".tmp-000000000001-x").mkdir(parents=True)
    with open_workdir(tmp_path, CONFIG) as workdir:
        assert not workdir.resumed
        with Checkpoints(workdir.checkpoints) as checkpoints:
            checkpoints.save(1, {"w": np.zeros(1)}, {})
    with open_workdir(tmp_path, CONFIG) as workdir:
        assert workdir.resumed


def test_numpy_values_are_json(tmp_path):
    config = {"lr": np.float32(0.5), "n": np.int64(3), "low": np.array([1.0, 2.0]), "nan": np.nan}
    for _ in range(2):
        with open_workdir(tmp_path, config):
            pass
    assert json.loads((tmp_path / "config.json").read_text())["low"] == [1.0, 2.0]


def refusal(path, config=CONFIG):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        open_workdir(path, config)
    return str(caught.value)


@pytest.mark.errors
def test_another_config_is_refused_with_both_values(tmp_path):
    open_workdir(tmp_path, CONFIG).close()
    before = (tmp_path / "config.json").read_bytes()
    algo = CONFIG["algo"]
    for config, difference in [
        ({**CONFIG, "seed": 2}, "seed is 1 there and 2 here"),
        ({**CONFIG, "seed": 1.0}, "seed is 1 there and 1.0 here"),
        ({**CONFIG, "seed": True}, "seed is 1 there and true here"),
        ({**CONFIG, "sizes": (64, 32)}, "sizes is [64, 64] there and [64, 32] here"),
        ({**CONFIG, "algo": {**algo, "clip": 0.1}}, "algo.clip is 0.2 there and 0.1 here"),
        (
            {**CONFIG, "algo": {**algo, "clip_high": 0.3}, "seed": 5},
            "algo.clip_high is null there and 0.3 here",
        ),
        ({**CONFIG, "algo": {**algo, "x": 1}}, "algo.x is absent there and 1 here"),
        ({**CONFIG, "algo": "ppo"}, 'algo is {"clip": 0.2, '),
        ({"seed": 1, "sizes": (64, 64)}, 'algo is {"clip": 0.2, '),
    ]:
        message = refusal(tmp_path, config)
        assert message.startswith(f"workdir of another config: {difference}")
        assert str(tmp_path / "config.json") in message
    assert (tmp_path / "config.json").read_bytes() == before
    open_workdir(tmp_path, CONFIG).close()  # a refusal keeps no lock


@pytest.mark.errors
def test_paths_that_cannot_be_a_workdir(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be used" in refusal(tmp_path / "file")
    assert "cannot be used" in refusal(tmp_path / "file" / "below")
    assert "cannot be used" in refusal("/proc/rljax")  # not writable, even for root
    (tmp_path / "dir" / "config.json").mkdir(parents=True)
    assert "cannot be used" in refusal(tmp_path / "dir")
    for content in (b"", b'{"seed": 1', b"\xff\xfe", b"no"):
        (tmp_path / "bad").mkdir(exist_ok=True)
        (tmp_path / "bad" / "config.json").write_bytes(content)
        assert "config.json is not JSON" in refusal(tmp_path / "bad")
        assert (tmp_path / "bad" / "config.json").read_bytes() == content
    (tmp_path / "bad" / "config.json").write_text("3")
    assert "workdir of another config: it is 3 there and {" in refusal(tmp_path / "bad")


@pytest.mark.errors
def test_a_config_without_json_writes_nothing(tmp_path):
    assert "function cannot be written as JSON" in refusal(tmp_path / "x", {"f": refusal})
    assert os.listdir(tmp_path) == []


def run(script, *arguments):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


HOLD = """
import os, sys, time
from rljax.runtime.workdir import open_workdir

workdir = open_workdir(sys.argv[1], {"seed": 0})
child = os.fork()  # like the worker of a process pool, which outlives its killed parent
if child:
    print(child, flush=True)
time.sleep(60)
"""


@pytest.mark.errors
def test_a_second_process_is_refused_and_kill_9_frees_the_lock(tmp_path):
    with run(HOLD, tmp_path) as holder:
        child = int(holder.stdout.readline())
        try:
            assert refusal(tmp_path, {"seed": 0}) == (
                f"workdir {tmp_path} is in use by another process"
            )
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            open_workdir(tmp_path, {"seed": 0}).close()
        finally:
            os.kill(child, signal.SIGKILL)


FULL_DISK = """
import resource, sys
from rljax.runtime.workdir import open_workdir

resource.setrlimit(resource.RLIMIT_FSIZE, (5, resource.RLIM_INFINITY))
try:
    open_workdir(sys.argv[1], {"seed": 0})
except ValueError as error:
    print(error)
"""


def test_a_full_disk_leaves_no_half_config(tmp_path):
    with run(FULL_DISK, tmp_path) as process:
        message = process.stdout.read()
    assert message.startswith(f"workdir {tmp_path} cannot be used: ")
    assert "File too large" in message
    assert message.count("\n") == 1
    assert os.listdir(tmp_path) == [".lock"]
    with open_workdir(tmp_path, {"seed": 1}) as workdir:
        assert not workdir.resumed
