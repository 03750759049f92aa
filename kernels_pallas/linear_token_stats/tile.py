"""Logits of a block of rows and a block of the vocabulary, for the implementations in XLA."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from kernels_pallas.blocks import read
from kernels_pallas.records import Static


def matmul(x: Array, y: Array, axes: tuple[int, int]) -> Array:
    """The product of two matrices over one axis of each; float32 whatever comes in."""
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return lax.dot_general(
        x,
        y,
        ((axes[:1], axes[1:]), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def turned(product: Array) -> Array:
    """Its transpose.

    Behind a barrier: XLA would turn both factors instead, into a product over the leading axis of
    one and the last of the other, which is slow on CPUs, and in bfloat16 not there in jax 0.12.
    """
    return lax.optimization_barrier(product).T


def columns(
    unembedding: Array, bias: Array | None, first: Any, size: int, static: Static
) -> tuple[Array, Array | None]:
    """Weights and bias of tokens first ... first + size - 1, the weights in their own layout."""
    axis = 0 if static.transposed else 1
    weights = read(unembedding, first, size, axis)
    return weights, None if bias is None else read(bias, first, size, 0)


def logits_of(
    rows: Array,
    weights: Array,
    bias: Array | None,
    inverse_temperature: Array,
    static: Static,
) -> Array:
    """[rows, tokens] float32, after bias, softcap and temperature."""
    logits = matmul(rows, weights, (1, 1 if static.transposed else 0))
    if bias is not None:
        logits += bias[None, :]
    if static.softcap is not None:
        logits = static.softcap * jnp.tanh(logits / static.softcap)
    return logits * inverse_temperature


def logits_slope(logits: Array, inverse_temperature: Array, static: Static) -> Array:
    """What a logit changes by with the product it is made of, given the logits themselves."""
    if static.softcap is None:
        return inverse_temperature
    return inverse_temperature * (1.0 - jnp.square(logits / (static.softcap * inverse_temperature)))
