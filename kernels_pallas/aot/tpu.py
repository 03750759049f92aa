"""Compiles every TPU kernel for chips that are not here, and reads what the compiler says of it.

Needs libtpu (`make aot` sets up an environment), but no TPU. `cycles` are those of the final
schedule, of all kernels of a program; `ratio` divides them by those of a plain Pallas matmul of
[N, D] · [D, V] in the same dtype by the same compiler, once per 2NDV flops of the program, and
`utilisation` is the share of these cycles that the matrix units would need at their peak.
The schedule knows nothing of waiting for memory, and counts code at the edges in every step.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CHIPS = {  # topology of one chip (v4, v5p: the smallest there is), name of the device
    "v4": ("v4:2x2x1", "TPU v4"),
    "v5e": ("v5e:1x1", "TPU v5 lite"),
    "v5p": ("v5p:2x2x1", "TPU v5p"),
    "v6e": ("v6e:1x1", "TPU v6 lite"),
    "tpu7x": ("tpu7x:1x1x1", "TPU7x"),
}
TWO_CHIPS = {name: place for name, (place, _) in CHIPS.items()} | {
    "v5e": "v5e:2x2",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}
# Of bfloat16: matrix units, their width squared, 2; v5p by both cores, which share the grid.
FLOPS_PER_CYCLE = {
    "v4": 2**17,
    "v5e": 2**17,
    "v5p": 2**18,
    "v6e": 2**19,
    "tpu7x": 2**19,
}
SHARDED = "linear_token_stats forward, vocabulary over two chips"
RATIOS = Path(__file__).parent / "ratios.json"
MEMORY_LIMIT = 16 * 2**30  # of address space: a schedule of a large program can take all there is


def available() -> bool:
    return find_spec("libtpu") is not None


def is_profiled(chip: str, program: Any) -> bool:
    """Not v4, which the profiler does not know; not tpu7x, some kernels of which end it.

    Nor does it know the tables that a grid over masked rows reads ahead, and D = 8192 takes it
    minutes.
    """
    known = chip not in ("v4", "tpu7x") and program.variant != "options"
    return known and program.shape[1] < 8192


def rows(only: str = "", chips: tuple[str, ...] = tuple(CHIPS)) -> Iterator[dict[str, Any]]:
    """One row per program and chip whose "chip program" matches the expression `only`.

    libtpu reads its flags when it loads: each chip has a process of its own, and programs that the
    profiler cannot follow another one. What kills a process is a row with an error too.
    """
    from kernels_pallas.aot.tpu_programs import programs

    for chip in chips:
        chosen = [each for each in programs() if re.search(only, f"{chip} {each.name()}")]
        for profiled in {is_profiled(chip, each) for each in chosen}:
            yield from _rows_of_process(chip, only, profiled)
        if re.search(only, f"{chip} {SHARDED}"):
            yield from _rows_of_process(chip, SHARDED, False)


def _rows_of_process(chip: str, only: str, profiled: bool) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "KERNELS_PALLAS_BLOCKS": os.devnull,  # the heuristic's blocks, not what was measured
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # these three only silence warnings
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
        }
        if profiled:
            flag = f"--xla_jf_dump_static_llo_profile_to={folder}"
            environment["LIBTPU_INIT_ARGS"] = flag
        command = [sys.executable, "-m", "kernels_pallas.aot.tpu", chip, only]
        command += [folder] if profiled else []
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            said, complaint = process.communicate()
        yield from (json.loads(line) for line in said.splitlines())
        if process.returncode:
            lines = complaint.strip().splitlines() or [""]
            line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
            error = f"compiling ended with {process.returncode}: {line}"
            yield {"chip": chip, "program": only, "error": error}


def compile_for(chip: str, function: Any, arguments: Any) -> Any:
    """The compiled function; arguments are shapes."""
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    device = topologies.get_topology_desc(CHIPS[chip][0], platform="tpu").devices[0]
    place = SingleDeviceSharding(device)
    arguments = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), arguments
    )
    return with_chip(chip, lambda: jax.jit(function).lower(*arguments).compile())


def with_chip(chip: str, body: Any) -> Any:
    """body(), where kernels are told by an abstract mesh which chip they are traced for."""
    import jax
    from jax.sharding import AbstractDevice, AbstractMesh

    device = AbstractDevice(CHIPS[chip][1], 1, "tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)):
        return body()


def read_cycles(folder: Path) -> int:
    """The sum over kernels whose profiles lie there, which are removed."""
    cycles = 0
    for file in folder.glob("*"):
        cycles += sum(int(n) for n in re.findall(r"estimated_cycles: (\d+)", file.read_text()))
        file.unlink()
    return cycles


def _row(chip: str, program: Any, profiles: Path | None) -> dict[str, Any]:
    row: dict[str, Any] = {"chip": chip, "program": program.name()}
    if profiles:
        read_cycles(profiles)
    try:
        if reason := with_chip(chip, program.unsupported):
            return row | {"unsupported": reason}
        memory = compile_for(chip, *program.build()).memory_analysis()
    except Exception as error:
        return row | {"error": str(error).strip().splitlines()[0]}
    row |= {"temporary": memory.temp_size_in_bytes, "peak": memory.peak_memory_in_bytes}
    return row | ({"cycles": read_cycles(profiles)} if profiles else {})


def _sharded_row(chip: str) -> dict[str, Any]:
    """The public function with the vocabulary over two chips: what they send each other."""
    import jax
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    from kernels_pallas import linear_token_stats

    num, width, size = 1024, 512, 4096
    topology = topologies.get_topology_desc(TWO_CHIPS[chip], platform="tpu")
    mesh = jax.sharding.Mesh(topology.devices[:2], ("vocabulary",))
    specs = (PartitionSpec(), PartitionSpec(None, "vocabulary"), PartitionSpec())
    shapes = (((num, width), "bfloat16"), ((width, size), "bfloat16"), ((num,), "int32"))
    arguments = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for (shape, dtype), spec in zip(shapes, specs)
    ]

    def stats(*arguments: Any) -> Any:
        return linear_token_stats(*arguments, vocab_axis="vocabulary", implementation="pallas_tpu")

    function = jax.shard_map(stats, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
    row: dict[str, Any] = {"chip": chip, "program": SHARDED}
    try:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            compiled: Any = jax.jit(function).lower(*arguments).compile()
    except Exception as error:
        return row | {"error": str(error).strip().splitlines()[0]}
    text, memory = compiled.as_text(), compiled.memory_analysis()
    sent = {
        name: len(re.findall(rf" {name}(?:-start)?\(", text))
        for name in ("all-reduce", "all-gather", "collective-permute", "all-to-all")
    }
    return row | {
        "temporary": memory.temp_size_in_bytes,
        "peak": memory.peak_memory_in_bytes,
        "sent": {name: count for name, count in sent.items() if count},
    }


def _main(chip: str, only: str, folder: str = "") -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if not 0 <= most <= MEMORY_LIMIT:  # RLIM_INFINITY is negative; a limit may not be raised
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    from kernels_pallas.aot.tpu_programs import Matmul, programs

    if only == SHARDED:
        print(json.dumps(_sharded_row(chip)))
        return
    profiles, plain = Path(folder) if folder else None, {}
    for program in programs():
        if is_profiled(chip, program) != bool(folder):
            continue
        if not re.search(only, f"{chip} {program.name()}"):
            continue
        row = _row(chip, program, profiles)
        if "cycles" in row and program.matmuls:
            matmul = Matmul(program.shape, program.dtype)
            if matmul not in plain:
                plain[matmul] = _row(chip, matmul, profiles).get("cycles")
            if plain[matmul]:
                row["ratio"] = round(row["cycles"] / (program.matmuls * plain[matmul]), 4)
                num, width, size = program.shape
                ideal = 2 * program.matmuls * num * width * size / FLOPS_PER_CYCLE[chip]
                row["utilisation"] = round(ideal / row["cycles"], 4)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
