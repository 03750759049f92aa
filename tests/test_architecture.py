"""Who may import whom, and who may touch the outside world.

`violations` reads the syntax trees of all files. It is itself tried on small wrong snippets, so
that it cannot pass because it sees nothing.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("rljax", "kernels_pallas", "experiments")

# Imports point to lower layers only; packages of one layer do not import each other.
LAYERS = {
    "types": 0,
    "sharding": 1,
    "ops": 1,
    "losses": 2,
    "nets": 2,
    "envs": 2,
    "data": 2,
    "llm": 3,
    "algos": 3,
    "loops": 4,
    "runtime": 5,
}
# Lower, and forbidden all the same.
FORBIDDEN = {
    "losses": {"sharding"},  # arrays in, numbers out
    "algos": {"envs"},  # an algorithm sees a specification, not a simulator
    "loops": {"losses"},  # a loop knows no algorithm
}
# What only some places may import; a place is a package of rljax or the path of a file.
OUTSIDE = [
    ("Flax", {"flax"}, {"nets"}),
    ("the kernels", {"kernels_pallas"}, {"ops"}),
    (
        "a clock or a printer",
        {"time", "datetime", "timeit", "logging", "absl.logging", "rich", "tqdm", "pprint"},
        {"runtime"},
    ),
    (
        "processes",
        {"multiprocessing", "concurrent", "subprocess", "threading", "asyncio"},
        {"runtime", "rljax/envs/workers.py"},  # which gives simulators a core each
    ),
    (
        "files",
        {"os", "io", "pathlib", "shutil", "tempfile", "glob", "pickle", "orbax", "tensorboardX"},
        {"runtime", "envs", "data"}
        | {f"rljax/llm/{name}.py" for name in ("load", "tokenizer", "safetensors_file")}
        | {f"rljax/llm/{name}.py" for name in ("gguf_file", "gguf_reader")},
    ),
    ("simulators", {"gymnasium", "mujoco"}, {"runtime", "envs"}),
]
PRINTERS = {"print", "input", "breakpoint", "jax.debug.print", "debug.print", "sys.stdout.write"}
PRINTERS |= {"sys.stderr.write"}


def module_of(path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def dotted(node: ast.AST) -> str:
    """`a.b.c` for the expression a.b.c, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (value := dotted(node.value)):
        return f"{value}.{node.attr}"
    return ""


