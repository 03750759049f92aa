"""What the Mosaic GPU kernels share: blocks of two factors in a ring, and the rows of a warpgroup.

One product is made tile by tile, 128 rows and 256 columns, or two side by side with 128 columns,
and an epilogue treats each tile. How they are made is in `mosaic_hopper` and
`mosaic_blackwell`; both offer the same `call`.

No card was at hand. Values, barriers and races are checked by JAX's interpreter; registers, spills
and instructions by compiling; the compiled code has not run, and no time is known.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from kernels_pallas.gpu.blocks import splits_for
from kernels_pallas.gpu.cards import current

plgpu: Any = mosaic_gpu  # its types differ between versions of jax

ROWS, DEPTH, STAGES = 128, 64, 4
COLUMNS = 256  # of all products of a tile together: what there is of registers or tensor memory
SWIZZLE = (
    plgpu.TilingTransform((8, DEPTH)),
    plgpu.SwizzleTransform(128),
)  # of 2 bytes


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

    `start(refs, row)` gives a carry; `add(refs, row, column, pieces, carry)` treats a piece of each
    product, float32 [rows, width], whose first column is `column`, and gives the next carry;
    `finish(refs, row, part, carry)` writes what is left. `refs` are the other operands, the outputs
    and the group's own scratch. `width`: columns of a piece, which registers have to hold.
    """

    start: Callable[..., Any]
    add: Callable[..., Any]
    finish: Callable[..., None]
    width: int


class Product(NamedTuple):
    """[rows, depth] times [columns, depth], or [depth, columns] with `inner_first`."""

    lhs: Array
    rhs: Array
    inner_first: bool

    @property
    def steps(self) -> int:
        return pl.cdiv(self.lhs.shape[1], DEPTH)

    @property
    def columns(self) -> int:
        return self.rhs.shape[1 if self.inner_first else 0]

    def fits(self) -> bool:
        """bfloat16 in whole tiles of 8 x 64: a copy may reach past the end, not divide a tile."""
        return all(
            x.dtype == jnp.bfloat16 and x.shape[0] % 8 == 0 and x.shape[1] % DEPTH == 0
            for x in (self.lhs, self.rhs)
        )

    def block(self, rhs: Any, columns: Any, depth: Any) -> Any:
        return rhs.at[depth, columns] if self.inner_first else rhs.at[columns, depth]

    def second(self, rhs: Any) -> Any:
        """[depth, columns], as the matrix units want it."""
        return rhs if self.inner_first else rhs.transpose((1, 0))


def fit(products: Sequence[Product]) -> bool:
    """Whether there are kernels for them: they share buffers, so they are stored alike."""
    alike = len({product.inner_first for product in products}) == 1
    return alike and all(product.fits() for product in products)


def columns_of(products: Sequence[Product]) -> int:
    """Of a tile."""
    return COLUMNS // len(products)


class Kernels(NamedTuple):
    """Those of one operation, for one card."""

    forward: Callable[..., Any]
    gradient: Callable[..., Any]
    columns: int  # of a tile

    @classmethod
    def of(
        cls,
        form: str,
        products: Sequence[Product],
        forward: Callable[..., Any],
        gradient: Callable[..., Any],
    ) -> "Kernels | None":
        """Both take first the module with `GROUPS` and `call`; None if there are none."""
        if not fit(products):
            return None
        module = import_module(f"{__package__}.mosaic_{form}")
        return cls(partial(forward, module), partial(gradient, module), columns_of(products))


