"""What attention remembers while completions are generated, and the `attend` that use it.

A prompt's keys and values are kept once and read by all completions of its group; each completion
has a ring of its own for what it generated. Rows of a batch may begin at different times: all write
to the same slot of their rings, and a row sees as many slots back as it has generated.

Axes: N layers, P prompts, G completions of each, KV heads, L prompt tokens, R slots of a ring, K.
A list of N arrays may stand for the layer axis, for a forward that is unrolled.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.nets.transformer import causal_attention
from rljax.types import Array, PyTree

BLOCK = 128  # queries at a time in a long prefill; prompts of more than 256 tokens are multiples


class KeysValues(NamedTuple):
    keys: Any  # of prompts [N, P, KV, L, K]; of completions [N, P, KV, G, R, K]
    values: Any


def empty_cache(config: Any, *shape: int) -> KeysValues:
    """Zeros [N, *shape, K] in the dtype that the model of `config` computes in."""
    shape = (config.num_layers, *shape, config.head_size)
    return KeysValues(*(jnp.zeros(shape, config.compute_dtype) for _ in range(2)))


def unstack_cache(cache: KeysValues) -> KeysValues:
    """Lists of layers instead of the layer axis."""
    return KeysValues(*([x[i] for i in range(x.shape[0])] for x in cache))


def prefill_attention(mask: Array) -> Callable:
    """Causal attention over prompts [P, L] that writes their keys and values to the memory.

    Long prompts are done in blocks of queries: all scores at once would be L² for each head.
    """
    length = mask.shape[1]
    if length > 2 * BLOCK and length % BLOCK == 0:
        attend_causally = causal_in_blocks(mask)
    else:
        attend_causally = causal_attention(mask)

    def attend(query: Array, key: Array, value: Array, memory: KeysValues, layer: Any):
        attended, _ = attend_causally(query, key, value, (), layer)
        moved = (jnp.swapaxes(x, 1, 2) for x in (key, value))  # [P, KV, L, K]
        return attended, KeysValues(*(m.at[layer].set(x) for m, x in zip(memory, moved)))

    return attend


def causal_in_blocks(mask: Array) -> Callable:
    """`causal_attention` of BLOCK queries at a time; L is a multiple of that."""
    length = mask.shape[1]

    def attend(query: Array, key: Array, value: Array, memory: PyTree, layer: Any):
        del layer
        flat = query.reshape(*query.shape[:2], -1, query.shape[-1])  # [P, L, H, K]

        def block(start: Array) -> Array:
            places = start + jnp.arange(BLOCK)
            visible = (places[:, None] >= jnp.arange(length)[None])[None] & mask[:, None]
            some = jax.lax.dynamic_slice_in_dim(flat, start, BLOCK, axis=1)
            return jax.nn.dot_product_attention(some, key, value, mask=visible[:, None])

        blocks = jax.lax.map(block, jnp.arange(0, length, BLOCK))  # [blocks, P, BLOCK, H, K]
        return jnp.moveaxis(blocks, 0, 1).reshape(query.shape), memory

    return attend


def cached_attention(
    prompts: KeysValues, prompt_mask: Array, slot: Array, generated: Array
) -> Callable:
    """Attention of one new token of each completion, rows [P · G, 1], to prompts and rings.

    Args:
      prompts: of the prompts.
      prompt_mask: [P, L] bool, real tokens.
      slot: int32 [], the slot of all rings that the new tokens are written to.
      generated: int32 [P, G], tokens of each completion in its ring, the new one included.
    """

    def attend(query: Array, key: Array, value: Array, memory: KeysValues, layer: Any):
        by_head = (_rows_by_head(x, generated.shape) for x in (query, key, value))
        query, key, value = by_head  # [P, KV, G, g, K], [P, KV, G, K] both
        new = (x[..., None, :] for x in (key, value))
        memory = KeysValues(*(_write(m, x, layer, slot) for m, x in zip(memory, new)))
        keys, values = (x[layer] for x in memory)
        prompt_keys, prompt_values = (x[layer] for x in prompts)
        query *= jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
        num_slots, length = keys.shape[3], prompt_keys.shape[2]

        slots = jnp.arange(num_slots)
        age = jnp.where(slots <= slot, slot - slots, slot - slots + num_slots)
        own_visible = (age[None, None] < generated[..., None])[:, None, :, None]
        own = _float32_einsum("pkcgh,pkcsh->pkcgs", query, keys)
        # All completions of a group are the rows of one product with its prompt.
        together = (*query.shape[:2], -1)
        shared = _float32_einsum(
            "pkmh,pklh->pkml", query.reshape(*together, query.shape[-1]), prompt_keys
        ).reshape(*query.shape[:-1], length)
        scores = jnp.concatenate(
            [
                jnp.where(prompt_mask[:, None, None, None], shared, -jnp.inf),
                jnp.where(own_visible, own, -jnp.inf),
            ],
            axis=-1,
        )
        weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        attended = _float32_einsum(
            "pkml,pklh->pkmh", weights[..., :length].reshape(*together, length), prompt_values
        ).reshape(query.shape)
        attended += _float32_einsum("pkcgs,pkcsh->pkcgh", weights[..., length:], values)
        attended = jnp.swapaxes(attended.astype(values.dtype), 1, 2)  # [P, G, KV, g, K]
        return attended.reshape(-1, 1, *attended.shape[2:]), memory

    return attend


def _rows_by_head(x: Array, shape: tuple[int, ...]) -> Array:
    """[P · G, 1, KV, ...] to [P, KV, G, ...]: products then need nothing transposed."""
    return jnp.swapaxes(x.reshape(*shape, *x.shape[2:]), 1, 2)


def _write(memory: Any, new: Array, layer: Any, slot: Array) -> PyTree:
    """`new` [P, KV, G, 1, K] at a slot of one layer's rings."""
    if isinstance(memory, list):
        written = jax.lax.dynamic_update_slice_in_dim(memory[layer], new, slot, axis=3)
        return [*memory[:layer], written, *memory[layer + 1 :]]
    return jax.lax.dynamic_update_slice(memory, new[None], (layer, 0, 0, 0, slot, 0))


def _float32_einsum(equation: str, x: Array, y: Array) -> Array:
    return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)
