"""Products tile by tile with an epilogue, on Hopper's matrix units (wgmma).

A program has three warpgroups. One only copies: the tensor memory accelerator brings blocks of
both operands into a ring of buffers, across the ends of tiles. Two multiply, 64 rows each, with
the accumulator in registers, and treat the finished tile; while one treats its tile, the other has
the matrix units.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels_pallas.gpu.mosaic import (
    COLUMNS,
    ROWS,
    STAGES,
    Epilogue,
    Product,
    Ring,
    Warpgroups,
    columns_of,
    launch,
    plgpu,
)

NAME = "hopper"
GROUPS = Warpgroups(2, plgpu.Layout.WGMMA, width=COLUMNS)


def call(
    epilogue: Epilogue,
    products: Sequence[Product],
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
    """The epilogue over all tiles of the products, columns from first[0] on; `parts` share them.

    Row blocks with active[i] = 0 are not touched, apart from `start` and `finish`.
    """
    columns, width = columns_of(products), epilogue.width
    total, num_factors = sum(product.steps for product in products), 2 * len(products)

    def kernel(first, active, *refs):
        factors, (*refs, ring, scratch) = refs[:num_factors], refs[num_factors:]
        i, part, group = (lax.axis_index(axis) for axis in ("rows", "parts", "group"))
        begin, end = part * column_tiles // parts, (part + 1) * column_tiles // parts
        end = jnp.where(active[i] > 0, end, begin)

        @pl.when(group == GROUPS.count)
        def _copy():
            plgpu.set_max_registers(40, action="decrease")
            ring.fill(products, factors, i * ROWS, first[0] + begin * columns, end - begin)

        @pl.when(group < GROUPS.count)
        def _multiply():
            plgpu.set_max_registers(232, action="increase")
            own = pl.multiple_of(group * GROUPS.rows, GROUPS.rows)
            row = i * ROWS + own
            mine = [*refs, *(ref.at[group] for ref in scratch)]

            def multiply(product: Product, before: Any, sum: Any) -> Array:
                def step(k: Any, _: None) -> None:
                    slot = lax.rem(before + k, STAGES)
                    plgpu.barrier_wait(ring.full.at[slot])
                    a = ring.lhs.at[slot, pl.ds(own, GROUPS.rows)]
                    plgpu.wgmma(sum, a, product.second(ring.rhs.at[slot]))
                    plgpu.wgmma_wait(1)  # the product before this one is done

                    @pl.when(k > 0)
                    def _():
                        last = lax.rem(before + k - 1, STAGES)
                        plgpu.barrier_arrive(ring.empty.at[last])

                lax.fori_loop(0, product.steps, step, None)
                plgpu.wgmma_wait(0)
                last = lax.rem(before + product.steps - 1, STAGES)
                plgpu.barrier_arrive(ring.empty.at[last])
                return sum[...]

            def tile(j: Any, carry: Any) -> Any:
                before, made = (j - begin) * total, []
                for product in products:
                    sum = plgpu.ACC((GROUPS.rows, columns), jnp.float32)
                    made.append(pl.run_scoped(partial(multiply, product, before), sum))
                    before += product.steps
                for n in range(0, columns, width):
                    pieces = [x if width == columns else x[:, n : n + width] for x in made]
                    carry = epilogue.add(mine, row, j * columns + n, pieces, carry)
                return carry

            carry = lax.fori_loop(begin, end, tile, epilogue.start(mine, row))
            epilogue.finish(mine, row, part, carry)

    empty = plgpu.Barrier(num_arrivals=GROUPS.count, num_barriers=STAGES)
    return launch(
        kernel,
        products,
        [first, active, *others],
        scratch=(Ring.of(products, empty), scratch),
        parts=parts,
        out=out,
        interpret=interpret,
        name=f"{name}_{NAME}",
    )
