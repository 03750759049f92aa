"""Products tile by tile with an epilogue, on Hopper's matrix units (the Mosaic GPU form of Pallas).

A program has three warpgroups. One only copies: the tensor memory accelerator brings blocks of
both operands into a ring of buffers, across the ends of tiles, and fills with 0 what lies outside.
Two multiply (wgmma), 64 rows each, with the accumulator in registers, and treat the finished tile;
while one treats its tile, the other has the matrix units.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

plgpu: Any = mosaic_gpu  # its types differ between versions of jax

GROUPS, GROUP_ROWS, COLUMNS, DEPTH, STAGES = 2, 64, 256, 64, 4
ROWS = GROUPS * GROUP_ROWS
SWIZZLE = (
    plgpu.TilingTransform((8, DEPTH)),
    plgpu.SwizzleTransform(128),
)  # of 2 bytes

LANE = plgpu.LoweringSemantics.Lane  # layouts of registers are ours to say, in every version
BY_ROW, BY_COLUMN = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)


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


def by_row(vector: Array) -> Array:
    """A vector over the rows of a tile, from a value that all lanes have."""
    return plgpu.layout_cast(vector, BY_ROW)


def load_rows(ref: Any, first: Any) -> Array:
    return plgpu.load(ref.at[pl.ds(first, GROUP_ROWS)], layout=BY_ROW, optimized=False)


def load_columns(ref: Any, first: Any, size: int = COLUMNS) -> Array:
    return plgpu.load(ref.at[pl.ds(first, size)], layout=BY_COLUMN, optimized=False)


def across(vector: Array, columns: int = COLUMNS) -> Array:
    """[64] -> [64, columns]."""
    return lax.broadcast_in_dim(vector, (GROUP_ROWS, columns), (0,))


def down(vector: Array) -> Array:
    """[columns] -> [64, columns]."""
    return lax.broadcast_in_dim(vector, (GROUP_ROWS, vector.shape[0]), (1,))


def column_numbers(first: Any, size: int = COLUMNS) -> Array:
    shape = (GROUP_ROWS, size)
    return first + plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=plgpu.Layout.WGMMA)


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


class Epilogue(NamedTuple):
    """What a warpgroup does with its 64 rows, which begin at `row`.

    `start(refs, row)` gives a carry, `tile(refs, row, j, product, carry)` treats the product of
    column tile j, [64, 256] float32, and gives the next; `finish(refs, row, part, carry)` writes
    what is left. `refs` are the other operands, the outputs and the group's own scratch.
    """

    start: Callable[..., Any]
    tile: Callable[..., Any]
    finish: Callable[..., None]


def call(
    epilogue: Epilogue,
    lhs: Operand,
    rhs: Operand,
    others: list[Array],
    *,
    first: Array,
    active: Array,
    column_tiles: int,
    parts: int,
    out: Any,
    scratch: Any,
    interpret: Any,
    name: str,
) -> Any:
    """The epilogue over all tiles of lhs · rhsᵀ, columns from first[0] on; `parts` share them.

    Row blocks with active[i] = 0 are not touched, apart from `start` and `finish`.
    """
    outer, inner = lhs.sizes()
    steps = pl.cdiv(inner, DEPTH)

    def kernel(first, active, lhs_ref, rhs_ref, *refs):
        *refs, lhs_buffers, rhs_buffers, full, empty, scratch = refs
        i, part, group = (lax.axis_index(axis) for axis in ("rows", "parts", "group"))
        begin, end = part * column_tiles // parts, (part + 1) * column_tiles // parts
        end = jnp.where(active[i] > 0, end, begin)

        @pl.when(group == GROUPS)
        def _copy():
            plgpu.set_max_registers(40, action="decrease")
            rows = pl.ds(i * ROWS, ROWS)

            def step(n: Any, _: None) -> None:
                slot = lax.rem(n, STAGES)
                columns = pl.ds(first[0] + (begin + lax.div(n, steps)) * COLUMNS, COLUMNS)
                depth = pl.ds(lax.rem(n, steps) * DEPTH, DEPTH)

                @pl.when(n >= STAGES)
                def _():
                    plgpu.barrier_wait(empty.at[slot])

                for operand, ref, buffers, outer in (
                    (lhs, lhs_ref, lhs_buffers, rows),
                    (rhs, rhs_ref, rhs_buffers, columns),
                ):
                    source = operand.at(ref, outer, depth)
                    plgpu.copy_gmem_to_smem(source, buffers.at[slot], full.at[slot])

            lax.fori_loop(0, (end - begin) * steps, step, None)

        @pl.when(group < GROUPS)
        def _multiply():
            plgpu.set_max_registers(232, action="increase")
            row = i * ROWS + group * GROUP_ROWS
            mine = [*refs, *(ref.at[group] for ref in scratch)]

            def tile(j: Any, carry: Any) -> Any:
                def multiply(sum: Any) -> Array:
                    def step(k: Any, _: None) -> None:
                        n = (j - begin) * steps + k
                        slot = lax.rem(n, STAGES)
                        plgpu.barrier_wait(full.at[slot])
                        own = pl.ds(pl.multiple_of(group * GROUP_ROWS, GROUP_ROWS), GROUP_ROWS)
                        a = lhs.at(lhs_buffers.at[slot], own, slice(None))
                        b = rhs_buffers.at[slot]
                        plgpu.wgmma(
                            sum,
                            a.transpose((1, 0)) if lhs.inner_first else a,
                            b if rhs.inner_first else b.transpose((1, 0)),
                        )
                        plgpu.wgmma_wait(1)  # the product before this one is done

                        @pl.when(k > 0)
                        def _():
                            plgpu.barrier_arrive(empty.at[lax.rem(n + STAGES - 1, STAGES)])

                    lax.fori_loop(0, steps, step, None)
                    plgpu.wgmma_wait(0)
                    last = (j - begin + 1) * steps - 1
                    plgpu.barrier_arrive(empty.at[lax.rem(last, STAGES)])
                    return sum[...]

                product = pl.run_scoped(multiply, plgpu.ACC((GROUP_ROWS, COLUMNS), jnp.float32))
                return epilogue.tile(mine, row, j, product, carry)

            carry = lax.fori_loop(begin, end, tile, epilogue.start(mine, row))
            epilogue.finish(mine, row, part, carry)

    return plgpu.kernel(
        kernel,
        out_type=out,
        scratch_types=(
            lhs.buffers(ROWS),
            rhs.buffers(COLUMNS),
            plgpu.Barrier(num_arrivals=2, num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=GROUPS, num_barriers=STAGES),
            scratch,
        ),
        grid=(parts, pl.cdiv(outer, ROWS)),
        grid_names=("parts", "rows"),
        num_threads=GROUPS + 1,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=LANE),
        interpret=interpret,
        kernel_name=name,
    )(first, active, lhs.array, rhs.array, *others)
