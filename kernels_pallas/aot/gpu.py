"""Compiles every GPU kernel for cards that are not here, and reads what the compiler says of it.

Needs the CUDA plugin of JAX and ptxas (`make aot` sets up an environment), but no card. Times
cannot be had this way; spills, registers, temporary memory and the matrix instruction can.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

TARGETS = Path(__file__).parent / "targets"
CARDS = ("a100", "h100", "h200", "b200")
INSTRUCTIONS = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
NUM_ROWS, WIDTH, VOCABULARY = 4096, 4096, 151936


class Program(NamedTuple):
    """One thing to compile."""

    kernel: str
    direction: str  # forward or backward
    dtype: str
    variant: str  # "[D,V]", "[V,D]"; with "options" (mask, bias, softcap, ragged), "rows split"

    def name(self) -> str:
        return " ".join(part for part in self if part)


def programs() -> list[Program]:
    split = "[V,D] rows split"  # over two cards, by shard_map
    kernels = "linear_token_stats", "linear_kl"
    listed = [Program(kernel, "forward", "bfloat16", split) for kernel in kernels]
    for direction in ("forward", "backward"):
        for variant in ("[D,V]", "[V,D]", "[D,V] options", "[V,D] options"):
            listed.append(Program("linear_token_stats", direction, "bfloat16", variant))
        listed.append(Program("linear_token_stats", direction, "float32", "[D,V]"))
        listed.append(Program("linear_token_stats", direction, "float32", "[V,D] options"))
        for dtype in ("bfloat16", "float32"):
            listed.append(Program("linear_kl", direction, dtype, "[D,V]"))
            listed.append(Program("linear_kl", direction, dtype, "[V,D]"))
            listed.append(Program("token_stats", direction, dtype, ""))
            listed.append(Program("categorical_kl", direction, dtype, ""))
    return listed


def ptxas() -> str | None:
    """Its path: of the compiler wheels of this environment, or of the system."""
    spec = find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        if (file := Path(folder) / "cu13" / "bin" / "ptxas").is_file():
            return str(file)
    return shutil.which("ptxas")


def available() -> bool:
    """Whether kernels can be compiled for cards here."""
    return ptxas() is not None and find_spec("jax_cuda13_plugin") is not None


def rows(only: str = "") -> Iterator[dict[str, Any]]:
    """One row per card and kernel of each program whose "card program" matches `only`.

    Compilers are told where to leave their output before they load, and Mosaic GPU assembles for
    the first card that a process compiles for: a process for each card.
    """
    for card in CARDS:
        with tempfile.TemporaryDirectory() as folder:
            error = yield from _rows_of(card, only, folder)
        if error:
            yield {"card": card, "program": "", "error": error}
            return


def _rows_of(card: str, only: str, folder: str) -> Generator[dict[str, Any], None, str]:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERNELS_PALLAS_BLOCKS": os.devnull,  # the heuristic's blocks, not what was measured
        "XLA_FLAGS": f"--xla_gpu_autotune_level=0 --xla_dump_to={folder}/xla "
        "--xla_dump_emitter_re=^[^tm].*",  # ptx; logs of MLIR passes take twenty times as long
        "MOSAIC_GPU_DUMP_TO": f"{folder}/mosaic",
        "MOSAIC_GPU_DUMP_PTX": "1",
    }
    command = [sys.executable, "-m", "kernels_pallas.aot.gpu", folder, card, only]
    said = Path(folder) / "stderr"  # among it complaints about tools that nobody needs
    with (
        said.open("w") as stderr,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if not process.returncode:
        return ""
    last = (said.read_text().strip().splitlines() or [""])[-1]
    return f"status {process.returncode}: {last}"


def _inputs(program: Program) -> tuple[Any, tuple[Any, ...]]:
    """The function and the shapes of its arguments."""
    import jax
    import jax.numpy as jnp

    from kernels_pallas.records import KLStatic, KLStats, Static

    def shape(*sizes: int, dtype: Any = program.dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    options, transposed = "options" in program.variant, "[V,D]" in program.variant
    n, d, v = NUM_ROWS, WIDTH, VOCABULARY
    if options:  # ragged; [V,D] as far as the tiles of Mosaic allow
        n, d, v = NUM_ROWS - 96, WIDTH - 64, 50264 if transposed else 50257
    vector: Any = shape(n, dtype=jnp.float32)
    scalar = shape(dtype=jnp.float32)
    tokens = shape(n, dtype=jnp.int32)
    hidden, unembedding = shape(n, d), shape(v, d) if transposed else shape(d, v)
    module = import_module(f"kernels_pallas.{program.kernel}.pallas_gpu")
    function = getattr(module, program.direction)
    backward = program.direction == "backward"
    if program.kernel in ("linear_token_stats", "token_stats"):
        static = Static(transposed, 30.0 if options else None, True, None, False)
        if program.kernel == "token_stats":
            arguments = (shape(n, v), tokens, scalar)
        else:
            mask, bias = shape(n, dtype=jnp.bool_), shape(v, dtype=jnp.float32)
            optional = (mask, bias) if options else (None, None)
            arguments = (hidden, unembedding, tokens, *optional, scalar)
        arguments += (vector,) * 5 if backward else ()
    else:
        if program.kernel == "linear_kl":
            static: Any = KLStatic(transposed, transposed, None, False)
            arguments = ((hidden, unembedding),) * 2
        else:
            static = KLStatic(False, False, None, False)
            arguments = (shape(n, v), shape(n, v))
        arguments += (KLStats(*(vector,) * 5), vector) if backward else ()
    return lambda *arguments: function(*arguments, static), arguments


def _compile(program: Program, card: str) -> Any:
    import jax
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    split = "rows split" in program.variant
    cards = 2 if split else 1
    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name=card,
        target_config=(TARGETS / f"{card}.txtpb").read_text(),
        topology=f"1x1x{cards}",
    )
    mesh = topologies.make_mesh(topology, (cards,), ("x",))
    function, arguments = _inputs(program)
    rows, whole = PartitionSpec("x"), PartitionSpec()
    specs = jax.tree.map(
        lambda x: rows if split and x.shape[:1] == (NUM_ROWS,) else whole, arguments
    )
    if split:
        function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=rows)
    arguments = jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)),
        arguments,
        specs,
    )
    # The abstract mesh tells the kernels which card they are traced for.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return jax.jit(function).lower(*arguments).compile()


class Entry(NamedTuple):
    """What ptxas says of one kernel."""

    name: str
    registers: int
    spilled: int  # bytes stored and loaded again
    instruction: str


def read_ptx(text: str) -> list[Entry]:
    """Assembles the file once more, verbosely. Fusions of XLA itself are left out."""
    target = re.search(r"\.target\s+(\w+)", text)
    assert target is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        command = [ptxas() or "ptxas", "-v", f"-arch={target[1]}", file.name, "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    bodies = re.split(r"\.entry\s+", text)[1:]
    entries = []
    for part in re.split(r"Compiling entry function '", said)[1:]:
        name = part.split("'")[0]
        if re.search("fusion|^wrapped_|^sort_", name):
            continue
        body = next(body for body in bodies if re.match(rf"{re.escape(name)}\b", body))
        spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", part))
        registers = re.search(r"Used (\d+) registers", part)
        used = next((name for name in INSTRUCTIONS if name in body), "")
        entries.append(Entry(name, int(registers[1]) if registers else 0, spilled, used))
    return entries


def _main(folder: str, card: str, only: str) -> None:
    dumps = Path(folder)
    (dumps / "mosaic").mkdir(exist_ok=True)
    for program in programs():
        if not re.search(only, f"{card} {program.name()}"):
            continue
        for file in dumps.rglob("*.ptx"):  # of the program before
            file.unlink()
        row: dict[str, Any] = {"card": card, "program": program.name()}
        try:
            memory = _compile(program, card).memory_analysis()
        except Exception as error:
            print(json.dumps(row | {"error": str(error).strip().splitlines()[0]}), flush=True)
            continue
        row |= {
            "temp_bytes": memory.temp_size_in_bytes,
            "peak_bytes": memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            + memory.temp_size_in_bytes
            - memory.alias_size_in_bytes,
        }
        files = sorted(dumps.rglob("*.ptx"))
        for entry in (entry for file in files for entry in read_ptx(file.read_text())):
            print(json.dumps(row | entry._asdict()), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
