"""Grouped completions of prompts, generated in one program over all devices.

Each prompt is prefilled once, and its keys and values are shared by the completions of its group.
The key of a token is made from the index of its prompt, of the completion in its group, and of the
token: what is sampled depends neither on the number of devices nor on what else is in the batch.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Bool, Integer, Shaped

from rljax.llm import continuous, decoding
from rljax.llm.filters import filter_logits
from rljax.llm.scoring import check_prompts, completion_log_probs
from rljax.llm.settings import Settings, make_settings
from rljax.llm.stops import NO_STRINGS, is_stop
from rljax.sharding import DATA, MODEL, along_data
from rljax.types import Array, Completions, Key, LanguageNet, Params

__all__ = ["completion_log_probs", "completion_mask", "filter_logits", "generate"]


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
    stop_table: Any = None,
    first_prompt: int = 0,
    num_rows: int = 0,
    mesh: Mesh | None = None,
    unroll: bool | None = None,
) -> Completions:
    """G completions of each prompt, with the log-probabilities of their tokens.

    Args:
        key: consumed.
        net, params: the model. Where layers are unrolled, parameters that are already `unstack`ed
            are not copied in each call.
        prompt_tokens: [P, L] integers, left-padded; L is rounded up to one of few lengths, so that
            prompts of many lengths need few programs.
        prompt_mask: [P, L], bool or 0/1, real tokens; each row has one at its end.
        group_size: G, at least 1.
        max_new_tokens: N, at least 1.
        stop_tokens: integers that end a completion, and are kept as its last token; may be empty.
        pad_token: what stands after the end.
        temperature, top_k, top_p: as in `filter_logits`.
        min_new_tokens: a stop token is not sampled before so many others.
        stop_table: of `stops.stop_table`, for strings that end a completion as stop tokens do.
        first_prompt: index of the first prompt, where a list of prompts comes in several calls.
        num_rows: completions under way at a time, on each device: a row whose completion has ended
            takes the next one (continuous batching). 0: all of them, begun together.
        mesh: devices that share the prompts, along `data`. If it has an axis `model` they share the
            work on each prompt along it, as `params` are split (`rljax.sharding.param_sharding`).
            What of `params` lies along `data` is put together first.
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
    prompt_tokens, prompt_mask = check_prompts(prompt_tokens, prompt_mask, net.config.vocab_size)
    settings = make_settings(
        net,
        group_size=group_size,
        max_new_tokens=max_new_tokens,
        stop_tokens=stop_tokens,
        pad_token=pad_token,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_new_tokens=min_new_tokens,
        num_rows=num_rows,
        unroll=unroll,
    )
    table = check_table(stop_table, net.config.vocab_size)
    prompts = pad_to_bucket(prompt_tokens, prompt_mask)
    return _generate(key, net, params, *prompts, first_prompt, table, settings, mesh)


@partial(jax.jit, static_argnames=("net", "settings", "mesh"))
def _generate(
    key: Key,
    net: LanguageNet,
    params: Params,
    tokens: Array,
    mask: Array,
    first_prompt: Any,
    table: Array,
    settings: Settings,
    mesh: Mesh | None,
) -> Completions:
    def complete(
        key: Key, params: Params, tokens: Array, mask: Array, first_prompt: Any, table: Array
    ) -> Completions:
        if mesh is not None and MODEL not in mesh.shape:
            first_prompt += jax.lax.axis_index(DATA) * len(tokens)
        if settings.num_rows:
            return continuous.complete(
                key, net, params, tokens, mask, first_prompt, table, settings
            )
        state = decoding.start(key, net, params, tokens, mask, first_prompt, table, settings)
        state = decoding.run(net, params, state, settings.max_new_tokens, table, settings)
        return decoding.completions_of(state.tokens, state.log_probs, state.lengths, state.going)

    if mesh is None:
        return complete(key, params, tokens, mask, first_prompt, table)
    num = len(tokens)
    padding = ((0, -num % mesh.shape[DATA]), (0, 0))  # copies of the last prompt
    tokens, mask = (jnp.pad(x, padding, mode="edge") for x in (tokens, mask))
    if MODEL in mesh.shape:
        # One loop on all devices, divided by the compiler: in loops that end at different times its
        # exchanges along `model` could wait for devices that have gone on to something else.
        settings = settings._replace(num_rows=settings.num_rows * mesh.shape[DATA])
        split = along_data(mesh)
        tokens, mask = jax.lax.with_sharding_constraint((tokens, mask), split)
        completions = complete(key, params, tokens, mask, first_prompt, table)
        completions = jax.lax.with_sharding_constraint(completions, split)
    else:
        split, whole = PartitionSpec(DATA), PartitionSpec()
        over_devices = jax.shard_map(
            complete,
            mesh=mesh,
            in_specs=(whole, whole, split, split, whole, whole),
            out_specs=split,
            check_vma=False,
        )
        completions = over_devices(key, params, tokens, mask, first_prompt, table)
    return jax.tree.map(lambda x: x[:num], completions)


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


def check_table(table: Any, vocab_size: int) -> Array:
    if table is None:
        return jnp.asarray(NO_STRINGS)
    if table.ndim != 2 or table.shape[1] > vocab_size:
        raise ValueError(
            f"stop_table is {table.shape}: it must be [states, up to {vocab_size} tokens]"
        )
    return jnp.asarray(table, jnp.int32)
