"""KL(p‖q) of two models in plain jnp: the definition. It materialises both logits [N, V]."""

import jax.numpy as jnp
from jax import Array, lax

from kernels_pallas.categorical_kl.reference import divergence
from kernels_pallas.records import KLStatic

Pair = tuple[Array, Array]


def reference(of_p: Pair, of_q: Pair, static: KLStatic) -> Array:
    """[N] float32; each pair is hidden [N, D] and unembedding [D, V] or [V, D]."""

    def logits(pair: Pair, transposed: bool) -> Array:
        hidden, unembedding = (x.astype(jnp.float32) for x in pair)
        unembedding = unembedding.T if transposed else unembedding
        return jnp.dot(hidden, unembedding, precision=lax.Precision.HIGHEST)

    return divergence(logits(of_p, static.transposed_p), logits(of_q, static.transposed_q))
