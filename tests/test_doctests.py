"""The examples in the docstrings run, and every public function of ops and losses has one.

The docstrings are taken from the syntax tree: the type-checking hook wraps functions, and doctest's
own finder takes a wrapped function for an imported one and skips it without a word.
"""

import ast
import doctest
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in ("rljax", "kernels_pallas")
    for path in (ROOT / package).rglob("*.py")
)
DOCUMENTED = [path for path in FILES if path.startswith(("rljax/ops/", "rljax/losses/"))]
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def examples_of(source: str, name: str) -> list[doctest.DocTest]:
    """One test per docstring that has examples; they run in the namespace given at run time."""
    parser, found = doctest.DocTestParser(), []
    for node in ast.walk(ast.parse(source)):
        text = ast.get_docstring(node) if isinstance(node, DEFINITIONS) else None
        if text and ">>>" in text:
            label = f"{name}.{getattr(node, 'name', 'module')}"
            found.append(parser.get_doctest(text, {}, label, name, getattr(node, "lineno", 0)))
    return found


def run_examples(tests: list[doctest.DocTest], namespace: dict) -> list[str]:
    """The reports of those that fail."""
    runner, reports = doctest.DocTestRunner(verbose=False), []
    for test in tests:
        test.globs = dict(namespace)
        runner.run(test, out=reports.append)
    return reports


def undocumented(source: str) -> list[str]:
    """Public functions of a module whose docstring has no example."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and ">>> " not in (ast.get_docstring(node) or "")
    ]


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES)
def test_examples_run(path):
    name = path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name)
    usual = {"jax": jax, "jnp": jnp, "np": np}  # a reader has these, whatever the module imports
    reports = run_examples(examples_of(read(path), name), usual | vars(module))
    assert not reports, "".join(reports)


@pytest.mark.parametrize("path", DOCUMENTED)
def test_public_functions_have_an_example(path):
    assert undocumented(read(path)) == []


def test_wrong_examples_are_found():
    source = '''
def double(x):
    """Twice x.

    >>> double(2)
    5
    """
    return 2 * x

class Box:
    def inside(self):
        """
        >>> unknown
        """
'''
    reports = run_examples(examples_of(source, "sample"), {"double": lambda x: 2 * x})
    assert len(reports) == 2
    assert "Expected:\n    5\nGot:\n    4" in reports[0]
    assert "NameError" in reports[1]


def test_missing_examples_are_found():
    source = '''
def bare(): ...
def worded():
    """No example here."""
def shown():
    """
    >>> 1
    1
    """
def _private(): ...
'''
    assert undocumented(source) == ["bare", "worded"]


def test_the_examples_of_ops_are_seen():
    names = {test.name for path in DOCUMENTED for test in examples_of(read(path), path)}
    assert {"rljax/ops/returns.py.gae", "rljax/ops/masked.py.masked_mean"} <= names
