"""Checkpoints that were flipped, cut, killed or met a full disk are never taken for good ones."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rljax.runtime.checkpoint import Checkpoints, list_steps
from rljax.runtime.manifest import find_damage, write_manifest

ROOT = Path(__file__).parents[2]
TEMPLATE = {"w": np.zeros(50, np.int64), "n": 0, "key": np.zeros(2, np.uint32)}


def state_of(step):
    return {"w": np.arange(50) * step, "n": step, "key": np.full(2, step, np.uint32)}


@pytest.fixture
def two(tmp_path):
    """Checkpoints of steps 1 and 2."""
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state_of(step), {"step": step}, metric=float(step))
    return tmp_path


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def restore(directory, which="latest"):
    """(step, warnings) of what a restore finds."""
    warnings = []
    with Checkpoints(directory, warn=warnings.append) as checkpoints:
        state, metadata = checkpoints.restore(TEMPLATE, which=which)
    expected = state_of(metadata["step"])
    assert state["n"] == expected["n"]
    np.testing.assert_array_equal(state["w"], expected["w"])
    return metadata["step"], warnings


def test_one_flipped_bit_in_any_file_is_refused_and_the_one_before_used(two):
    files = files_of(two / "000000000002")
    assert {"manifest.json", "metadata.json"} < {file.name for file in files}
    assert len(files) > 8  # orbax writes several
    for file in files:
        content = file.read_bytes()
        assert content  # an empty file would have no byte to flip
        at = len(content) // 2
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        for which in ("latest", "best"):
            step, (warning,) = restore(two, which)
            assert step == 1
            name = file.relative_to(two / "000000000002").as_posix()
            assert warning.startswith(f"checkpoint {two}/000000000002 is not used: {name} ")
            assert "\n" not in warning
        file.write_bytes(content)
    assert restore(two) == (2, [])


def test_every_byte_of_the_manifest_and_metadata_counts(two):
    folder = two / "000000000002"
    for name in ("manifest.json", "metadata.json"):
        content = (folder / name).read_bytes()
        for at in range(0, len(content), 5):
            for mask in (0x01, 0x20):  # 0x20 changes the case of letters and makes other blanks
                flipped = bytes([content[at] ^ mask])
                (folder / name).write_bytes(content[:at] + flipped + content[at + 1 :])
                assert name in find_damage(folder), (at, mask)
        (folder / name).write_bytes(content)
    assert find_damage(folder) is None


def test_a_manifest_that_says_the_same_in_other_bytes_is_damaged(two):
    manifest = two / "000000000002" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text())))
    assert find_damage(manifest.parent) == (
        "manifest.json is damaged: it does not match its own SHA-256"
    )


def test_saving_goes_on_beside_a_damaged_checkpoint(two):
    for content in (b"", b"[]", b'{"metric": "high"}', b'{"metric": [1]}'):
        (two / "000000000002" / "metadata.json").write_bytes(content)
        with Checkpoints(two, keep_last=2) as checkpoints:
            checkpoints.save(3, state_of(3), {"step": 3}, metric=0.0)
        assert list_steps(two) == [1, 2, 3]  # 1 has the best metric that can be read
        assert restore(two) == (3, [])


def test_a_swap_of_two_files_is_seen(two):
    first, second = (two / f"00000000000{step}" / "metadata.json" for step in (1, 2))
    first.write_bytes(second.read_bytes())
    assert "metadata.json" in find_damage(first.parent)


def largest(folder):
    return max(files_of(folder / "state"), key=lambda file: file.stat().st_size)


def test_truncated_missing_and_extra_files(two):
    folder, backup = two / "000000000002", two / "backup"
    shutil.copytree(folder, backup)
    name = largest(folder).relative_to(folder)
    size = (folder / name).stat().st_size

    def truncate():
        os.truncate(folder / name, size - 1)
        return f"{name} has {size - 1} bytes, not {size}"

    def empty():
        os.truncate(folder / "manifest.json", 0)
        return "manifest.json is damaged: it cannot be parsed"

    def remove():
        (folder / name).unlink()
        return f"{name} is missing"

    def remove_manifest():
        (folder / "manifest.json").unlink()
        return "manifest.json is missing"

    def add():
        (folder / "state" / "zzz").write_bytes(b"")
        return "state/zzz does not belong to it"

    def not_json():
        (folder / "manifest.json").write_text("[1, 2]\n")
        return "manifest.json is damaged: it cannot be parsed"

    for damage in (truncate, empty, remove, remove_manifest, add, not_json):
        reason = damage()
        assert restore(two) == (1, [f"checkpoint {folder} is not used: {reason}"])
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
    assert restore(two) == (2, [])


def test_what_orbax_cannot_read_is_passed_over_as_well(two):
    """A checkpoint whose manifest is right and whose arrays are not: of another orbax, say."""
    folder = two / "000000000002"
    largest(folder).write_bytes(b"not what orbax expects")
    write_manifest(folder)
    step, (warning,) = restore(two)
    assert step == 1
    assert "orbax cannot read it" in warning
    assert "\n" not in warning


@pytest.mark.errors
def test_when_all_are_damaged_it_says_so_in_one_line(two):
    for step in (1, 2):
        os.truncate(two / f"00000000000{step}" / "metadata.json", 3)
    warnings = []
    with Checkpoints(two, warn=warnings.append) as checkpoints:
        with pytest.raises(
            ValueError, match=r"no usable checkpoint in .*metadata.json has 3 bytes"
        ):
            checkpoints.restore(TEMPLATE)
        assert len(warnings) == 2
    assert list_steps(two) == [1, 2]  # nothing was thrown away


def start(script, *arguments):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


SAVE_FOREVER = """
import sys
import numpy as np
from rljax.runtime.checkpoint import Checkpoints