class Ring(NamedTuple):
    """Buffers of both factors, filled by one thread and emptied by others."""

    lhs: Any
    rhs: Any
    full: Any
    empty: Any

    @classmethod
    def of(cls, products: Sequence[Product], empty: Any) -> "Ring":
        """Its memory; a buffer is full when the blocks of both factors are there."""
        columns, dtype = columns_of(products), products[0].lhs.dtype
        second = (DEPTH, columns) if products[0].inner_first else (columns, DEPTH)
        return cls(
            plgpu.SMEM((STAGES, ROWS, DEPTH), dtype, transforms=SWIZZLE),
            plgpu.SMEM((STAGES, *second), dtype, transforms=SWIZZLE),
            plgpu.Barrier(num_arrivals=2, num_barriers=STAGES),
            empty,
        )

    def fill(
        self, products: Sequence[Product], refs: Sequence[Any], row: Any, column: Any, tiles: Any
    ) -> None:
        """Copies the blocks of all tiles, one tile after the other, as buffers become free.

        `refs` are those of the first and the second factor of each product. What lies outside of
        them is 0.
        """
        width, total = columns_of(products), sum(product.steps for product in products)

        def copy(product: Product, lhs: Any, rhs: Any, t: Any, before: Any) -> None:
            def step(k: Any, _: None) -> None:
                n = before + k
                slot = lax.rem(n, STAGES)
                depth = pl.ds(k * DEPTH, DEPTH)

                @pl.when(n >= STAGES)
                def _():
                    plgpu.barrier_wait(self.empty.at[slot])

                full = self.full.at[slot]
                block = product.block(rhs, pl.ds(column + t * width, width), depth)
                plgpu.copy_gmem_to_smem(lhs.at[pl.ds(row, ROWS), depth], self.lhs.at[slot], full)
                plgpu.copy_gmem_to_smem(block, self.rhs.at[slot], full)

            lax.fori_loop(0, product.steps, step, None)

        def tile(t: Any, _: None) -> None:
            before = t * total
            for i, product in enumerate(products):
                copy(product, refs[2 * i], refs[2 * i + 1], t, before)
                before += product.steps

        lax.fori_loop(0, tiles, tile, None)


def tiling(
    num_rows: int,
    columns: int,
    products: Sequence[Product],
    parts: int | None = None,
    mask: Array | None = None,
) -> dict[str, Any]:
    """What `call` has to know of the tiles: which rows count, and how many parts share columns."""
    row_blocks, column_tiles = pl.cdiv(num_rows, ROWS), pl.cdiv(columns, columns_of(products))
    parts = parts or splits_for(row_blocks, column_tiles, current())
    active = jnp.ones(row_blocks, jnp.int32)
    if mask is not None:
        padded = jnp.pad(mask, (0, -num_rows % ROWS)).reshape(row_blocks, ROWS)
        active = jnp.any(padded, axis=1).astype(jnp.int32)
    return {"active": active, "column_tiles": column_tiles, "parts": min(parts, column_tiles)}


def pad(vector: Array, multiple: int, value: float = 0) -> Array:
    return jnp.pad(vector, (0, -vector.shape[0] % multiple), constant_values=value)


def store_rows(values: Sequence[Array], outputs: Any, buffer: Any, part: Any, row: Any) -> None:
    """Each value [rows] to its output [parts, N], by way of buffer [values, rows]."""
    for n, value in enumerate(values):
        buffer[n] = value
    plgpu.commit_smem()
    for n, output in enumerate(outputs):
        plgpu.copy_smem_to_gmem(buffer.at[n], output.at[part, pl.ds(row, buffer.shape[1])])
    plgpu.wait_smem_to_gmem(0)


def launch(
    kernel: Callable[..., None],
    products: Sequence[Product],
    operands: Sequence[Array],
    *,
    scratch: Any,
    parts: int,
    out: Any,
    interpret: Any,
    name: str,
) -> Any:
    """A program of three warpgroups for each block of rows and part of the columns.

    The kernel gets the first two operands, the factors, the other operands, outputs and scratch.
    """
    run = plgpu.kernel(
        kernel,
        out_type=out,
        scratch_types=scratch,
        grid=(parts, pl.cdiv(products[0].lhs.shape[0], ROWS)),
        grid_names=("parts", "rows"),
        num_threads=3,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            lowering_semantics=plgpu.LoweringSemantics.Lane,  # layouts of registers are ours to say
        ),
        interpret=interpreter(interpret),
        kernel_name=name,
    )
    factors = [factor for product in products for factor in (product.lhs, product.rhs)]
    with jax.enable_x64(False):  # indices have 32 bits
        return run(*operands[:2], *factors, *operands[2:])
