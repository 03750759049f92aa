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


class KeysValues(NamedTuple):
    keys: Any  # of prompts [N, P, KV, L, K]; of completions [N, P, G, KV, R, K]
    values: Any


def empty_cache(config: Any, *shape: int) -> KeysValues:
    """Zeros [N, *shape, K] in the dtype that the model of `config` computes in."""
    shape = (config.num_layers, *shape, config.head_size)
    return KeysValues(*(jnp.zeros(shape, config.compute_dtype) for _ in range(2)))


def unstack_cache(cache: KeysValues) -> KeysValues:
    """Lists of layers instead of the layer axis."""
    return KeysValues(*([x[i] for i in range(x.shape[0])] for x in cache))


def prefill_attention(mask: Array) -> Callable:
    """Causal attention over prompts [P, L] that writes their keys and values to the memory."""
    attend_causally = causal_attention(mask)

    def attend(query: Array, key: Array, value: Array, memory: KeysValues, layer: Any):
        attended, _ = attend_causally(query, key, value, (), layer)
        moved = (jnp.swapaxes(x, 1, 2) for x in (key, value))  # [P, KV, L, K]
        return attended, KeysValues(*(m.at[layer].set(x) for m, x in zip(memory, moved)))

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
        shape = (*generated.shape, *query.shape[2:])  # [P, G, KV, g, K]
        new = (x.reshape(*generated.shape, x.shape[2], 1, x.shape[-1]) for x in (key, value))
        memory = KeysValues(*(_write(m, x, layer, slot) for m, x in zip(memory, new)))
        keys, values = (x[layer] for x in memory)
        prompt_keys, prompt_values = (x[layer] for x in prompts)
        query = query.reshape(shape) * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)

        num_slots = keys.shape[3]
        slots = jnp.arange(num_slots)
        age = jnp.where(slots <= slot, slot - slots, slot - slots + num_slots)
        own_visible = (age[None, None] < generated[..., None])[:, :, None, None]
        own = _float32_einsum("pckgh,pcksh->pckgs", query, keys)
        shared = _float32_einsum("pckgh,pklh->pckgl", query, prompt_keys)
        scores = jnp.concatenate(
            [
                jnp.where(prompt_mask[:, None, None, None], shared, -jnp.inf),
                jnp.where(own_visible, own, -jnp.inf),
            ],
            axis=-1,
        )
        weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        length = prompt_keys.shape[2]
        attended = _float32_einsum("pckgl,pklh->pckgh", weights[..., :length], prompt_values)
        attended += _float32_einsum("pckgs,pcksh->pckgh", weights[..., length:], values)
        return attended.astype(values.dtype).reshape(-1, 1, *shape[2:]), memory

    return attend


def _write(memory: Any, new: Array, layer: Any, slot: Array) -> PyTree:
    """`new` [P, G, KV, 1, K] at a slot of one layer's rings."""
    if isinstance(memory, list):
        written = jax.lax.dynamic_update_slice_in_dim(memory[layer], new, slot, axis=3)
        return [*memory[:layer], written, *memory[layer + 1 :]]
    return jax.lax.dynamic_update_slice(memory, new[None], (layer, 0, 0, 0, slot, 0))


def _float32_einsum(equation: str, x: Array, y: Array) -> Array:
    return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)
