"""Products tile by tile with an epilogue, on Blackwell's matrix units (tcgen05).

A program has three warpgroups. One only copies: the tensor memory accelerator brings blocks of
both operands into a ring of buffers, across the ends of tiles. One multiplies, into one of two
accumulators in tensor memory, 128 x 256 each, which is all of it. The third treats the tile in one
accumulator while the next is made in the other. (One warp could copy and another of the same
warpgroup multiply, but `shard_map` that checks which axes values vary over has no `warp_map`.)

Two multiprocessors that share a product (collective_axis) would read each factor half as often;
the interpreter of jax 0.12, which is what checks these kernels, does not have that.
"""

from collections.abc import Sequence
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

NAME = "blackwell"
GROUPS = Warpgroups(1, plgpu.Layout.TCGEN05, width=64)
ACCUMULATORS = 2
TREATS, COPIES, MULTIPLIES = range(3)  # the warpgroups


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
        factors, refs = refs[:num_factors], refs[num_factors:]
        *refs, ring, sums, made, treated, scratch = refs
        i, part, group = (lax.axis_index(axis) for axis in ("rows", "parts", "group"))
        begin, end = part * column_tiles // parts, (part + 1) * column_tiles // parts
        end = jnp.where(active[i] > 0, end, begin)

        def at(which: Any, product: int, column: Any, size: int) -> Any:
            """Some columns of a product, in one of the accumulators."""
            return sums.at[:, pl.ds(which * COLUMNS + product * columns + column, size)]

        def multiply(product: Product, before: Any, sum: Any) -> None:
            def step(k: Any, _: None) -> None:
                slot = lax.rem(before + k, STAGES)
                plgpu.barrier_wait(ring.full.at[slot])
                plgpu.tcgen05_mma(
                    sum,
                    ring.lhs.at[slot],
                    product.second(ring.rhs.at[slot]),
                    ring.empty.at[slot],
                    accumulate=k > 0,
                )

            lax.fori_loop(0, product.steps, step, None)

        def make(t: Any, _: None) -> None:
            which, before = lax.rem(t, ACCUMULATORS), t * total

            @pl.when(t >= ACCUMULATORS)
            def _():
                plgpu.barrier_wait(treated.at[which])

            for n, product in enumerate(products):
                multiply(product, before, at(which, n, 0, columns))
                before += product.steps
            plgpu.tcgen05_commit_arrive(made.at[which])

        @pl.when(group == COPIES)
        def _copy():
            plgpu.set_max_registers(40, action="decrease")
            ring.fill(products, factors, i * ROWS, first[0] + begin * columns, end - begin)

        @pl.when(group == MULTIPLIES)
        def _multiply():
            plgpu.set_max_registers(40, action="decrease")
            lax.fori_loop(0, end - begin, make, None)

        @pl.when(group == TREATS)
        def _treat():
            plgpu.set_max_registers(232, action="increase")
            row = i * ROWS
            mine = [*refs, *(ref.at[0] for ref in scratch)]

            def tile(j: Any, carry: Any) -> Any:
                which = lax.rem(j - begin, ACCUMULATORS)

                def add(n: Any, carry: Any) -> Any:
                    pieces = [
                        plgpu.async_load_tmem(at(which, p, n * width, width), layout=GROUPS.layout)
                        for p in range(len(products))
                    ]
                    return epilogue.add(mine, row, j * columns + n * width, pieces, carry)

                plgpu.barrier_wait(made.at[which])
                carry = lax.fori_loop(0, columns // width, add, carry)
                plgpu.wait_load_tmem()
                plgpu.barrier_arrive(treated.at[which])
                return carry

            carry = lax.fori_loop(begin, end, tile, epilogue.start(mine, row))
            epilogue.finish(mine, row, part, carry)

    def barriers(count: int) -> Any:
        return plgpu.Barrier(num_arrivals=1, num_barriers=count, orders_tensor_core=True)

    return launch(
        kernel,
        products,
        [first, active, *others],
        scratch=(
            Ring.of(products, empty=barriers(STAGES)),
            plgpu.TMEM((ROWS, ACCUMULATORS * COLUMNS), jnp.float32),
            barriers(ACCUMULATORS),
            barriers(ACCUMULATORS),
            scratch,
        ),
        parts=parts,
        out=out,
        interpret=interpret,
        name=f"{name}_{NAME}",
    )
