"""Gradients on a TPU: one kernel for the hidden states, one for the unembedding.

Both form the logits once more, z = h · W, and from them dz = p (a + b log p) + 1[v = token] c.
`d_hidden` sums dz · Wᵀ over the vocabulary, `d_unembedding` sums hᵀ · dz over rows; each sum stays
on the chip in float32 until it is whole. dz is rounded to the dtype of what it multiplies.

Flops 8NDV, of which 2NDV make the logits a second time: no [N, V] is ever stored.
Source of the gradient of the entropy, dH/dz_v = -p_v (log p_v + H): by hand from H = L - Σ p z.
"""

import jax.numpy as jnp
from jax import Array

from kernels_pallas.linear_token_stats.pallas_tpu_d_hidden import d_hidden
from kernels_pallas.linear_token_stats.pallas_tpu_d_unembedding import d_unembedding
from kernels_pallas.linear_token_stats.pallas_tpu_tile import Problem, choose_blocks
from kernels_pallas.records import Static
from kernels_pallas.tpu import mosaic, mosaic_gradient
from kernels_pallas.tpu.mosaic import LOG2E, Rows


def backward(
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    mask: Array | None,
    bias: Array | None,
    inverse_temperature: Array,
    peak: Array,
    log_sum: Array,
    a: Array,
    b: Array | None,
    c: Array,
    static: Static,
) -> tuple[Array, Array, Array | None]:
    """Gradients of hidden, unembedding and bias; see `differentiate.py` for shapes."""
    unembedding, transposed = mosaic.oriented(unembedding, static.transposed)
    turned, static = transposed != static.transposed, static._replace(transposed=transposed)
    size = unembedding.shape[0 if static.transposed else 1]
    problem = Problem(hidden.shape[0], hidden.shape[1], size, hidden.dtype)
    config = choose_blocks(problem, static.config)
    scale = inverse_temperature * (static.softcap or 1.0)
    inside = (tokens >= 0) & (tokens < size)
    tokens = jnp.where(inside, tokens, -1)
    scales = (scale, inverse_temperature)

    def operands(rows: Rows) -> tuple[Array, Array, Array]:
        packed = mosaic_gradient.pack(peak, log_sum, (a, b, c), scales, rows)
        return (scale * LOG2E).reshape(1), mosaic.cut(tokens, rows), packed

    shared = (hidden, unembedding, bias, mask, static)
    d_rows = d_hidden(*shared, config.d_hidden, operands)
    d_matrix, d_bias = d_unembedding(*shared, config.d_unembedding, operands)
    return d_rows, d_matrix.T if turned else d_matrix, d_bias
