"""Completions of a prompt by a language model, printed as they come.

python -m experiments.generate --model=DIR_OR_GGUF --prompt=TEXT [--num_completions=8]
    [--temperature=1.0] [--top_k=0] [--top_p=1.0] [--max_new_tokens=256] [--stop=TEXT ...] [--raw]
    [--num_rows=4]
python -m experiments.generate --model=DIR_OR_GGUF --chat
"""

import io
import math
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.run import fail, terminate
from experiments.screen import lenient
from experiments.speaker import Options, Speaker, load

USAGE = (
    "usage: python -m experiments.generate --model=DIR_OR_GGUF (--prompt=TEXT | --chat) [--raw] "
    "[--system=TEXT] [--num_completions=N] [--num_rows=N] [--max_new_tokens=N] [--temperature=T] "
    "[--top_k=K] [--top_p=P] [--stop=TEXT] [--seed=N] [--dtype=float32|bfloat16]"
)


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns its exit code.

    0 done; 1 failed while running; 2 a flag, model or prompt is wrong; 130 after Ctrl-C, 143 after
    SIGTERM.
    """
    try:
        return run(argv)
    except KeyboardInterrupt as stop:
        print(file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)


def run(argv: Sequence[str]) -> int:
    """The same, but for a KeyboardInterrupt. Imports late: a wrong flag need not wait for jax."""
    from experiments.cli import HelpWanted

    try:
        options = parse(argv)
    except HelpWanted:
        print(USAGE)
        return 0
    except ValueError as error:
        return fail(error, 2)
    try:
        speaker = load(options)
    except (ValueError, OSError) as error:  # of the files
        return fail(error, 2)
    except (MemoryError, RuntimeError, ImportError) as error:
        return fail(error, 1)
    try:
        return chat(options, speaker) if options.chat else answer(options, speaker)
    except ValueError as error:
        return fail(error, 2)
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        return fail(error, 1)


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
    for name, most in (("num_rows", 4096), ("top_k", 2**31 - 1)):
        flags.DEFINE_integer(name, 0, "", 0, most, flag_values=values)
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
    if given["chat"] and (given["raw"] or given["num_completions"] > 1 or given["num_rows"]):
        raise UsageError(
            "--chat gives one answer at a time: without --raw, --num_completions and --num_rows"
        )
    for name in ("temperature", "top_p"):
        if not math.isfinite(given[name]):
            raise UsageError(f"--{name} is {given[name]}: it must be a finite number, at least 0")
    for name in ("prompt", "system", "stop"):
        try:
            "".join(given[name] or ()).encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"--{name} is no UTF-8 text") from error
    given["prompt"] = given["prompt"] or ""
    given["model"] = Path(given["model"]).expanduser()
    given["stop"] = tuple(given["stop"])
    return Options(**{name: given[name] for name in Options._fields})


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
    for stream_ in (sys.stdout, sys.stderr):  # a terminal without unicode gets question marks
        if isinstance(stream_, io.TextIOWrapper):
            stream_.reconfigure(errors="replace")
    sys.stdout, sys.stderr = lenient(sys.stdout), lenient(sys.stderr)
    signal.signal(signal.SIGTERM, terminate)
    sys.exit(main(sys.argv))
