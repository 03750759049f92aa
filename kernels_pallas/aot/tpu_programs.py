"""What is compiled for TPUs, and the plain matmul beside it."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from kernels_pallas.records import KLStatic, KLStats, Static
from kernels_pallas.tpu import mosaic

Build = tuple[Callable[..., Any], tuple[Any, ...]]


class Program(NamedTuple):
    """One direction of a kernel."""

    kernel: str
    direction: str  # forward or backward
    shape: tuple[int, int, int]  # N, D (0: logits are given), V
    dtype: str = "bfloat16"
    variant: str = ""  # "[D,V]", "[V,D]", "q fixed", "options" (mask, bias and softcap), or ""

    def name(self) -> str:
        sizes = "x".join(str(n) for n in self.shape if n)
        parts = (self.kernel, self.direction, sizes, self.dtype, self.variant)
        return " ".join(part for part in parts if part)

    @property
    def matmuls(self) -> int:
        """Products of [N, D] and [D, V] in it; 0 for kernels on logits."""
        if not self.shape[1]:
            return 0
        sides = 2 if self.kernel == "linear_kl" else 1
        if self.variant == "q fixed":
            return 2 * (sides + 1)
        return sides * (1 if self.direction == "forward" else 4)

    def unsupported(self) -> str | None:
        """Why the chip in use cannot run it."""
        module = import_module(f"kernels_pallas.{self.kernel}.pallas_tpu")
        num, width, size = self.shape
        shape = (num, width, width, size) if self.kernel == "linear_kl" else self.shape
        return module.unsupported(dtype=self.dtype, shape=shape) if width else None

    def build(self) -> Build:
        """The function and the shapes of its arguments."""
        num, width, size = self.shape
        function = getattr(
            import_module(f"kernels_pallas.{self.kernel}.pallas_tpu"), self.direction
        )
        transposed, options = self.variant == "[V,D]", self.variant == "options"

        def array(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(sizes, dtype)

        vector: Any = array(num)
        logits = array(num, size, dtype=self.dtype)
        unembedding = array(*((size, width) if transposed else (width, size)), dtype=self.dtype)
        pair = (array(num, width, dtype=self.dtype), unembedding)
        if "kl" in self.kernel:
            moving = "p" if self.variant == "q fixed" else "pq"
            static: Any = KLStatic(transposed, transposed, None, False, moving)
            arguments: tuple[Any, ...] = (pair, pair) if width else (logits, logits)
            more: tuple[Any, ...] = (KLStats(*[vector] * len(KLStats._fields)), vector)
        else:
            static = Static(transposed, 30.0 if options else None, True, None, False)
            tokens, scale = array(num, dtype=jnp.int32), array()
            if width:
                mask = array(num, dtype=jnp.bool_) if options else None
                arguments = (*pair, tokens, mask, array(size) if options else None, scale)
            else:
                arguments = (logits, tokens, scale)
            more = (vector,) * 5
        arguments += more if self.direction == "backward" else ()
        return lambda *arguments: function(*arguments, static), arguments


class Matmul(NamedTuple):
    """[N, D] · [D, V] in blocks of 512 rows and 1024 columns, all of D at once."""

    shape: tuple[int, int, int]
    dtype: str

    def name(self) -> str:
        return "matmul"

    def unsupported(self) -> str | None:
        return None

    def build(self) -> Build:
        num, width, size = self.shape
        rows, columns = min(512, num), min(1024, size)

        def kernel(x: Any, y: Any, out: Any) -> None:
            out[...] = mosaic.product(x[...], y[...], 1, 0).astype(out.dtype)

        def matmul(x: Any, y: Any) -> Any:
            return pl.pallas_call(
                kernel,
                name="matmul",
                grid=(pl.cdiv(num, rows), pl.cdiv(size, columns)),
                in_specs=[
                    pl.BlockSpec((rows, width), lambda i, j: (i, 0)),
                    pl.BlockSpec((width, columns), lambda i, j: (0, j)),
                ],
                out_specs=pl.BlockSpec((rows, columns), lambda i, j: (i, j)),
                out_shape=jax.ShapeDtypeStruct((num, size), self.dtype),
                compiler_params=mosaic.compiler_params(),
            )(x, y)

        shapes = ((num, width), (width, size))
        return matmul, tuple(jax.ShapeDtypeStruct(shape, self.dtype) for shape in shapes)


QUICK = (1024, 2048, 4096)  # what every change is measured with
GOAL = (2048, 2048, 16384)  # what the goals are measured with
RAGGED = (1000, 1024, 5003)
WIDE = (512, 8192, 2048)


def programs() -> list[Program]:
    listed = []
    for direction in ("forward", "backward"):
        for variant in ("[D,V]", "[V,D]"):
            listed += [
                Program("linear_token_stats", direction, shape, variant=variant)
                for shape in (QUICK, GOAL)
            ]
            listed.append(Program("linear_kl", direction, (512, 1024, 2048), variant=variant))
        listed.append(Program("linear_token_stats", direction, RAGGED, variant="options"))
        listed.append(Program("linear_token_stats", direction, (512, 4096, 2048), variant="[D,V]"))
        small = (256, 512, 2048)
        for kernel in ("linear_token_stats", "linear_kl"):
            listed.append(Program(kernel, direction, small, "float32", "[D,V]"))
            listed.append(Program(kernel, direction, WIDE, variant="[D,V]"))
        for kernel in ("token_stats", "categorical_kl"):
            listed.append(Program(kernel, direction, (1000, 0, 5003)))
            listed.append(Program(kernel, direction, (256, 0, 4096), "float32"))
    listed.append(Program("linear_kl", "backward", (512, 1024, 2048), variant="q fixed"))
    listed.append(Program("categorical_kl", "backward", (1000, 0, 5003), variant="q fixed"))
    return listed