def constant_start(node: ast.AST) -> str:
    """The text of a string, or the part of an f-string before its first placeholder."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value.rstrip(".") if is_text else ""


def imports_of(path: str, source: str) -> list[tuple[int, str]]:
    """(line, dotted name) of everything imported, wherever it stands; `from a import b` is a.b."""
    found = []
    package = module_of(path).split(".")
    package = package if path.endswith("__init__.py") else package[:-1]
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *([node.module] if node.module else [])]
            found += [(node.lineno, ".".join([*base, alias.name])) for alias in node.names]
        elif isinstance(node, ast.Call) and node.args:
            called = dotted(node.func).rsplit(".", 1)[-1]
            if called in ("import_module", "__import__") and constant_start(node.args[0]):
                found.append((node.lineno, constant_start(node.args[0])))
    return found


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def layer_faults(path: str, name: str) -> list[str]:
    """What is wrong with a file of rljax that imports `name` from the project."""
    own, other = module_of(path).split(".")[1:2], name.split(".")[1:2]
    if is_within(name, "experiments") or is_within(name, "tests"):
        return ["the library does not import its users"]
    if not is_within(name, "rljax") or not own or own == other or name.startswith("rljax.__"):
        return []
    if not other or other[0] not in LAYERS:
        return ["import a module of a known layer"]
    if own[0] not in LAYERS:
        return [f"{own[0]} has no layer"]
    if LAYERS[other[0]] >= LAYERS[own[0]] or other[0] in FORBIDDEN.get(own[0], ()):
        return [f"{own[0]} must not import {other[0]}"]
    return []


def outside_faults(path: str, name: str) -> list[str]:
    package = (module_of(path).split(".")[1:2] or [""])[0]
    return [
        f"only {', '.join(sorted(places))} may import {what}"
        for what, modules, places in OUTSIDE
        if any(is_within(name, module) for module in modules) and not places & {package, path}
    ]


def effects_of(path: str, source: str) -> list[tuple[int, str]]:
    """Calls that print, and files opened where none may be."""
    reads_files = next(places for what, _, places in OUTSIDE if what == "files")
    package = (module_of(path).split(".")[1:2] or [""])[0]
    found = []
    for node in ast.walk(ast.parse(source, path)):
        called = dotted(node.func) if isinstance(node, ast.Call) else ""
        if called in PRINTERS and package != "runtime":
            found.append((node.lineno, f"only runtime may call {called}"))
        if called == "open" and not reads_files & {package, path}:
            found.append((node.lineno, "open is for those who may import files"))
    return found


def cycles(files: dict[str, str]) -> list[str]:
    modules = {module_of(path) for path in files}

    def target(name):  # the longest start of a.b.c that is a file
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name

    graph = {
        module_of(path): {target(name) for _, name in imports_of(path, source)} - {""}
        for path, source in files.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return ["import cycle: " + " -> ".join(error.args[1])]
    return []


def violations(files: dict[str, str]) -> list[str]:
    """What is wrong in a project, given as {path: source}."""
    found = []
    for path, source in files.items():
        root, faults = path.split("/")[0], []
        for line, name in imports_of(path, source):
            if root == "rljax":
                messages = layer_faults(path, name) + outside_faults(path, name)
            elif is_within(name, "flax"):
                messages = ["only nets may import Flax"]
            elif root == "kernels_pallas" and name.split(".")[0] in ("rljax", "experiments"):
                messages = ["the kernels import nothing of the project"]
            else:
                messages = []
            faults += [(line, f"{name}: {message}") for message in messages]
        if root == "rljax":
            faults += effects_of(path, source)
        found += [f"{path}:{line}: {message}" for line, message in faults]
    return found + cycles(files)


def project() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def test_the_project_keeps_its_rules():
    assert violations(project()) == []


def test_every_file_of_the_library_has_a_layer():
    homes = {path.split("/")[1].removesuffix(".py") for path in project() if "rljax/" in path}
    assert homes - {"__init__"} <= LAYERS.keys()
    assert {"types", "sharding", "ops", "losses", "nets", "envs", "algos", "loops"} <= homes


def test_the_checker_sees_the_imports_of_the_project():
    files = project()
    seen = {name for _, name in imports_of("rljax/ops/groups.py", files["rljax/ops/groups.py"])}
    assert {"jax.numpy", "rljax.ops.masked.masked_centre"} <= seen
    # Moved to a lower layer, the same file is wrong.
    assert violations({"rljax/types.py": files["rljax/ops/groups.py"]})


WRONG = [
    ("rljax/ops/a.py", "from rljax.losses import ppo", "ops must not import losses"),
    ("rljax/ops/a.py", "from rljax.losses.ppo import ppo_loss", "ops must not import losses"),
    ("rljax/ops/a.py", "import rljax.nets.mlp as m", "ops must not import nets"),
    ("rljax/ops/a.py", "import rljax.sharding", "ops must not import sharding"),
    ("rljax/types.py", "from rljax.ops import masked", "types must not import ops"),
    ("rljax/losses/a.py", "from rljax.nets import heads", "losses must not import nets"),
    ("rljax/losses/a.py", "from rljax import sharding", "losses must not import sharding"),
    ("rljax/data/a.py", "from rljax.envs import vector", "data must not import envs"),
    ("rljax/llm/a.py", "import rljax.algos.ppo", "llm must not import algos"),
    ("rljax/algos/a.py", "from rljax.envs.cartpole import make", "algos must not import envs"),
    ("rljax/algos/a.py", "from rljax.loops import on_policy", "algos must not import loops"),
    ("rljax/loops/a.py", "from rljax.losses import ppo", "loops must not import losses"),
    ("rljax/loops/a.py", "from rljax.runtime import plots", "loops must not import runtime"),
    ("rljax/algos/a.py", "from ..envs import cartpole", "algos must not import envs"),
    ("rljax/algos/__init__.py", "from ..loops import x", "algos must not import loops"),
    ("rljax/loops/a.py", "def f():\n    import rljax.losses.ppo", "loops must not import losses"),
    ("rljax/loops/a.py", "if TYPE_CHECKING:\n    import rljax.losses", "must not import losses"),
    ("rljax/loops/a.py", 'importlib.import_module("rljax.losses.ppo")', "must not import losses"),
    ("rljax/ops/a.py", 'import_module(f"rljax.algos.{name}")', "ops must not import algos"),
    ("rljax/ops/a.py", "import rljax", "known layer"),
    ("rljax/ops/a.py", "from rljax.utils import x", "known layer"),
    ("rljax/utils/a.py", "from rljax.ops import masked", "utils has no layer"),
    ("rljax/runtime/a.py", "import experiments.run", "does not import its users"),
    ("rljax/algos/a.py", "from flax import nnx", "only nets may import Flax"),
    ("rljax/runtime/a.py", "import flax.serialization", "only nets may import Flax"),
    ("experiments/run.py", "from flax import nnx", "only nets may import Flax"),
    ("rljax/losses/a.py", "import kernels_pallas", "only ops may import the kernels"),
    ("rljax/algos/a.py", "from kernels_pallas.x import y", "only ops may import the kernels"),
    ("kernels_pallas/k/api.py", "from rljax.types import Array", "nothing of the project"),
    ("kernels_pallas/k/api.py", "from flax import nnx", "only nets may import Flax"),
    ("rljax/loops/a.py", "import time", "only runtime may import a clock"),
    ("rljax/algos/a.py", "from time import perf_counter", "only runtime may import a clock"),
    ("rljax/algos/a.py", "from absl import logging", "only runtime may import a clock"),
    ("rljax/llm/rewards.py", "from concurrent.futures import x", "may import processes"),
    ("rljax/envs/a.py", "import threading", "may import processes"),
    ("rljax/loops/a.py", "print('step')", "only runtime may call print"),
    ("rljax/ops/a.py", "def f(x):\n    jax.debug.print('{x}', x=x)", "may call jax.debug.print"),
    ("rljax/nets/a.py", "import sys\nsys.stderr.write('x')", "may call sys.stderr.write"),
    ("rljax/loops/a.py", "with open('x') as f: pass", "open is for those who may"),
    ("rljax/loops/a.py", "import os.path", "may import files"),
    ("rljax/llm/cache.py", "from pathlib import Path", "may import files"),
    ("rljax/data/a.py", "import gymnasium as gym", "may import simulators"),
]


@pytest.mark.parametrize(("path", "source", "message"), WRONG)
def test_wrong_files_are_found(path, source, message):
    found = violations({path: source})
    assert len(found) == 1, found
    assert message in found[0]
    assert found[0].startswith(f"{path}:{source.count(chr(10)) + 1}: ")


def test_cycles_are_found():
    a, b = "from rljax.ops import b", "def late():\n    from rljax.ops.a import x"
    assert violations({"rljax/ops/a.py": a, "rljax/ops/b.py": b}) == [
        "import cycle: rljax.ops.a -> rljax.ops.b -> rljax.ops.a"
    ]
    package = {
        "rljax/nets/__init__.py": "from .mlp import MLP",
        "rljax/nets/mlp.py": "from . import x",
    }
    assert "import cycle" in violations(package)[0]
    kernels = {
        "kernels_pallas/k/a.py": "from .b import x",
        "kernels_pallas/k/b.py": "from . import a",
    }
    assert "import cycle" in violations(kernels)[0]


def test_right_files_are_left_alone():
    files = {
        "rljax/__init__.py": '"""rljax"""',
        "rljax/types.py": "import jax\nfrom typing import NamedTuple",
        "rljax/ops/__init__.py": "",
        "rljax/ops/checks.py": "import jax.numpy as jnp\ntimes = 3",
        "rljax/ops/log_probs.py": "from kernels_pallas.k import api\nfrom .checks import times",
        "rljax/losses/ppo.py": "from rljax.ops.checks import times\nfrom rljax.types import Array",
        "rljax/nets/mlp.py": "from flax import nnx\nimport rljax.sharding",
        "rljax/envs/gym.py": "import gymnasium\nimport os\nopen('x')",
        "rljax/llm/load.py": "import pathlib\nopen('x')\nfrom rljax.nets import mlp",
        "rljax/algos/ppo.py": "from rljax.losses import ppo\nfrom rljax.data import rollout",
        "rljax/loops/on_policy.py": "from rljax.algos import ppo\nfrom rljax import envs",
        "rljax/runtime/progress.py": "import time, rich\nimport os\nprint(time.time())",
        "experiments/run.py": "import time\nimport rljax.runtime.progress\nprint('x')\n"
        'import_module(f"rljax.algos.{name}")',
        "kernels_pallas/k/__init__.py": "from kernels_pallas.k.api import f",
        "kernels_pallas/k/api.py": "import jax",
        "kernels_pallas/k/bench.py": "import time\nprint(time.perf_counter())",
    }
    assert violations(files) == []
