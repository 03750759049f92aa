"""What a run needs of its screen: nothing."""

import os
import pty
import re
import sys

import pytest

from .command import checkpoint_steps, finish, quick, start

pytestmark = pytest.mark.slow

NAME = "a2c_line_world"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def assert_complete(workdir) -> None:
    assert checkpoint_steps(workdir)[-1] == 1600
    assert (workdir / "metrics.csv").read_text().count("\n") == 5
    assert (workdir / "curves.png").exists()


def test_a_terminal_shows_the_run_live(cache, tmp_path):
    ours, theirs = pty.openpty()
    process = start(
        quick(NAME, tmp_path), cache=cache, stdout=theirs, extra={"TERM": "xterm", "COLUMNS": "100"}
    )
    os.close(theirs)
    screen = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # so Linux says that the other side has gone
            part = b""
        if not part:
            break
        screen += part
    os.close(ours)
    assert finish(process)[::2] == (0, [])
    text = screen.decode()
    assert "\x1b[?25l" in text  # the cursor is hidden meanwhile
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "\x1b[1A" in text or "\x1b[2K" in text  # lines are drawn over
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "compiling" in plain
    assert "━" in plain
    assert "100%  1,600/1,600 steps" in plain
    assert plain.splitlines()[-1].startswith("final eval/return_mean=")
    assert_complete(tmp_path)


@pytest.mark.parametrize("to", ["2>&1 | head -1", ">&- 2>&-", "> /dev/full"])
def test_a_screen_that_goes_away_ends_nothing(to, cache, tmp_path):
    argv = " ".join(f"'{part}'" for part in quick(NAME, tmp_path / "w"))
    script = f"{sys.executable} -m experiments.run {argv} {to}; exit ${{PIPESTATUS[0]}}"
    process = start([], cache=cache, program=["bash", "-c", script])
    result = finish(process)
    assert result.code == 0, result
    assert result.err == []
    assert len(result.out) == ("head" in to)
    assert_complete(tmp_path / "w")


def test_bad_input_of_a_real_process_is_one_line(cache, tmp_path):
    for override, needed in [("algo.clip=1", "no field 'clip'"), ("seed=-1", "config.seed is -1")]:
        result = finish(start(quick(NAME, tmp_path / "w", override), cache=cache))
        assert (result.code, result.out, len(result.err)) == (2, [], 1), result
        assert needed in result.err[0]
    assert not (tmp_path / "w").exists()