def state_of(step):
    noise = np.random.default_rng(step)
    return {f"x{i}": noise.standard_normal(3000) for i in range(8)} | {"n": step}

with Checkpoints(sys.argv[1], keep_last=2) as checkpoints:
    restored = checkpoints.restore(state_of(0))
    step = 0 if restored is None else restored[0]["n"]
    while True:
        step += 1
        checkpoints.save(step, state_of(step), {"step": step}, metric=-float(step))
        print(step - 1, flush=True)  # save has waited for the one before
"""


def kill_while_saving(directory, delay):
    """Runs the script, kills it `delay` seconds after its third save; returns its last line."""
    with start(SAVE_FOREVER, directory) as process:
        for _ in range(3):
            assert process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
    assert process.returncode == -signal.SIGKILL
    return int(rest[-1]) if rest else None


def check_after_kill(directory, last_line):
    warnings = []
    template = {f"x{i}": np.zeros(3000) for i in range(8)} | {"n": 0}
    with Checkpoints(directory, warn=warnings.append) as checkpoints:
        state, metadata = checkpoints.restore(template)
        assert checkpoints.restore(template, which="best")[0]["n"] == 1  # its metric is highest
    step = metadata["step"]
    noise = np.random.default_rng(step)
    for i in range(8):
        np.testing.assert_array_equal(state[f"x{i}"], noise.standard_normal(3000))
    assert state["n"] == step
    assert last_line is None or step >= last_line
    assert warnings == []
    assert all(name.isdecimal() for name in os.listdir(directory))  # leftovers are gone
    return step


def test_kill_9_at_a_random_moment_leaves_a_complete_checkpoint(tmp_path):
    delays = np.random.default_rng().uniform(0.0, 0.12, 2)  # a save takes about 0.03 s
    steps = [check_after_kill(tmp_path, kill_while_saving(tmp_path, delay)) for delay in delays]
    assert steps == sorted(set(steps))  # each process went on from the one before


@pytest.mark.slow
def test_kill_9_many_times(tmp_path):
    for delay in np.random.default_rng().uniform(0.0, 0.12, 25):
        check_after_kill(tmp_path, kill_while_saving(tmp_path, delay))


FULL_DISK = """
import os, resource, sys
import numpy as np
from rljax.runtime.checkpoint import Checkpoints

def limit(size):  # no file may grow beyond it: the system refuses the write, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

noise = np.random.default_rng(0).standard_normal(20000)
with Checkpoints(sys.argv[1]) as checkpoints:
    checkpoints.save(1, {"x": noise}, {})
    checkpoints.wait()
    for step, size in [(2, 20000), (3, 100), (4, 0)]:  # the arrays, the metadata, everything
        limit(size)
        checkpoints.save(step, {"x": noise + step}, {})
        try:
            checkpoints.wait()
        except OSError as error:
            print(error, flush=True)
        checkpoints.wait()  # said once
        print(sorted(os.listdir(sys.argv[1])), flush=True)
    checkpoints.save(5, {"x": noise}, {})
    try:
        checkpoints.save(6, {"x": noise}, {})  # raises the error of the save before
    except OSError as error:
        print(error, flush=True)
    limit(resource.RLIM_INFINITY)
    restored, _ = checkpoints.restore({"x": noise})
    assert (restored["x"] == noise).all()
    checkpoints.save(7, {"x": noise}, {})
print(sorted(os.listdir(sys.argv[1])))
"""


def test_a_full_disk_is_an_error_of_the_next_call_and_touches_nothing_else(tmp_path):
    with start(FULL_DISK, tmp_path) as process:
        lines = process.stdout.read().splitlines()
    assert process.returncode == 0
    assert len(lines) == 8, lines
    for line, step in zip(lines[0:6:2], (2, 3, 4)):
        assert line.startswith(f"cannot write checkpoint {tmp_path}/00000000000{step}: ")
        assert "File too large" in line
    assert lines[1:6:2] == ["['000000000001']"] * 3
    assert lines[6].startswith(f"cannot write checkpoint {tmp_path}/000000000005: ")
    assert lines[7] == "['000000000001', '000000000007']"
