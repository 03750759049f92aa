"""Runs that several tests look at; they copy what they change."""

import pytest

from .command import quick, run_here


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder and the result of a finished run of `a2c_line_world.py:quick`."""
    workdir = tmp_path_factory.mktemp("finished")
    result = run_here(quick("a2c_line_world", workdir))
    assert (result.code, result.err) == (0, [])
    return workdir, result
