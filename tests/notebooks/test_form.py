"""Every notebook is committed without outputs, has its takeaways and exercises, and is tested."""

from pathlib import Path

import nbformat
import pytest

from .runner import NOTEBOOKS, read


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_clean(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert path.stat().st_size < 100_000
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_says_what_to_take_away_and_ends_with_exercises(path):
    texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    assert any("> **Takeaway.**" in text for text in texts)
    assert texts[-1].startswith("## Exercises")
    assert texts[-1].count("<details>\n<summary>Answer</summary>\n\n") >= 3
    assert texts[-1].count("<details>") == texts[-1].count("\n\n</details>")


def test_every_notebook_is_executed_by_a_test():
    assert NOTEBOOKS
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*_policy.py"))
    for path in NOTEBOOKS:
        assert f"def test_{path.stem[3:]}(" in tests
        assert f'"{path.stem}",' in tests
