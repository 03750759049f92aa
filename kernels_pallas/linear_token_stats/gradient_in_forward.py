"""Value and gradient of a sum of losses while the logits exist: the fast mode, in plain XLA.

For a block of rows the logits [rows, V] are computed once and kept. The loss says what it wants of
each row, and the logits turn into gradients at once: 6NDV flops, as if the logits of all rows had
been kept. Only the gradient of the sum itself is not known yet, and that is one number.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from kernels_pallas.blocks import (
    RowBlock,
    order_rows,
    over_rows,
    over_vocabulary,
    read,
    vary_like,
    write,
)
from kernels_pallas.choose import current_platform
from kernels_pallas.linear_token_stats import xla
from kernels_pallas.linear_token_stats.differentiate import Inputs, local_tokens
from kernels_pallas.linear_token_stats.elementwise import LossFn, total_loss
from kernels_pallas.linear_token_stats.tile import columns, logits_of, logits_slope, matmul
from kernels_pallas.online import begin, d_logits, finish, update
from kernels_pallas.outputs import coefficients, token_stats_of
from kernels_pallas.records import Blocks, Static, TokenStats

ON_CPU, ELSEWHERE = Blocks(512, 2048), Blocks(2048, 8192)


class Gradients(NamedTuple):
    """Of the sum over the rows so far; all float32."""

    hidden: Array  # [N, D], in the order of the walk
    unembedding: Array  # [D, V]
    bias: Array | None
    aux: list[Array]  # [N], of the leaves that are floats, in the order of the walk
    consts: list[Array]  # likewise


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def total_and_stats(
    loss_fn: LossFn, static: Static, inputs: Inputs, aux: Any, consts: list[Array]
) -> tuple[Array, TokenStats]:
    """The sum of the losses of unmasked rows, and their statistics, which get no gradient."""
    hidden, unembedding, tokens, mask, bias, inverse_temperature = inputs
    tokens, inside = local_tokens(tokens, unembedding, static, None)
    shard = xla.forward(
        *(hidden, unembedding, tokens, mask, bias, inverse_temperature),
        static._replace(config=None),
    )
    stats = token_stats_of(shard, inside, mask)
    return total_loss(loss_fn, stats, mask, aux, consts), stats


def _forward(
    loss_fn: LossFn, static: Static, inputs: Inputs, aux: Any, consts: list[Array]
) -> tuple[tuple[Array, TokenStats], Any]:
    hidden, unembedding, tokens, mask, bias, inverse_temperature = inputs
    num_rows, num_tokens = len(hidden), unembedding.shape[0 if static.transposed else 1]
    blocks = static.config or (ON_CPU if current_platform() == "cpu" else ELSEWHERE)
    if mask is not None:
        hidden = jnp.where(mask[:, None], hidden, 0)
    tokens, inside = local_tokens(tokens, unembedding, static, None)
    order = order_rows(mask)
    of_rows = jax.tree.map(order.sort, (hidden, tokens, inside, mask, aux))
    flipped = of_rows[0].T  # a product over the leading axis of both is slow on CPUs

    def visit(block: RowBlock, carry: Any) -> Any:
        total, results, gradients = carry
        rows, chosen, inside, kept, here = jax.tree.map(block.of, of_rows)
        counts = block.fresh if kept is None else block.fresh & kept

        def score(first: Any, size: int, carry: Any) -> Any:
            state, logits = carry
            new = logits_of(
                rows, *columns(unembedding, bias, first, size, static), inverse_temperature, static
            )
            state = update(state, new, chosen - first)
            return state, write(logits, new, first, 1)

        state = begin(block.size, static.entropy), jnp.zeros((block.size, num_tokens), jnp.float32)
        state, logits = over_vocabulary(
            num_tokens, blocks.vocabulary, score, vary_like(state, inputs)
        )
        shard = finish(state)
        stats = token_stats_of(shard, inside, kept)
        loss, pull = jax.vjp(
            lambda *given: total_loss(loss_fn, given[0], counts, *given[1:]), stats, here, consts
        )
        d_stats, d_aux, d_consts = pull(vary_like(jnp.float32(1.0), loss))
        log_sum = jnp.where(shard.log_sum == -jnp.inf, 0.0, shard.log_sum)
        given = (chosen, shard.peak, log_sum, *coefficients(stats, d_stats, counts))

        def spread(first: Any, size: int, carry: Any) -> Any:
            d_rows, d_unembedding, d_bias = carry
            weights, _ = columns(unembedding, bias, first, size, static)
            z = read(logits, first, size, 1)
            dz = d_logits(z, chosen - first, *given[1:])
            dz *= logits_slope(z, inverse_temperature, static)
            if d_bias is not None:
                d_bias = add(d_bias, jnp.sum(dz, axis=0), first, 0)
            dz = dz.astype(rows.dtype)
            d_rows += matmul(dz, weights, (1, 0 if static.transposed else 1))
            d_weights = matmul(read(flipped, block.first, block.size, 1), dz, (1, 0))
            return d_rows, add(d_unembedding, d_weights, first, 1), d_bias

        d_rows = block.of(gradients.hidden)  # of rows seen before, which get 0 more
        d_rows, d_unembedding, d_bias = over_vocabulary(
            num_tokens, blocks.vocabulary, spread, (d_rows, gradients.unembedding, gradients.bias)
        )
        gradients = Gradients(
            block.put(gradients.hidden, d_rows),
            d_unembedding,
            d_bias,
            [block.put(x, block.of(x) + y) for x, y in zip(gradients.aux, floats(d_aux, aux))],
            [x + y for x, y in zip(gradients.consts, floats(d_consts, consts))],
        )
        results = jax.tree.map(block.put, results, stats)
        return total + loss, results, gradients

    zeros = jnp.zeros(num_rows, jnp.float32)
    carry = (
        jnp.zeros((), jnp.float32),
        TokenStats(zeros, zeros if static.entropy else None, zeros),
        Gradients(
            jnp.zeros(hidden.shape, jnp.float32),
            jnp.zeros((hidden.shape[1], num_tokens), jnp.float32),
            None if bias is None else jnp.zeros(num_tokens, jnp.float32),
            [zeros for _ in floats(aux, aux)],
            [jnp.zeros(x.shape, jnp.float32) for x in floats(consts, consts)],
        ),
    )
    carry = vary_like(carry, inputs, aux, consts)
    total, results, gradients = over_rows(num_rows, blocks.rows, order.count, visit, carry)
    results = jax.tree.map(order.unsort, results)
    like = jax.tree.map(lambda x: jnp.zeros((), x.dtype), (hidden, unembedding, aux, consts))
    return (total, results), (gradients, order, like)


def is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def floats(tree: Any, like: Any) -> list[Array]:
    """The leaves of a tree where those of another, which is of the same form, are floats."""
    return [x for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(like)) if is_float(y)]


def add(array: Array, block: Array, first: Any, axis: int) -> Array:
    return write(array, read(array, first, block.shape[axis], axis) + block, first, axis)


def _backward(loss_fn: LossFn, static: Static, saved: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    gradients, order, (hidden, unembedding, aux, consts) = saved
    g = cotangents[0]

    def scale(x: Array, like: Array) -> Array:
        return (g * x).astype(like.dtype)

    inputs = (
        order.unsort(scale(gradients.hidden, hidden)),
        scale(gradients.unembedding.T if static.transposed else gradients.unembedding, unembedding),
        *(None, None),
        None if gradients.bias is None else g * gradients.bias,
        None,
    )
    of_aux, of_consts = iter(gradients.aux), iter(gradients.consts)
    d_aux = jax.tree.map(
        lambda x: scale(order.unsort(next(of_aux)), x) if is_float(x) else None, aux
    )
    d_consts = [scale(next(of_consts), x) if is_float(x) else None for x in consts]
    return inputs, d_aux, d_consts


total_and_stats.defvjp(_forward, _backward)
