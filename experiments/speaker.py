"""A language model that answers in pieces, for `experiments.generate`."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

CHUNK = 4  # tokens of each completion between two looks at them


class Options(NamedTuple):
    model: Path
    prompt: str  # "" with chat
    chat: bool
    raw: bool  # the prompt is continued as it is, not answered as a user's message
    system: str | None
    num_completions: int
    num_rows: int  # completions under way at a time, refilled; 0: all of them, printed as they end
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    stop: tuple[str, ...]
    seed: int
    dtype: str


# ids, seed -> (token ids of each completion, its log-probability, whether it is done), again and
# again while they grow
Speak = Callable[[list[int], int], Iterator[list[tuple[list[int], float, bool]]]]


class Speaker(NamedTuple):
    tokenizer: Any
    speak: Speak


def load(options: Options) -> Speaker:
    """The model, and its sampler in pieces of `CHUNK` tokens."""
    import jax

    if not jax.config.values[
        "jax_compilation_cache_dir"
    ]:  # the second start is several times as fast
        cache = Path(os.environ.get("RLJAX_CACHE", "~/.cache/rljax")).expanduser() / "xla"
        jax.config.update("jax_compilation_cache_dir", str(cache))

    import jax.numpy as jnp

    from experiments.sampling import table_of
    from rljax.llm import decoding
    from rljax.llm.load import load_language_model
    from rljax.llm.sampler import check_table, generate, pad_to_bucket
    from rljax.llm.settings import make_settings
    from rljax.nets.transformer import unstack

    model = load_language_model(options.model, dtype=options.dtype)
    net, tokenizer = model.net, model.tokenizer
    if tokenizer is None:
        raise ValueError(f"{options.model} has no tokenizer.json: text needs one")
    arguments: dict[str, Any] = dict(
        group_size=options.num_completions,
        max_new_tokens=options.max_new_tokens,
        stop_tokens=tokenizer.stop_tokens,
        pad_token=tokenizer.pad_id,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
    )
    settings = make_settings(net, **arguments)
    table = table_of(options.stop, tokenizer) if options.stop else None
    table = check_table(table, net.config.vocab_size)
    start = jax.jit(partial(decoding.start, net=net, settings=settings))
    run = jax.jit(partial(decoding.run, net), static_argnames="settings", donate_argnums=1)
    layers = jax.jit(unstack)(model.params) if settings.unroll else model.params

    def check_length(ids: list[int]) -> None:
        most = net.config.max_positions
        if most is not None and len(ids) + options.max_new_tokens > most:
            raise ValueError(
                f"{len(ids)} tokens and --max_new_tokens={options.max_new_tokens} after them are "
                f"too many: the model was trained for {most} positions"
            )

    def speak(ids: list[int], seed: int) -> Iterator[list[tuple[list[int], float, bool]]]:
        check_length(ids)
        tokens = jnp.array([ids], jnp.int32)
        tokens, mask = pad_to_bucket(tokens, jnp.ones_like(tokens, dtype=bool))
        state = start(
            jax.random.key(seed),
            params=model.params,
            prompt_tokens=tokens,
            prompt_mask=mask,
            first_prompt=0,
            stop_table=table,
        )
        until, going = 1, True
        while going:
            lengths = jax.device_get(state.lengths)[0]
            rows = jax.device_get(state.tokens)[0]
            scores = jax.device_get(state.log_probs)[0].sum(-1)
            done = ~jax.device_get(state.going)[0]
            going = until < options.max_new_tokens and not done.all()
            yield [
                (row[:length].tolist(), float(score), bool(end) or not going)
                for row, length, score, end in zip(rows, lengths, scores, done)
            ]
            if going:
                until = min(until + CHUNK, options.max_new_tokens)
                state = run(layers, state, until, table, settings=settings)

    def speak_in_rows(ids: list[int], seed: int) -> Iterator[list[tuple[list[int], float, bool]]]:
        check_length(ids)
        prompt = jnp.array([ids], jnp.int32)
        completions = generate(
            *(jax.random.key(seed), net, model.params, prompt, jnp.ones_like(prompt)),
            **arguments,
            stop_table=table,
            num_rows=options.num_rows,
        )
        completions = jax.device_get(completions)
        yield [
            (row[:length].tolist(), float(scores.sum()), True)
            for row, length, scores in zip(
                completions.tokens[0], completions.lengths[0], completions.log_probs[0]
            )
        ]

    return Speaker(tokenizer, speak_in_rows if options.num_rows else speak)
