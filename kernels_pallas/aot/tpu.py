"""Compiles every TPU kernel for chips that are not here, and reads what the compiler says of it.

Needs libtpu (`make aot` sets up an environment), but no TPU. `cycles` are those of the final
schedule, of all kernels of a program; `ratio` divides them by those of a plain Pallas matmul of
[N, D] · [D, V] in the same dtype by the same compiler, once per 2NDV flops of the program.
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
RATIOS = Path(__file__).parent / "ratios.json"
MEMORY_LIMIT = 16 * 2**30  # of address space: a schedule of a large program can take all there is


def available() -> bool:
    return find_spec("libtpu") is not None


def rows(only: str = "", chips: tuple[str, ...] = tuple(CHIPS)) -> Iterator[dict[str, Any]]:
    """One row per program and chip whose "chip program" matches the expression `only`.

    libtpu reads its flags when it loads: each chip has a process of its own. What kills that
    process is a row with an error too.
    """
    for chip in chips:
        yield from _rows_of_chip(chip, only)


def _rows_of_chip(chip: str, only: str) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # these three only silence warnings
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_static_llo_profile_to={folder}/profile",
        }
        command = [sys.executable, "-m", "kernels_pallas.aot.tpu", folder, chip, only]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)
        if process.returncode:
            yield {"chip": chip, "program": "", "error": f"ended with {process.returncode}"}


def compile_for(chip: str, function: Any, arguments: Any) -> Any:
    """The compiled function; arguments are shapes."""
    import jax
    from jax.experimental import topologies
    from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding

    topology, kind = CHIPS[chip]
    device = topologies.get_topology_desc(topology, platform="tpu").devices[0]
    place = SingleDeviceSharding(device)
    arguments = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), arguments
    )
    # The abstract mesh tells the kernels which chip they are traced for.
    mesh = AbstractMesh((1,), ("x",), abstract_device=AbstractDevice(kind, 1, "tpu"))
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.jit(function).lower(*arguments).compile()


def read_cycles(folder: Path) -> int:
    """The sum over kernels whose profiles lie there, which are removed."""
    cycles = 0
    for file in folder.glob("*"):
        cycles += sum(int(n) for n in re.findall(r"estimated_cycles: (\d+)", file.read_text()))
        file.unlink()
    return cycles


def _row(chip: str, program: Any, profiles: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"chip": chip, "program": program.name()}
    read_cycles(profiles)
    try:
        memory = compile_for(chip, *program.build()).memory_analysis()
    except Exception as error:
        return row | {"error": str(error).strip().splitlines()[0]}
    return row | {
        "temporary": memory.temp_size_in_bytes,
        "peak": memory.peak_memory_in_bytes,
        "cycles": read_cycles(profiles),
    }


def _main(folder: str, chip: str, only: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    from kernels_pallas.aot.tpu_programs import matmul_of, programs

    profiles, plain = Path(folder) / "profile", {}
    for program in programs():
        if not re.search(only, f"{chip} {program.name()}"):
            continue
        row = _row(chip, program, profiles)
        matmul = matmul_of(program)
        if "cycles" in row and matmul is not None:
            if matmul not in plain:
                plain[matmul] = _row(chip, matmul, profiles).get("cycles")
            if plain[matmul]:
                row["ratio"] = round(row["cycles"] / (program.matmuls * plain[matmul]), 4)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
