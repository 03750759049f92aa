"""linear_kl on GPUs, interpreted: values and gradients against float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas.gpu_blocks import GpuBlocks, Tiles
from kernels_pallas.linear_kl import pallas_gpu
from kernels_pallas.records import KLStatic

from . import gpu_reference as right

TILES = Tiles(16, 32, 16, 4, 2)
BLOCKS = GpuBlocks(TILES, TILES, TILES, splits=2, chunk=64)


@pytest.mark.parametrize(
    ("dtype", "transposed", "vocabulary"),
    [(jnp.float32, (False, True), 129), (jnp.bfloat16, (True, False), 70)],
)
def test_values_and_gradients(dtype, transposed, vocabulary):
    draw = np.random.default_rng(0)
    pairs, pairs64 = [], []
    for width, flip in zip((24, 40), transposed):
        hidden = jnp.asarray(draw.normal(size=(21, width)), dtype)
        unembedding = jnp.asarray(draw.normal(size=(width, vocabulary)) / width**0.5, dtype)
        pairs64.append([np.asarray(x, np.float64) for x in (hidden, unembedding)])
        pairs.append((hidden, unembedding.T if flip else unembedding))
    static = KLStatic(*transposed, BLOCKS, True)
    stats = jax.jit(partial(pallas_gpu.forward, static=static))(*pairs)
    z_p, z_q = (hidden @ unembedding for hidden, unembedding in pairs64)
    np.testing.assert_allclose(stats.kl, right.kl(z_p, z_q), rtol=1e-5, atol=1e-5)

    g = draw.normal(size=21)
    gradients = jax.jit(partial(pallas_gpu.backward, static=static))(
        *pairs, stats, jnp.asarray(g, jnp.float32)
    )
    tolerance = 1e-5 if dtype == jnp.float32 else 8e-3
    for ours, (hidden, unembedding), d_z, flip in zip(
        gradients, pairs64, right.kl_gradients(z_p, z_q, g), transposed
    ):
        right.assert_close(ours[0], d_z @ unembedding.T, tolerance)
        d_unembedding = hidden.T @ d_z
        right.assert_close(ours[1], d_unembedding.T if flip else d_unembedding, tolerance)
