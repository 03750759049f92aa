"""Completions of a prompt by a language model, printed as they come.

python -m experiments.generate --model=DIR_OR_GGUF --prompt=TEXT [--num_completions=8]
    [--temperature=1.0] [--top_k=0] [--top_p=1.0] [--max_new_tokens=256] [--stop=TEXT ...] [--raw]
python -m experiments.generate --model=DIR_OR_GGUF --chat
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from experiments.run import fail

USAGE = (
    "usage: python -m experiments.generate --model=DIR_OR_GGUF (--prompt=TEXT | --chat) [--raw] "
    "[--system=TEXT] [--num_completions=N] [--max_new_tokens=N] [--temperature=T] [--top_k=K] "
    "[--top_p=P] [--stop=TEXT] [--seed=N] [--dtype=float32|bfloat16]"
)
CHUNK = 4  # tokens of each completion between two looks at them


class Options(NamedTuple):
    model: Path
    prompt: str  # "" with chat
    chat: bool
    raw: bool  # the prompt is continued as it is, not answered as a user's message
    system: str | None
    num_completions: int
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    stop: tuple[str, ...]
    seed: int
    dtype: str


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns its exit code, as that of `experiments.run`."""
    from experiments.cli import HelpWanted

    try:
        options = parse(argv)
    except HelpWanted:
        print(USAGE)
        return 0
    except ValueError as error:
        return fail(error, 2)
    try:
        speak = load(options)
        return chat(options, speak) if options.chat else answer(options, speak)
    except ValueError as error:
        return fail(error, 2)
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        return fail(error, 1)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 128 + signal.SIGINT


def parse(argv: Sequence[str]) -> Options:
    """What the command line asks for.

    Raises:
      ValueError: for what is not allowed; HelpWanted for --help.
    """
    from absl import flags

    from experiments.cli import UsageError, check_help, parse_flags

    check_help(argv)
    values = flags.FlagValues()
    for name in ("model", "prompt", "system"):
        flags.DEFINE_string(name, None, "", flag_values=values)
    for name in ("chat", "raw"):
        flags.DEFINE_bool(name, False, "", flag_values=values)
    for name, default, most in (
        ("num_completions", 1, 4096),
        ("max_new_tokens", 256, 2**20),
    ):
        flags.DEFINE_integer(name, default, "", 1, most, flag_values=values)
    flags.DEFINE_integer("top_k", 0, "", 0, flag_values=values)
    flags.DEFINE_integer("seed", 0, "", 0, 2**32 - 1, flag_values=values)
    for name in ("temperature", "top_p"):
        flags.DEFINE_float(name, 1.0, "", 0.0, flag_values=values)
    flags.DEFINE_multi_string("stop", [], "", flag_values=values)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "", flag_values=values)
    given = parse_flags(values, argv, USAGE)
    if not given["model"]:
        raise UsageError(f"--model is missing; {USAGE}")
    if (given["prompt"] is None) != given["chat"]:
        raise UsageError(f"--prompt or --chat, one of them, is needed; {USAGE}")
    if given["chat"] and (given["raw"] or given["num_completions"] > 1):
        raise UsageError("--chat gives one answer at a time: without --raw and --num_completions")
    given["prompt"] = given["prompt"] or ""
    given["model"] = Path(given["model"]).expanduser()
    given["stop"] = tuple(given["stop"])
    return Options(**{name: given[name] for name in Options._fields})


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

    from rljax.llm import decoding
    from rljax.llm.load import load_language_model
    from rljax.llm.sampler import check_table, pad_to_bucket
    from rljax.llm.settings import make_settings
    from rljax.llm.stops import stop_table
    from rljax.nets.transformer import unstack

    model = load_language_model(options.model, dtype=options.dtype)
    net, tokenizer = model.net, model.tokenizer
    if tokenizer is None:
        raise ValueError(f"{options.model} has no tokenizer.json: text needs one")
    settings = make_settings(
        net,
        group_size=options.num_completions,
        max_new_tokens=options.max_new_tokens,
        stop_tokens=tokenizer.stop_tokens,
        pad_token=tokenizer.pad_id,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
    )
    table = None
    if options.stop:
        table = stop_table(options.stop, [*map(tokenizer.token_bytes, range(tokenizer.vocab_size))])
    table = check_table(table, net.config.vocab_size)
    start = jax.jit(partial(decoding.start, net=net, settings=settings))
    run = jax.jit(partial(decoding.run, net), static_argnames="settings", donate_argnums=1)
    layers = jax.jit(unstack)(model.params) if settings.unroll else model.params

    def speak(ids: list[int], seed: int) -> Iterator[list[tuple[list[int], float, bool]]]:
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

    return Speaker(tokenizer, speak)


