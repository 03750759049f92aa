"""Products tile by tile with an epilogue, on Hopper's matrix units (wgmma).

A program has three warpgroups. One only copies: the tensor memory accelerator brings blocks of
both operands into a ring of buffers, across the ends of tiles. Two multiply, 64 rows each, with
the accumulator in registers, and treat the finished tile; while one treats its tile, the other has
the matrix units.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels_pallas.gpu_mosaic import (
    COLUMNS,
    DEPTH,
    PARAMS,
    ROWS,
    STAGES,
    Epilogue,
    Operand,
    Ring,
    Warpgroups,
    factors,
    plgpu,
)

NAME = "hopper"
GROUPS = Warpgroups(2, plgpu.Layout.WGMMA, width=COLUMNS)


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
    steps, width = pl.cdiv(inner, DEPTH), epilogue.width

    def kernel(first, active, lhs_ref, rhs_ref, *refs):
        *refs, ring, scratch = refs
        i, part, group = (lax.axis_index(axis) for axis in ("rows", "parts", "group"))
        begin, end = part * column_tiles // parts, (part + 1) * column_tiles // parts
        end = jnp.where(active[i] > 0, end, begin)

        @pl.when(group == GROUPS.count)
        def _copy():
            plgpu.set_max_registers(40, action="decrease")
            column = first[0] + begin * COLUMNS
            ring.fill((lhs, lhs_ref), (rhs, rhs_ref), i * ROWS, column, steps, end - begin)

        @pl.when(group < GROUPS.count)
        def _multiply():
            plgpu.set_max_registers(232, action="increase")
            own = pl.multiple_of(group * GROUPS.rows, GROUPS.rows)
            row = i * ROWS + own
            mine = [*refs, *(ref.at[group] for ref in scratch)]

            def tile(j: Any, carry: Any) -> Any:
                def multiply(sum: Any) -> Array:
                    def step(k: Any, _: None) -> None:
                        n = (j - begin) * steps + k
                        slot = lax.rem(n, STAGES)
                        plgpu.barrier_wait(ring.full.at[slot])
                        a = lhs.at(ring.lhs.at[slot], pl.ds(own, GROUPS.rows), slice(None))
                        plgpu.wgmma(sum, *factors(lhs, rhs, a, ring.rhs.at[slot]))
                        plgpu.wgmma_wait(1)  # the product before this one is done

                        @pl.when(k > 0)
                        def _():
                            before = lax.rem(n + STAGES - 1, STAGES)
                            plgpu.barrier_arrive(ring.empty.at[before])

                    lax.fori_loop(0, steps, step, None)
                    plgpu.wgmma_wait(0)
                    last = (j - begin + 1) * steps - 1
                    plgpu.barrier_arrive(ring.empty.at[lax.rem(last, STAGES)])
                    return sum[...]

                product = pl.run_scoped(multiply, plgpu.ACC((GROUPS.rows, COLUMNS), jnp.float32))
                for n in range(0, COLUMNS, width):
                    piece = product if width == COLUMNS else product[:, n : n + width]
                    carry = epilogue.add(mine, row, j * COLUMNS + n, piece, carry)
                return carry

            carry = lax.fori_loop(begin, end, tile, epilogue.start(mine, row))
            epilogue.finish(mine, row, part, carry)

    empty = plgpu.Barrier(num_arrivals=GROUPS.count, num_barriers=STAGES)
    return plgpu.kernel(
        kernel,
        out_type=out,
        scratch_types=(Ring.of(lhs, rhs, empty), scratch),
        grid=(parts, pl.cdiv(outer, ROWS)),
        grid_names=("parts", "rows"),
        num_threads=GROUPS.count + 1,
        thread_name="group",
        compiler_params=PARAMS,
        interpret=interpret,
        kernel_name=f"{name}_{NAME}",
    )(first, active, lhs.array, rhs.array, *others)
