"""Runs a notebook in quick mode, and gives back what it shows and what it has computed."""

import json
import os
from pathlib import Path

import nbformat
import numpy as np
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path):
    return nbformat.read(path, as_version=4)


class ThisPython(AsyncKernelManager):
    """With no directory to look in for kernels, jupyter takes the one of the running Python."""

    def __init__(self, **kwargs):
        super().__init__(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), **kwargs)


def execute(name, directory, *variables, **expressions):
    """Runs a notebook in a new kernel.

    Returns its cells, and what the variables and expressions are in the end, {name: float64 array}.
    """
    notebook = read(ROOT / "notebooks" / f"{name}.ipynb")
    expressions = {**{variable: variable for variable in variables}, **expressions}
    wanted = ", ".join(f"{k!r}: np.asarray({code}).tolist()" for k, code in expressions.items())
    report = f"import json\nprint(json.dumps({{{wanted}}}))"
    notebook.cells.append(nbformat.v4.new_code_cell(report))
    client = NotebookClient(
        notebook,
        kernel_manager_class=ThisPython,
        timeout=300,
        resources={"metadata": {"path": str(ROOT)}},
    )
    environment = {
        **os.environ,
        "RLJAX_QUICK": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",  # plots become outputs
        "IPYTHONDIR": str(directory),
        # One device, as for a reader; and programs that run so briefly are not worth optimising.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    client.execute(env=environment)
    *cells, last = notebook.cells
    found = json.loads("".join(output.text for output in last.outputs))
    return cells, {name: np.array(value, np.float64) for name, value in found.items()}


def check_outputs(cells, *, plots):
    """As many plots as the notebook draws, and nothing on stderr, where warnings go."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == plots
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
