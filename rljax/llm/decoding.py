"""Generating one token after the other: what `sampler.generate` is made of.

    start: prefill of every prompt once -> the first token of each of its G completions
    run:   while some completion goes on: feed the last tokens, filter, sample, write

`run` may be called again with a later `until`, so that somebody can look on between.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.llm.cache import (
    KeysValues,
    cached_attention,
    empty_cache,
    prefill_attention,
    unstack_cache,
)
from rljax.llm.filters import filter_logits, sample_tokens
from rljax.llm.settings import Settings
from rljax.llm.stops import is_stop
from rljax.nets.transformer import positions_of, unstack
from rljax.types import Array, Completions, Key, LanguageNet, Params


class SamplerState(NamedTuple):
    """All there is between two tokens."""

    time: Array  # int32 []: tokens that each completion has, if it goes on
    keys: Key  # [P, G], of the completions
    last: Array  # int32 [P, G], the newest tokens, not yet fed to the model
    text: Array  # int32 [P, G], states of the stop strings' automaton
    going: Array  # bool [P, G]
    tokens: Array  # int32 [P, G, N]
    log_probs: Array  # float32 [P, G, N]
    lengths: Array  # int32 [P, G]
    prompt_mask: Array  # bool [P, L]
    prompts: KeysValues
    cache: KeysValues


def start(
    key: Key,
    net: LanguageNet,
    params: Params,
    prompt_tokens: Array,
    prompt_mask: Array,
    first_prompt: Any,
    stop_table: Array,
    settings: Settings,
) -> SamplerState:
    """The prompts prefilled, and the first token of each completion."""
    (num, _), group = prompt_tokens.shape, settings.group_size
    logits, prompts = prefill(net, params, prompt_tokens, prompt_mask)
    size = (num, group, settings.max_new_tokens)
    cache = empty_cache(net.config, num, net.config.num_kv_heads, group, settings.max_new_tokens)
    if settings.unroll:
        prompts, cache = unstack_cache(prompts), unstack_cache(cache)
    state = SamplerState(
        time=jnp.int32(0),
        keys=completion_keys(key, first_prompt + jnp.arange(num), group),
        last=jnp.zeros(size[:2], jnp.int32),
        text=jnp.zeros(size[:2], jnp.int32),
        going=jnp.ones(size[:2], bool),
        tokens=jnp.full(size, settings.pad_token, jnp.int32),
        log_probs=jnp.zeros(size),
        lengths=jnp.zeros(size[:2], jnp.int32),
        prompt_mask=prompt_mask,
        prompts=prompts,
        cache=cache,
    )
    logits = jnp.broadcast_to(logits[:, None], (num, group, logits.shape[-1]))
    return extend(state, logits, stop_table, settings)


def run(
    net: LanguageNet,
    params: Params,
    state: SamplerState,
    until: Any,
    stop_table: Array,
    settings: Settings,
) -> SamplerState:
    """Goes on until each completion has stopped or has `until` tokens."""
    if settings.unroll:
        params = unstack(params)
    prompt_lengths = jnp.sum(state.prompt_mask, axis=1, dtype=jnp.int32)
    until = jnp.minimum(until, settings.max_new_tokens)

    def proceed(state: SamplerState) -> Array:
        return jnp.any(state.going) & (state.time < until)

    def step(state: SamplerState) -> SamplerState:
        slot = state.time - 1
        logits, cache = decode(
            *(net, params, state.last),
            positions=jnp.broadcast_to((prompt_lengths + slot)[:, None], state.last.shape),
            prompts=state.prompts,
            prompt_mask=state.prompt_mask,
            cache=state.cache,
            slot=slot,
            generated=jnp.full_like(state.lengths, state.time),
        )
        return extend(state._replace(cache=cache), logits, stop_table, settings)

    return jax.lax.while_loop(proceed, step, state)


def prefill(
    net: LanguageNet, params: Params, tokens: Array, mask: Array
) -> tuple[Array, KeysValues]:
    """Logits [P, V] after prompts [P, L], and their keys and values."""
    cache = empty_cache(net.config, len(tokens), net.config.num_kv_heads, tokens.shape[1])
    hidden, prompts = net.forward(
        params, tokens, positions_of(mask), prefill_attention(mask), cache
    )
    return net.unembed(params, hidden[:, -1]), prompts


def decode(
    net: LanguageNet,
    params: Params,
    tokens: Array,
    *,
    positions: Array,
    prompts: KeysValues,
    prompt_mask: Array,
    cache: KeysValues,
    slot: Array,
    generated: Array,
) -> tuple[Array, KeysValues]:
    """Logits [P, G, V] after one more token of each completion [P, G], and the cache with it."""
    attend = cached_attention(prompts, prompt_mask, slot, generated)
    rows = tokens.reshape(-1, 1), positions.reshape(-1, 1)
    hidden, cache = net.forward(params, *rows, attend, cache)
    return net.unembed(params, hidden[:, 0]).reshape(*tokens.shape, -1), cache


def extend(
    state: SamplerState, logits: Array, stop_table: Array, settings: Settings
) -> SamplerState:
    """One more token for each completion that goes on, by logits [P, G, V]."""
    number = jnp.full_like(state.lengths, state.time)
    tokens, log_probs = next_tokens(state.keys, number, logits, settings)
    tokens = jnp.where(state.going, tokens, settings.pad_token)
    log_probs = jnp.where(state.going, log_probs, 0.0)
    stopped, text = stop(tokens, state.text, stop_table, settings)

    def write(all: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(all, new[..., None], state.time, axis=2)

    return state._replace(
        time=state.time + 1,
        last=tokens,
        text=text,
        going=state.going & ~stopped,
        tokens=write(state.tokens, tokens),
        log_probs=write(state.log_probs, log_probs),
        lengths=state.lengths + state.going,
    )


def stop(tokens: Array, text: Array, stop_table: Array, settings: Settings) -> tuple[Array, Array]:
    """Whether new tokens [*S] end their completions, and the automaton's states after them."""
    text = stop_table.at[text, tokens].get(mode="clip")
    return is_stop(tokens, settings.stop_tokens) | (text == stop_table.shape[0]), text


