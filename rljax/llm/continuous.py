"""Continuous batching: rows whose completion has ended take the next one from the queue.

The queue holds the G completions of the first prompt, then those of the second, and so on. Prompts
are prefilled when their first completion is due, each once. A row has a copy of its prompt's keys
and values, as rows of one prompt do not stand together.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.llm.cache import KeysValues, empty_cache, unstack_cache
from rljax.llm.decoding import completion_keys, completions_of, decode, next_tokens, prefill, stop
from rljax.llm.settings import Settings
from rljax.nets.transformer import unstack
from rljax.types import Array, Completions, Key, LanguageNet, Params


class Rows(NamedTuple):
    """The R completions under way."""

    task: Array  # int32 [R], number in the queue
    length: Array  # int32 [R], tokens generated
    last: Array  # int32 [R], the newest token
    text: Array  # int32 [R], states of the stop strings' automaton
    going: Array  # bool [R]; the others are free
    prompt_mask: Array  # bool [R, L]
    prompts: KeysValues  # [N, R, KV, L, K], or lists of N as in `cache.py`


class QueueState(NamedTuple):
    slot: Array  # int32 [], of all rings: where the next tokens are written
    next: Array  # int32 [], the first completion that no row has taken
    loaded: Array  # int32 [], number of the prompt that was prefilled last, -1: none
    logits: Array  # float32 [1, V], after that prompt
    prompt: KeysValues  # [N, 1, KV, L, K], of that prompt
    rows: Rows
    cache: KeysValues
    tokens: Array  # int32 [P · G, N], and so on: what comes out
    log_probs: Array
    lengths: Array
    finished: Array


def complete(
    key: Key,
    net: LanguageNet,
    params: Params,
    prompt_tokens: Array,
    prompt_mask: Array,
    first_prompt: Any,
    stop_table: Array,
    settings: Settings,
) -> Completions:
    """What `decoding.start` and `run` give for all prompts, with `num_rows` rows at a time."""
    (num, length), group = prompt_tokens.shape, settings.group_size
    num_rows, size = settings.num_rows, settings.max_new_tokens
    config, total = net.config, num * group
    keys = completion_keys(key, first_prompt + jnp.arange(num), group).reshape(-1)
    if settings.unroll:
        weights, laid_out = unstack(params), unstack_cache
    else:
        weights, laid_out = params, lambda cache: cache

    def refill(state: QueueState) -> QueueState:
        """Free rows take the completions that are left of the next one's prompt."""
        number = state.next // group
        state = jax.lax.cond(state.loaded == number, lambda s, _: s, load, state, number)
        free = ~state.rows.going
        task = state.next + jnp.cumsum(free, dtype=jnp.int32) - free
        taken = free & (task < (number + 1) * group)
        task = jnp.where(taken, task, state.rows.task)

        def put(new: Array, old: Array) -> Array:  # [N, 1, KV, L, K] and [N, R, KV, L, K], or no N
            chosen = taken.reshape((1,) * (old.ndim - 4) + (-1, 1, 1, 1))
            return jnp.where(chosen, new, old)

        rows = state.rows._replace(
            task=task,
            length=jnp.where(taken, 0, state.rows.length),
            text=jnp.where(taken, 0, state.rows.text),
            going=state.rows.going | taken,
            prompt_mask=jnp.where(
                taken[:, None], prompt_mask[number][None], state.rows.prompt_mask
            ),
            prompts=jax.tree.map(put, state.prompt, state.rows.prompts),
        )
        state = state._replace(rows=rows, next=state.next + jnp.sum(taken, dtype=jnp.int32))
        logits = jnp.broadcast_to(state.logits, (num_rows, config.vocab_size))
        return extend(state, logits, taken)

    def load(state: QueueState, number: Array) -> QueueState:
        one = (jax.lax.dynamic_slice_in_dim(x, number, 1) for x in (prompt_tokens, prompt_mask))
        logits, prompt = prefill(net, params, *one)
        return state._replace(loaded=number, logits=logits, prompt=laid_out(prompt))

    def extend(state: QueueState, logits: Array, among: Array) -> QueueState:
        """One more token for the rows `among`, by logits [R, V]."""
        rows = state.rows
        tokens, log_probs = next_tokens(keys[rows.task], rows.length, logits, settings)
        stopped, text = stop(tokens, rows.text, stop_table, settings)
        length = rows.length + among
        task = jnp.where(among, rows.task, total)  # out of bounds is dropped
        place = (task, rows.length)
        return state._replace(
            rows=rows._replace(
                length=length,
                last=jnp.where(among, tokens, rows.last),
                text=jnp.where(among, text, rows.text),
                going=rows.going & ~(among & (stopped | (length == size))),
            ),
            tokens=state.tokens.at[place].set(tokens, mode="drop"),
            log_probs=state.log_probs.at[place].set(log_probs, mode="drop"),
            lengths=state.lengths.at[task].set(length, mode="drop"),
            finished=state.finished.at[task].set(stopped, mode="drop"),
        )

    def can_refill(state: QueueState) -> Array:
        return (state.next < total) & ~jnp.all(state.rows.going)

    def step(state: QueueState) -> QueueState:
        state = jax.lax.while_loop(can_refill, refill, state)
        rows = state.rows
        prompt_lengths = jnp.sum(rows.prompt_mask, axis=1, dtype=jnp.int32)
        logits, cache = decode(
            *(net, weights, rows.last[:, None]),
            positions=(prompt_lengths + rows.length - 1)[:, None],
            prompts=rows.prompts,
            prompt_mask=rows.prompt_mask,
            cache=state.cache,
            slot=state.slot,
            generated=rows.length[:, None],
        )
        state = state._replace(cache=cache, slot=(state.slot + 1) % size)
        return extend(state, logits[:, 0], rows.going)

    def zeros(*shape: int) -> Array:
        return jnp.zeros(shape, jnp.int32)

    heads = config.num_kv_heads
    state = QueueState(
        slot=zeros(),
        next=zeros(),
        loaded=zeros() - 1,
        logits=jnp.zeros((1, config.vocab_size)),
        prompt=laid_out(empty_cache(config, 1, heads, length)),
        rows=Rows(
            task=zeros(num_rows),
            length=zeros(num_rows),
            last=zeros(num_rows),
            text=zeros(num_rows),
            going=jnp.zeros(num_rows, bool),
            prompt_mask=jnp.zeros((num_rows, length), bool),
            prompts=laid_out(empty_cache(config, num_rows, heads, length)),
        ),
        cache=laid_out(empty_cache(config, num_rows, heads, 1, size)),
        tokens=jnp.full((total, size), settings.pad_token, jnp.int32),
        log_probs=jnp.zeros((total, size)),
        lengths=zeros(total),
        finished=jnp.zeros(total, bool),
    )
    state = jax.lax.while_loop(
        lambda state: (state.next < total) | jnp.any(state.rows.going), step, state
    )
    rows = (state.tokens, state.log_probs, state.lengths, ~state.finished)
    return completions_of(*(x.reshape(num, group, *x.shape[1:]) for x in rows))
