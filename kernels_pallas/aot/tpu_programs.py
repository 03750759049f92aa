"""What is compiled for TPUs, and the plain matmul beside it."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from kernels_pallas import mosaic
from kernels_pallas.records import Static

Build = tuple[Callable[..., Any], tuple[Any, ...]]


class LinearStats(NamedTuple):
    """One direction of linear_token_stats."""

    direction: str
    shape: tuple[int, int, int]  # N, D, V
    dtype: str = "bfloat16"
    transposed: bool = False
    options: bool = False  # mask, bias and softcap

    @property
    def matmuls(self) -> int:
        return 1 if self.direction == "forward" else 4

    def name(self) -> str:
        sizes = "x".join(str(n) for n in self.shape)
        layout = "[V,D]" if self.transposed else "[D,V]"
        parts = ("linear_token_stats", self.direction, sizes, self.dtype, layout)
        return " ".join(parts + (("options",) if self.options else ()))

    def build(self) -> Build:
        module = import_module("kernels_pallas.linear_token_stats.pallas_tpu")
        num, width, size = self.shape
        static = Static(self.transposed, 30.0 if self.options else None, True, None, False)
        vector = jax.ShapeDtypeStruct((num,), jnp.float32)
        arguments: tuple[Any, ...] = (
            jax.ShapeDtypeStruct((num, width), self.dtype),
            jax.ShapeDtypeStruct((size, width) if self.transposed else (width, size), self.dtype),
            jax.ShapeDtypeStruct((num,), jnp.int32),
            jax.ShapeDtypeStruct((num,), jnp.bool_) if self.options else None,
            jax.ShapeDtypeStruct((size,), jnp.float32) if self.options else None,
            jax.ShapeDtypeStruct((), jnp.float32),
        )
        if self.direction == "backward":
            arguments += (vector,) * 5
        function = getattr(module, self.direction)
        return lambda *arguments: function(*arguments, static), arguments


class Matmul(NamedTuple):
    """[N, D] · [D, V] in blocks of 512 rows and 1024 columns, all of D at once."""

    shape: tuple[int, int, int]
    dtype: str

    def name(self) -> str:
        return "matmul"

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


def matmul_of(program: LinearStats) -> Matmul | None:
    return None if program.options else Matmul(program.shape, program.dtype)


def programs() -> list[LinearStats]:
    listed = []
    for direction in ("forward", "backward"):
        for transposed in (False, True):
            listed.append(LinearStats(direction, (2048, 2048, 16384), transposed=transposed))
            ragged = (1000, 2048, 50257)
            listed.append(LinearStats(direction, ragged, transposed=transposed, options=True))
        listed.append(LinearStats(direction, (512, 8192, 4096)))
        listed.append(LinearStats(direction, (256, 64, 4096)))
        listed.append(LinearStats(direction, (512, 1024, 4096), dtype="float32"))
    return listed
