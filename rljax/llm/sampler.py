"""Grouped completions of prompts, generated in one program over all devices.

    start: prefill of every prompt once -> the first token of each of its G completions
    run:   while some completion goes on: feed the last tokens, filter, sample, write

Completions of a group share their prompt's keys and values. The key of a token is made from the
index of its prompt, of the completion in its group, and of the token: what is sampled does not
depend on the number of devices, nor on what else is in the batch.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Bool, Integer, Shaped

from rljax.llm.cache import (
    KeysValues,
    cached_attention,
    empty_cache,
    prefill_attention,
    unstack_cache,
)
from rljax.llm.filters import check_filter, filter_logits, sample_tokens
from rljax.nets.transformer import positions_of, unstack
from rljax.types import Array, Completions, Key, LanguageNet, Params

__all__ = ["completion_mask", "filter_logits", "generate"]


class Settings(NamedTuple):
    """What is fixed when a sampler is compiled."""

    group_size: int
    max_new_tokens: int
    stop_tokens: tuple[int, ...]
    pad_token: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_new_tokens: int = 0  # stop tokens are not sampled before
    unroll: bool = False  # the layers of a decoding step


class SamplerState(NamedTuple):
    """All there is between two tokens."""

    time: Array  # int32 []: tokens that each completion has, if it goes on
    keys: Key  # [P, G], of the completions
    last: Array  # int32 [P, G], the newest tokens, not yet fed to the model
    going: Array  # bool [P, G]
    tokens: Array  # int32 [P, G, N]
    log_probs: Array  # float32 [P, G, N]
    lengths: Array  # int32 [P, G]
    prompt_mask: Array  # bool [P, L]
    prompts: KeysValues
    cache: KeysValues


def generate(
    key: Key,
    net: LanguageNet,
    params: Params,
    prompt_tokens: Integer[ArrayLike, "P L"],
    prompt_mask: Shaped[ArrayLike, "P L"],
    *,
    group_size: int,
    max_new_tokens: int,
    stop_tokens: Any,
    pad_token: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_new_tokens: int = 0,
    first_prompt: int = 0,
    unroll: bool | None = None,
) -> Completions:
    """G completions of each prompt, with the log-probabilities of their tokens.

    Args:
        key: consumed.
        net, params: the model.
        prompt_tokens: [P, L] integers, left-padded; L is rounded up to one of few lengths, so that
            prompts of many lengths need few programs.
        prompt_mask: [P, L], bool or 0/1, real tokens; each row has one at its end.
        group_size: G, at least 1.
        max_new_tokens: N, at least 1.
        stop_tokens: integers that end a completion, and are kept as its last token; may be empty.
        pad_token: what stands after the end.
        temperature, top_k, top_p: as in `filter_logits`.
        min_new_tokens: a stop token is not sampled before so many others.
        first_prompt: index of the first prompt, where a list of prompts comes in several calls.
        unroll: whether the layers of a decoding step are unrolled: faster on CPUs (the default
            there), but compiled more slowly.

    Returns:
        `Completions` [P, G, N].

    Raises:
        ValueError: if shapes differ, a row has no token at its end, or a setting is out of range.

    Example:
        >>> from rljax.nets.transformer import TransformerConfig, make_transformer
        >>> net = make_transformer(TransformerConfig(11, 1, 8, 2, 1, 4, 16))
        >>> prompts, settings = jnp.array([[3, 4]]), dict(stop_tokens=[0], pad_token=0)
        >>> generate(jax.random.key(1), net, net.init(jax.random.key(0)), prompts, prompts > 0,
        ...     group_size=2, max_new_tokens=5, **settings).tokens.shape
        (1, 2, 5)
    """
    prompt_tokens, prompt_mask = check_prompts(prompt_tokens, prompt_mask)
    settings = Settings(
        group_size=group_size,
        max_new_tokens=max_new_tokens,
        stop_tokens=tuple(int(token) for token in stop_tokens),
        pad_token=int(pad_token),
        temperature=float(temperature),
        top_k=int(top_k),
        top_p=float(top_p),
        min_new_tokens=min_new_tokens,
        unroll=jax.default_backend() == "cpu" if unroll is None else unroll,
    )
    check_settings(settings, net.config.vocab_size)
    return _generate(
        key, net, params, *pad_to_bucket(prompt_tokens, prompt_mask), first_prompt, settings
    )


@partial(jax.jit, static_argnames=("net", "settings"))
def _generate(
    key: Key,
    net: LanguageNet,
    params: Params,
    prompt_tokens: Array,
    prompt_mask: Array,
    first_prompt: Any,
    settings: Settings,
) -> Completions:
    state = start(key, net, params, prompt_tokens, prompt_mask, first_prompt, settings)
    state = run(net, params, state, settings.max_new_tokens, settings)
    return completions_of(state, settings)


def start(
    key: Key,
    net: LanguageNet,
    params: Params,
    prompt_tokens: Array,
    prompt_mask: Array,
    first_prompt: Any,
    settings: Settings,
) -> SamplerState:
    """The prompts prefilled, and the first token of each completion."""
    config = net.config
    (num, length), group = prompt_tokens.shape, settings.group_size
    hidden, prompts = net.forward(
        params,
        prompt_tokens,
        positions_of(prompt_mask),
        prefill_attention(prompt_mask),
        empty_cache(config, num, config.num_kv_heads, length),
    )
    logits = net.unembed(params, hidden[:, -1])
    logits = jnp.broadcast_to(logits[:, None], (num, group, config.vocab_size))
    size = (num, group, settings.max_new_tokens)
    cache = empty_cache(config, num, group, config.num_kv_heads, settings.max_new_tokens)
    if settings.unroll:
        prompts, cache = unstack_cache(prompts), unstack_cache(cache)
    state = SamplerState(
        time=jnp.int32(0),
        keys=completion_keys(key, first_prompt + jnp.arange(num), group),
        last=jnp.zeros(size[:2], jnp.int32),
        going=jnp.ones(size[:2], bool),
        tokens=jnp.full(size, settings.pad_token, jnp.int32),
        log_probs=jnp.zeros(size),
        lengths=jnp.zeros(size[:2], jnp.int32),
        prompt_mask=prompt_mask,
        prompts=prompts,
        cache=cache,
    )
    return extend(state, logits, settings)


def run(
    net: LanguageNet, params: Params, state: SamplerState, until: Any, settings: Settings
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
        attend = cached_attention(
            state.prompts, state.prompt_mask, slot, jnp.full_like(state.lengths, state.time)
        )
        positions = jnp.broadcast_to((prompt_lengths + slot)[:, None], state.last.shape)
        rows = state.last.reshape(-1, 1), positions.reshape(-1, 1)
        hidden, cache = net.forward(params, *rows, attend, state.cache)
        logits = net.unembed(params, hidden[:, 0]).reshape(*state.last.shape, -1)
        return extend(state._replace(cache=cache), logits, settings)

    return jax.lax.while_loop(proceed, step, state)


def extend(state: SamplerState, logits: Array, settings: Settings) -> SamplerState:
    """One more token for each completion that goes on, by logits [P, G, V]."""
    tokens, log_probs = next_tokens(state.keys, state.time, logits, settings)
    tokens = jnp.where(state.going, tokens, settings.pad_token)
    log_probs = jnp.where(state.going, log_probs, 0.0)

    def write(all: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(all, new[..., None], state.time, axis=2)

    return state._replace(
        time=state.time + 1,
        last=tokens,
        going=state.going & ~is_stop(tokens, settings.stop_tokens),
        tokens=write(state.tokens, tokens),
        log_probs=write(state.log_probs, log_probs),
        lengths=state.lengths + state.going,
    )


def next_tokens(keys: Key, number: Array, logits: Array, settings: Settings) -> tuple[Array, Array]:
    """Token `number` of each completion [P, G], and its log-probability."""
    logits = sampled_logits(logits, number, settings)
    if settings.temperature == 0:
        tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return tokens, jnp.zeros(tokens.shape)
    number = jnp.broadcast_to(number, keys.shape)
    return sample_tokens(jax.vmap(jax.vmap(jax.random.fold_in))(keys, number), logits)


def sampled_logits(logits: Array, number: Any, settings: Settings) -> Array:
    """Logits [*S, V] of the distribution of token `number` [] or [*S]."""
    if settings.min_new_tokens and settings.stop_tokens:
        stops = is_stop(jnp.arange(logits.shape[-1]), settings.stop_tokens)
        early = jnp.broadcast_to(number < settings.min_new_tokens, logits.shape[:-1])
        stops = jnp.broadcast_to(stops, logits.shape)
        logits = jnp.where(early[..., None] & stops, -jnp.inf, logits)
    return filter_logits(
        logits,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
    )


def completion_keys(key: Key, prompts: Array, group_size: int) -> Key:
    """A key [P, G] for each completion, by the index of its prompt and its own in the group."""
    of_prompts = jax.vmap(partial(jax.random.fold_in, key))(prompts)
    return jax.vmap(lambda k: jax.vmap(partial(jax.random.fold_in, k))(jnp.arange(group_size)))(
        of_prompts
    )


def completions_of(state: SamplerState, settings: Settings) -> Completions:
    places = jnp.arange(settings.max_new_tokens)[None, None]
    return Completions(
        tokens=state.tokens,
        mask=places < state.lengths[..., None],
        log_probs=state.log_probs,
        lengths=state.lengths,
        finished=~state.going,
    )


def completion_mask(
    tokens: Integer[ArrayLike, "B N"],
    num_generated: Integer[ArrayLike, " B"],
    *,
    stop_tokens: Any,
) -> tuple[Bool[Array, "B N"], Integer[Array, " B"], Bool[Array, " B"]]:
    """Which tokens belong to a completion: up to and with the first stop token that was generated.

    Args:
        tokens: [B, N] integers; what stands after the generated part is not read.
        num_generated: [B], tokens that were generated in each row, from 0 to N.
        stop_tokens: integers, may be empty.

    Returns:
        mask [B, N] bool, lengths [B] int32, finished [B] bool: whether there is a stop token.

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> mask, lengths, finished = completion_mask(
        ...     jnp.array([[5, 2, 2], [5, 6, 2]]), jnp.array([3, 2]), stop_tokens=[2])
        >>> lengths.tolist(), finished.tolist()
        ([2, 2], [True, False])
    """
    tokens, num_generated = jnp.asarray(tokens), jnp.asarray(num_generated)
    if tokens.ndim != 2 or num_generated.shape != tokens.shape[:1]:
        raise ValueError(
            f"tokens are {tokens.shape} and num_generated {num_generated.shape}: they must be "
            "[B, N] and [B]"
        )
    places = jnp.arange(tokens.shape[1])[None]
    generated = places < num_generated[:, None]
    stops = is_stop(tokens, tuple(stop_tokens)) & generated
    before = jnp.cumsum(stops, axis=1) - stops
    mask = generated & (before == 0)
    return mask, jnp.sum(mask, axis=1, dtype=jnp.int32), jnp.any(stops, axis=1)


def is_stop(tokens: Array, stop_tokens: tuple[int, ...]) -> Array:
    """Bool of the shape of `tokens`."""
    found = jnp.zeros(tokens.shape, bool)
    for token in stop_tokens:
        found |= tokens == token
    return found


def pad_to_bucket(prompt_tokens: Array, prompt_mask: Array) -> tuple[Array, Array]:
    """The prompts with padding added on their left, up to a length of `bucket`."""
    length = prompt_tokens.shape[1]
    padding = ((0, 0), (bucket(length) - length, 0))
    return jnp.pad(prompt_tokens, padding), jnp.pad(prompt_mask, padding)


def bucket(length: int) -> int:
    """The smallest of 8, 12, 16, 24, 32, 48, 64 ... that is at least `length`.

    >>> [bucket(n) for n in (1, 9, 46, 500)]
    [8, 12, 48, 512]
    """
    size = 8
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def check_prompts(tokens: Any, mask: Any) -> tuple[Array, Array]:
    tokens, mask = jnp.asarray(tokens), jnp.asarray(mask) != 0
    if tokens.ndim != 2 or tokens.shape != mask.shape:
        raise ValueError(
            f"prompt_tokens are {tokens.shape} and prompt_mask {mask.shape}: both must be [P, L]"
        )
    if 0 in tokens.shape:
        raise ValueError(
            f"prompt_tokens are {tokens.shape}: there must be one prompt and one token"
        )
    if not isinstance(mask, jax.core.Tracer) and not bool(mask[:, -1].all()):
        row = int(jnp.argmin(mask[:, -1]))
        raise ValueError(f"prompt {row} has no token at its end: prompts are padded on the left")
    return tokens.astype(jnp.int32), mask


def check_settings(settings: Settings, vocab_size: int) -> None:
    check_filter(settings.temperature, settings.top_k, settings.top_p)
    for name in ("group_size", "max_new_tokens"):
        if (value := getattr(settings, name)) < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    if not 0 <= settings.min_new_tokens <= settings.max_new_tokens:
        raise ValueError(
            f"min_new_tokens is {settings.min_new_tokens}: it must be in 0 ... max_new_tokens = "
            f"{settings.max_new_tokens}"
        )
    for token in (*settings.stop_tokens, settings.pad_token):
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"stop or pad token {token} is not in the vocabulary: 0 ... {vocab_size - 1}"
            )
