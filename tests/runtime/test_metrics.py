"""metrics.csv resumes to the byte, and its numbers come back as they were."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from rljax.runtime.metrics import MetricsWriter, read_metrics

ROOT = Path(__file__).parents[2]
COLUMNS = ["episode/return_mean", "loss/policy"]
HEADER = b"step,episode/return_mean,loss/policy\n"


def read_events(workdir):
    """Every event of every file, in the order in which TensorBoard reads them.

    A record is its length (8 bytes), a checksum (4), the event, a checksum (4).
    """
    events = []
    for file in sorted((workdir / "tensorboard").iterdir()):
        data = file.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            events.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return events


def test_rows_cells_and_positions(tmp_path):
    with MetricsWriter(tmp_path, COLUMNS) as metrics:
        assert metrics.flush() == len(HEADER)
        metrics.write(2048, {"loss/policy": 0.1, "episode/return_mean": None})
        row = b"2048,,0.1\n"
        assert metrics.flush() == len(HEADER) + len(row)
        metrics.write(2**31 + 1, {"episode/return_mean": np.float32(0.1)})
        metrics.write(3, {"loss/policy": float("nan"), "episode/return_mean": float("-inf")})
        metrics.write(4, {})
        metrics.write(5, {"loss/policy": jnp.float32(-2.0), "episode/return_mean": 7})
    # The float32 nearest to 0.1 is 13421773 / 2^27 = 0.100000001490116119384765625.
    assert (tmp_path / "metrics.csv").read_bytes() == (
        HEADER + row + b"2147483649,0.10000000149011612,\n3,-inf,nan\n4,,\n5,7.0,-2.0\n"
    )


def test_numbers_come_back_exactly(tmp_path):
    values = [1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 2**53 + 2.0, np.inf, np.nan]
    with MetricsWriter(tmp_path, ["x", "y"]) as metrics:
        for step, value in enumerate(values):
            metrics.write(step * 2**31, {"x": value})
    read = read_metrics(tmp_path / "metrics.csv")
    assert list(read) == ["step", "x", "y"]
    assert read["step"].dtype == np.int64
    assert read["step"].tolist() == [i * 2**31 for i in range(7)]
    np.testing.assert_array_equal(read["x"], values)
    assert np.signbit(read["x"][3])
    assert np.isnan(read["y"]).all()


def test_no_rows_and_a_row_in_the_making(tmp_path):
    with MetricsWriter(tmp_path, COLUMNS):
        pass
    empty = read_metrics(tmp_path / "metrics.csv")
    assert {name: column.shape for name, column in empty.items()} == {
        "step": (0,),
        "episode/return_mean": (0,),
        "loss/policy": (0,),
    }
    (tmp_path / "metrics.csv").write_bytes(HEADER + b"1,2.0,3.0\n2,4.0,5")  # 5, or 5.123?
    assert read_metrics(tmp_path / "metrics.csv")["loss/policy"].tolist() == [3.0]


def fill(metrics, steps):
    for step in steps:
        metrics.write(step, {"loss/policy": step / 7, "episode/return_mean": step * 1.5})


def test_a_resumed_file_equals_the_uninterrupted_one(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with MetricsWriter(tmp_path / "a", COLUMNS) as metrics:
        fill(metrics, range(10))
    with MetricsWriter(tmp_path / "b", COLUMNS) as metrics:
        fill(metrics, range(4))
        position = metrics.flush()  # the checkpoint of step 3
        fill(metrics, range(4, 9))  # lost with the process
    for _ in range(2):  # killed again before it had saved
        with MetricsWriter(tmp_path / "b", COLUMNS, position=position, step=3) as metrics:
            assert metrics.flush() == position
            fill(metrics, range(4, 6))
    with MetricsWriter(tmp_path / "b", COLUMNS, position=position, step=3) as metrics:
        fill(metrics, range(4, 10))
    a, b = (tmp_path / name / "metrics.csv" for name in "ab")
    assert a.read_bytes() == b.read_bytes()


def test_without_position_everything_starts_anew(tmp_path):
    for steps in (range(5), range(2)):
        with MetricsWriter(tmp_path, COLUMNS) as metrics:
            fill(metrics, steps)
    assert read_metrics(tmp_path / "metrics.csv")["step"].tolist() == [0, 1]
    assert [event.step for event in read_events(tmp_path) if event.summary.value] == [0, 1]


def test_tensorboard_events_and_what_a_resume_hides(tmp_path):
    with MetricsWriter(tmp_path, COLUMNS) as metrics:
        fill(metrics, (10, 20, 2**31))
        metrics.write(2**31 + 1, {"loss/policy": None})
        position = metrics.flush()
    with MetricsWriter(tmp_path, COLUMNS, position=position, step=20) as metrics:
        fill(metrics, (30,))  # in the same second: another file all the same
    files = sorted(file.name for file in (tmp_path / "tensorboard").iterdir())
    assert len(files) == 2
    assert all(name.startswith("events.out.tfevents.") for name in files)
    seen = []
    for event in read_events(tmp_path):
        if event.session_log.status == SessionLog.START:
            seen.append(("from here on anew", event.step))
        for value in event.summary.value:
            seen.append((event.step, value.tag, round(value.simple_value, 4)))
    assert sorted(seen[:6], key=str) == sorted(
        [
            (10, "loss/policy", 1.4286),  # 10 / 7
            (10, "episode/return_mean", 15.0),
            (20, "loss/policy", 2.8571),
            (20, "episode/return_mean", 30.0),
            (2**31, "loss/policy", 306783392.0),  # 2^31 / 7 = 306783378.29, to float32's 32
            (2**31, "episode/return_mean", 3221225472.0),
        ],
        key=str,
    )
    # TensorBoard forgets everything from the step of a START on, so 20 itself stays.
    assert seen[6] == ("from here on anew", 21)
    assert {step for step, *_ in seen[7:]} == {30}


@pytest.mark.errors
def test_bad_names(tmp_path):
    for columns in (["a", "a"], ["step"], [""], ["a,b"], ['a"'], ["a\nb"]):
        with pytest.raises(ValueError, match="metrics cannot have a column"):
            MetricsWriter(tmp_path, columns)
    assert os.listdir(tmp_path) == []
    with MetricsWriter(tmp_path, COLUMNS) as metrics:
        with pytest.raises(ValueError, match=r"no column 'loss/valeu' in .*it has \('episode/ret"):
            metrics.write(1, {"loss/policy": 1.0, "loss/valeu": 2.0})
        assert metrics.flush() == len(HEADER)


@pytest.mark.errors
def test_a_file_that_is_not_the_checkpoints_is_left_as_it_is(tmp_path):
    with MetricsWriter(tmp_path, COLUMNS) as metrics:
        fill(metrics, range(3))
        position = metrics.flush()
    content = metrics.path.read_bytes()

    def refused(columns, position, message):
        with pytest.raises(ValueError, match=message) as caught:
            MetricsWriter(tmp_path, columns, position=position)
        assert "\n" not in str(caught.value)
        assert metrics.path.read_bytes() == content

    refused(COLUMNS, position + 1, f"has {position} bytes; .* at byte {position + 1}")
    refused(COLUMNS[::-1], position, "starts with 'step,episode/return_mean,loss/policy', not")
    refused([*COLUMNS, "more"], position, "starts with")
    refused(COLUMNS[:1], position, "starts with")
    refused(COLUMNS, position - 1, "no row ends at byte")
    refused(COLUMNS, 0, "no row ends at byte 0")
    content = None
    metrics.path.unlink()
    with pytest.raises(ValueError, match="is missing; the checkpoint goes on at byte"):
        MetricsWriter(tmp_path, COLUMNS, position=position)


FULL_DISK = """
import resource, sys
from rljax.runtime.metrics import MetricsWriter

metrics = MetricsWriter(sys.argv[1], ["x"])
metrics.write(1, {"x": 1.0})
position = metrics.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (position + 3, resource.RLIM_INFINITY))
try:
    with metrics:
        metrics.write(2, {"x": 2.0})
except OSError as error:
    print("refused", error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with MetricsWriter(sys.argv[1], ["x"], position=position, step=1) as metrics:
    metrics.write(2, {"x": 3.0})
"""


def test_a_full_disk_raises_at_once_and_the_resumed_file_is_whole(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,  # a writer with a thread of its own would wait for good
    )
    assert (done.returncode, done.stdout) == (0, "refused File too large\n"), done.stderr
    assert (tmp_path / "metrics.csv").read_bytes() == b"step,x\n1,1.0\n2,3.0\n"
