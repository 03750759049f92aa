"""One rule of differentiation for every implementation, and the sum over shards of the vocabulary.

An implementation knows one shard, and has two functions (`xla.py` is the plainest):

    forward(hidden [N, D], unembedding, tokens int32 [N], mask bool [N] or None, bias float32 [V]
        or None, inverse_temperature float32 [], static) -> ShardStats
    backward(hidden, unembedding, tokens, mask, bias, inverse_temperature, peak, log_sum, a, b, c,
        static) -> gradients of hidden, unembedding and bias

Saved between them are the inputs and a few [N].
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels_pallas.blocks import vary_like, varying_axes
from kernels_pallas.outputs import coefficients, combine, token_stats_of
from kernels_pallas.records import Static, TokenStats

Inputs = tuple[Array, Array, Array, Array | None, Array | None, Array]


def differentiable_stats(
    implementation: Any, static: Static, vocab_axis: str | None, inputs: Inputs
) -> TokenStats:
    """The statistics by `implementation`, a module with `forward` and `backward`."""
    hidden, unembedding, tokens, mask, bias, inverse_temperature = inputs
    place = None if vocab_axis is None else lax.axis_index(vocab_axis)
    # Outside the rule: JAX itself sums gradients over the axes that an input is the same on.
    hidden, unembedding, bias = vary_like((hidden, unembedding, bias), inputs, place)
    inverse_temperature = lax.stop_gradient(inverse_temperature)
    inputs = (hidden, unembedding, tokens, mask, bias, inverse_temperature)
    return _stats(implementation, static, vocab_axis, inputs)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _stats(implementation: Any, static: Static, vocab_axis: str | None, inputs: Inputs) -> Any:
    return _forward(implementation, static, vocab_axis, inputs)[0]


def local_tokens(
    tokens: Array, unembedding: Array, static: Static, vocab_axis: str | None
) -> tuple[Array, Array]:
    """Tokens counted from the first of this shard, and which are in the whole vocabulary."""
    size = unembedding.shape[0 if static.transposed else 1]
    if vocab_axis is None:
        return tokens, (tokens >= 0) & (tokens < size)
    inside = (tokens >= 0) & (tokens < size * lax.axis_size(vocab_axis))
    # Where a token is far outside, the difference could wrap around into the shard.
    tokens = jnp.where(inside, tokens, -1)
    first = lax.axis_index(vocab_axis) * size
    return jnp.where(tokens >= first, tokens - first, -1), inside


def _forward(implementation: Any, static: Static, vocab_axis: str | None, inputs: Inputs) -> Any:
    hidden, unembedding, tokens, mask, bias, inverse_temperature = inputs
    local, inside = local_tokens(tokens, unembedding, static, vocab_axis)
    shard = implementation.forward(
        hidden, unembedding, local, mask, bias, inverse_temperature, static
    )
    if vocab_axis is not None:
        shard = combine(shard, vocab_axis)
    stats = token_stats_of(shard, inside, mask)
    return stats, (inputs, local, shard.peak, shard.log_sum, stats)


def _backward(
    implementation: Any, static: Static, vocab_axis: str | None, saved: Any, gradients: TokenStats
) -> tuple[Any]:
    inputs, local, peak, log_sum, stats = saved
    hidden, unembedding, _, mask, bias, inverse_temperature = inputs
    if vocab_axis is not None and vocab_axis not in varying_axes(lax.axis_index(vocab_axis)):
        # Nobody checks what is the same on all devices (check_vma=False): each has its own copy of
        # the result, and a part of the gradient, as `psum` sees it.
        gradients = jax.tree.map(lambda x: lax.psum(x, vocab_axis), gradients)
    log_sum = jnp.where(log_sum == -jnp.inf, 0.0, log_sum)
    d_hidden, d_unembedding, d_bias = implementation.backward(
        *(hidden, unembedding, local, mask, bias, inverse_temperature, peak, log_sum),
        *coefficients(stats, gradients, mask),
        static,
    )
    return ((d_hidden, d_unembedding, None, None, d_bias, None),)


_stats.defvjp(_forward, _backward)