def next_tokens(
    keys: Key, numbers: Array, logits: Array, settings: Settings
) -> tuple[Array, Array]:
    """Token `number` [*S] of completions with `keys` [*S], and its log-probability."""
    logits = sampled_logits(logits, numbers, settings)
    if settings.temperature == 0:
        tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return tokens, jnp.zeros(tokens.shape)
    flat = jax.vmap(jax.random.fold_in)(keys.reshape(-1), numbers.reshape(-1))
    return sample_tokens(flat.reshape(keys.shape), logits)


def sampled_logits(logits: Array, numbers: Array, settings: Settings) -> Array:
    """Logits [*S, V] of the distribution that tokens `number` [*S] of completions come from."""
    if settings.min_new_tokens and settings.stop_tokens:
        stops = is_stop(jnp.arange(logits.shape[-1]), settings.stop_tokens)
        early = (numbers < settings.min_new_tokens)[..., None]
        logits = jnp.where(early & jnp.broadcast_to(stops, logits.shape), -jnp.inf, logits)
    return filter_logits(
        logits,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
    )


def completion_keys(key: Key, prompts: Array, group_size: int) -> Key:
    """A key [P, G] for each completion, by the index of its prompt and its own in the group."""
    members = jnp.arange(group_size)
    of_prompts = jax.vmap(partial(jax.random.fold_in, key))(prompts)
    return jax.vmap(lambda k: jax.vmap(partial(jax.random.fold_in, k))(members))(of_prompts)


def completions_of(tokens: Array, log_probs: Array, lengths: Array, going: Array) -> Completions:
    """Of completions that have `lengths` tokens [P, G], and may not have been finished."""
    places = jnp.arange(tokens.shape[-1])[None, None]
    return Completions(tokens, places < lengths[..., None], log_probs, lengths, ~going)