def answer(options: Options, speaker: Speaker) -> int:
    """Completions of one prompt; a single one is printed while it grows, several when they end."""
    tokenizer = speaker.tokenizer
    if options.raw or not tokenizer.chat_templates:
        ids = tokenizer.encode(options.prompt)
        if tokenizer.bos_id is not None and not options.raw:
            ids = [tokenizer.bos_id, *ids]
    else:
        ids = tokenizer.encode_chat(messages(options, [("user", options.prompt)]))
    if not ids:
        raise ValueError("--prompt is empty: it must give one token at least")
    begin = time.perf_counter()
    if options.num_completions == 1:
        _, score, number = stream(speaker, ids, options.seed)
        report(begin, number, f"log-prob {score:.2f}")
        return 0
    shown: set[int] = set()
    total = 0
    for rows in speaker.speak(ids, options.seed):
        total = sum(len(ids) for ids, _, _ in rows)
        for i, (ids, score, done) in enumerate(rows):
            if done and i not in shown:
                shown.add(i)
                text = tokenizer.decode(ids, skip_special_tokens=True)
                print(f"[{i}] {len(ids)} tokens, log-prob {score:.2f}\n{text}\n", flush=True)
    report(begin, total, f"{options.num_completions} completions")
    return 0


def chat(options: Options, speaker: Speaker) -> int:
    """A conversation on the terminal, until it ends with Ctrl-D or /exit."""
    if not speaker.tokenizer.chat_templates:
        raise ValueError(f"{options.model} has no chat template: --prompt continues a text")
    turns: list[tuple[str, str]] = []
    seed = options.seed
    while True:
        try:
            said = input("you> ").strip()
        except EOFError:
            print()
            return 0
        if said in ("/exit", "/quit"):
            return 0
        if not said:
            continue
        turns.append(("user", said))
        begin = time.perf_counter()
        try:
            ids = speaker.tokenizer.encode_chat(messages(options, turns))
            text, score, number = stream(speaker, ids, seed)
        except KeyboardInterrupt:  # ends the answer, not the conversation
            print(" ... stopped")
            turns.pop()
            continue
        report(begin, number, f"log-prob {score:.2f}")
        turns.append(("assistant", text))
        seed = (seed + 1) % 2**32


def messages(options: Options, turns: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Turns as chat templates take them."""
    system = [("system", options.system)] if options.system else []
    return [{"role": role, "content": text} for role, text in (*system, *turns)]


def stream(speaker: Speaker, ids: list[int], seed: int) -> tuple[str, float, int]:
    """Prints one completion as it grows; its text, log-probability and number of tokens."""
    from rljax.llm.tokenizer import stream_decode

    pending, printed, text, score = b"", 0, "", 0.0

    def show(new: str) -> str:
        print(new, end="", flush=True)
        return new

    for [(tokens, score, _)] in speaker.speak(ids, seed):  # noqa: B007
        for token in tokens[printed:]:
            pending, new = stream_decode(speaker.tokenizer, pending, token)
            text += show(new)
        printed = len(tokens)
    _, new = stream_decode(speaker.tokenizer, pending, None)
    text += show(new)
    print()
    return text, score, printed


def report(begin: float, number: int, what: str) -> None:
    seconds = time.perf_counter() - begin
    print(f"{what}, {number} tokens in {seconds:.1f} s, {number / seconds:.1f} tokens/s",
          file=sys.stderr)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv))
