"""Files that are whole or absent, and the examples of this package's docstrings."""

import doctest
import importlib
import os
import pkgutil

import jax.numpy as jnp
import numpy as np
import pytest

import rljax.runtime
from rljax.runtime.files import one_line, to_json, write_atomically


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a"
    write_atomically(path, b"old")
    reader = os.open(path, os.O_RDONLY)
    (tmp_path / ".a.tmp").write_bytes(b"left by a killed process")
    write_atomically(path, b"new content")
    assert os.read(reader, 100) == b"old"  # who has the old one open keeps it
    os.close(reader)
    assert path.read_bytes() == b"new content"
    assert os.listdir(tmp_path) == ["a"]


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", b"x")
    assert os.listdir(tmp_path) == ["folder"]


def test_json_of_arrays_and_its_limits():
    value = {"b": np.arange(2), "a": jnp.float32(0.5), "c": {"path": os.curdir, "n": 2**70}}
    assert to_json(value) == (
        '{\n  "a": 0.5,\n  "b": [\n    0,\n    1\n  ],\n'
        '  "c": {\n    "n": 1180591620717411303424,\n    "path": "."\n  }\n}\n'
    )
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        to_json(object())


def test_one_line_of_any_error():
    assert one_line(ValueError("  first\nsecond")) == "first"
    assert one_line(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    "name", [module.name for module in pkgutil.iter_modules(rljax.runtime.__path__)]
)
def test_docstring_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(f"rljax.runtime.{name}"))
    assert tried > 0
    assert failed == 0
