"""What the README promises: its example runs, its commands and paths exist."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_both_commands_stand_in_the_first_ten_lines():
    head = "\n".join(README.splitlines()[:10])
    assert "make demo" in head
    assert "make test" in head


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def printed_by(example):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})
    return printed.getvalue()


def test_the_library_example_trains():
    assert len(EXAMPLES[0].strip().splitlines()) <= 11  # ten and a blank line
    entropy, returned = re.findall(r"\[([0-9.]+)\]", printed_by(EXAMPLES[0]))
    assert 0 < float(entropy) < 0.7  # below ln 2, that of the first policy
    assert float(returned) > 100  # a random policy gets 22


def test_the_sampler_example_samples():
    printed = printed_by(EXAMPLES[1])
    assert printed.startswith("(2, 4, 16) [[-")


def test_the_kernels_example_gives_a_gradient():
    assert len(EXAMPLES) == 3
    assert printed_by(EXAMPLES[2]) == "(8, 100)\n"


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"experiments/configs/[a-z_0-9]+\.py", README)))
)
def test_every_config_exists(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize(
    "path",
    sorted(set(re.findall(r"`((?:rljax|experiments|kernels_pallas|notebooks)/[\w/.]*)`", README))),
)
def test_the_map_points_to_something(path):
    assert (ROOT / path).exists()
