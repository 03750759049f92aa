"""What the Mosaic GPU kernels share: blocks of two factors in a ring, and the rows of a warpgroup.

A product is made tile by tile, 128 rows and 256 columns, and an epilogue treats each tile. How it
is made is in `gpu_mosaic_hopper` and `gpu_mosaic_blackwell`; both offer the same `call`.

No card was at hand. Values, barriers and races are checked by JAX's interpreter; registers, spills
and instructions by compiling; the compiled code has not run, and no time is known.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

plgpu: Any = mosaic_gpu  # its types differ between versions of jax

ROWS, COLUMNS, DEPTH, STAGES = 128, 256, 64, 4
SWIZZLE = (
    plgpu.TilingTransform((8, DEPTH)),
    plgpu.SwizzleTransform(128),
)  # of 2 bytes

PARAMS = plgpu.CompilerParams(
    approx_math=True,
    lowering_semantics=plgpu.LoweringSemantics.Lane,  # layouts of registers are ours to say
)


def fits(lhs: Array, rhs: Array) -> bool:
    """bfloat16 in whole tiles of 8 x 64: a copy may reach past the end, but not divide a tile."""
    return all(
        x.dtype == jnp.bfloat16 and x.shape[0] % 8 == 0 and x.shape[1] % DEPTH == 0
        for x in (lhs, rhs)
    )


def interpreter(interpret: Any) -> Any:
    """What `plgpu.kernel` wants for True: threads and copies simulated, 0 outside of arrays."""
    if interpret is not True:
        return interpret
    return plgpu.InterpretGPUParams(
        out_of_bounds_reads="uninitialized", uninitialized_memory="zero"
    )


class Warpgroups(NamedTuple):
    """Those that treat a tile: how many share its rows, and which thread has which number."""

    count: int
    layout: Any
    width: int  # columns whose logits the registers hold

    @property
    def rows(self) -> int:
        return ROWS // self.count

    def by_row(self, vector: Array) -> Array:
        """A vector over the rows, from a value that all lanes have."""
        return plgpu.layout_cast(vector, self.layout.reduce(1))

    def load_rows(self, ref: Any, first: Any) -> Array:
        layout = self.layout.reduce(1)
        return plgpu.load(ref.at[pl.ds(first, self.rows)], layout=layout, optimized=False)

    def load_columns(self, ref: Any, first: Any, size: int) -> Array:
        layout = self.layout.reduce(0)
        return plgpu.load(ref.at[pl.ds(first, size)], layout=layout, optimized=False)

    def across(self, vector: Array, columns: int) -> Array:
        """[rows] -> [rows, columns]."""
        whole = lax.broadcast_in_dim(vector, (self.rows, columns), (0,))
        return plgpu.layout_cast(whole, self.layout)

    def down(self, vector: Array) -> Array:
        """[columns] -> [rows, columns]."""
        whole = lax.broadcast_in_dim(vector, (self.rows, vector.shape[0]), (1,))
        return plgpu.layout_cast(whole, self.layout)

    def column_numbers(self, first: Any, size: int) -> Array:
        shape = self.rows, size
        return first + plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=self.layout)


class Epilogue(NamedTuple):
    """What a warpgroup does with its rows, which begin at `row`.

    `start(refs, row)` gives a carry; `add(refs, row, column, product, carry)` treats a piece of the
    product, float32 [rows, width], whose first column is `column`, and gives the next carry;
    `finish(refs, row, part, carry)` writes what is left. `refs` are the other operands, the outputs
    and the group's own scratch. `width`: columns of a piece, which registers have to hold.
    """

    start: Callable[..., Any]
    add: Callable[..., Any]
    finish: Callable[..., None]
    width: int


class Operand(NamedTuple):
    """One factor, [outer, inner], or stored [inner, outer] with `inner_first`."""

    array: Array
    inner_first: bool

    def sizes(self) -> tuple[int, int]:
        first, second = self.array.shape
        return (second, first) if self.inner_first else (first, second)

    def buffers(self, outer: int) -> Any:
        shape = (DEPTH, outer) if self.inner_first else (outer, DEPTH)
        return plgpu.SMEM((STAGES, *shape), self.array.dtype, transforms=SWIZZLE)

    def at(self, ref: Any, outer: Any, inner: Any) -> Any:
        return ref.at[inner, outer] if self.inner_first else ref.at[outer, inner]


def factors(lhs: Operand, rhs: Operand, lhs_buffer: Any, rhs_buffer: Any) -> tuple[Any, Any]:
    """[rows, depth] and [depth, columns], as the matrix units want them."""
    return (
        lhs_buffer.transpose((1, 0)) if lhs.inner_first else lhs_buffer,
        rhs_buffer if rhs.inner_first else rhs_buffer.transpose((1, 0)),
    )


class Ring(NamedTuple):
    """Buffers of both factors, filled by one thread and emptied by others."""

    lhs: Any
    rhs: Any
    full: Any
    empty: Any

    @classmethod
    def of(cls, lhs: Operand, rhs: Operand, empty: Any) -> "Ring":
        """Its memory; a buffer is full when the blocks of both factors are there."""
        full = plgpu.Barrier(num_arrivals=2, num_barriers=STAGES)
        return cls(lhs.buffers(ROWS), rhs.buffers(COLUMNS), full, empty)

    def fill(self, lhs: Any, rhs: Any, row: Any, column: Any, steps: int, tiles: Any) -> None:
        """Copies the blocks of all tiles, one tile after the other, as buffers become free.

        `lhs` and `rhs` are an Operand and its reference each. What lies outside is 0.
        """

        def step(n: Any, _: None) -> None:
            slot = lax.rem(n, STAGES)
            depth = pl.ds(lax.rem(n, steps) * DEPTH, DEPTH)
            columns = pl.ds(column + lax.div(n, steps) * COLUMNS, COLUMNS)

            @pl.when(n >= STAGES)
            def _():
                plgpu.barrier_wait(self.empty.at[slot])

            for (operand, ref), buffers, outer in (
                (lhs, self.lhs, pl.ds(row, ROWS)),
                (rhs, self.rhs, columns),
            ):
                source = operand.at(ref, outer, depth)
                plgpu.copy_gmem_to_smem(source, buffers.at[slot], self.full.at[slot])

        lax.fori_loop(0, tiles * steps, step, None)
