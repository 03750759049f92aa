"""From text to ids and from an id to the bytes it stands for, whatever the kind of vocabulary."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from rljax.llm.packages import need
from rljax.llm.token_spec import added_token, bpe_spec, byte_level, decoder_steps, parse_json

SPACE = "▁"  # SentencePiece's visible space
# GPT-2 writes a byte as one visible character: printable Latin-1 as itself, the others from 256 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_OF = {chr(byte): byte for byte in PRINTABLE}
BYTE_OF |= {chr(256 + i): byte for i, byte in enumerate(sorted({*range(256)} - {*PRINTABLE}))}
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}
LATIN = str.maketrans({character: chr(byte) for character, byte in BYTE_OF.items()})


class Vocabulary(NamedTuple):
    """What texts are cut into. Nothing here knows which special token ends a sequence."""

    # text, whether it starts the sequence -> ids; special tokens in it are ordinary text
    encode: Callable[[str, bool], list[int]]
    encode_special: Callable[[str], list[int]]  # the same with special tokens interpreted
    # text -> (id, "") of a special token, (None, text) of the ordinary text between two of them
    split: Callable[[str], list[tuple[int | None, str]]]
    table: Callable[[], list[bytes]]  # what each id adds to a text; b"" for special tokens
    special: dict[str, int]  # the special tokens
    size: int  # one more than the largest id
    prefix: bool  # a text is encoded with a space before it, which decoding takes away
    to_json: Callable[[], str]  # as tokenizer.json


def byte_vocabulary(ids: Mapping[int, int], special: dict[str, int]) -> Vocabulary:
    """One token per byte, `ids` from byte to id: plain Python, no package needed.

    Its functions raise a ValueError for a text with bytes that have no token.
    """
    size = 1 + max([*ids.values(), *special.values()])
    longest_first = sorted(special, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def encode(text: str, first: bool = True) -> list[int]:
        try:
            return [ids[byte] for byte in text.encode()]
        except KeyError as error:
            wrong = next(c for c in text if not {*c.encode()} <= ids.keys())
            known = bytes(sorted(ids)).decode(errors="ignore")
            message = f"this vocabulary has no token for {wrong!r}; it knows only {known!r}"
            raise ValueError(message) from error

    def split(text: str) -> list[tuple[int | None, str]]:
        parts, end = [], 0
        for match in pattern.finditer(text):
            parts += [(None, text[end : match.start()]), (special[match.group()], "")]
            end = match.end()
        return [part for part in [*parts, (None, text[end:])] if part != (None, "")]

    def encode_special(text: str) -> list[int]:
        return [i for id, part in split(text) for i in (encode(part) if id is None else [id])]

    def table() -> list[bytes]:
        rows = [b""] * size
        for byte, id in ids.items():
            rows[id] = bytes([byte])
        return rows

    def to_json() -> str:  # a byte-level BPE without merges
        spec = bpe_spec(
            {CHARACTER_OF[byte]: id for byte, id in ids.items()},
            [],
            [added_token(text, id) for text, id in special.items()],
            pre_tokenizer=byte_level(use_regex=False),
            decoder=byte_level(),
        )
        return json.dumps(spec, ensure_ascii=False)

    return Vocabulary(encode, encode_special, split, cache(table), special, size, False, to_json)


def json_vocabulary(text: str, named: tuple[str, ...] = (), where: str = "") -> Vocabulary:
    """The vocabulary of a tokenizer.json.

    Args:
      text: the content of the file.
      named: tokens that count as special even if the file does not say so (end of sequence ...).
      where: the file's name, for messages.

    Raises:
      ValueError: in one line, if it is not JSON or of a kind that is not known.
      ImportError: in one line, if the package `tokenizers` is missing.
    """
    spec = parse_json(text, where)
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise ValueError(f"{where}: no vocabulary in it, an object with the key 'model' is wanted")
    steps = decoder_steps(spec, where)
    kinds = {step["type"] for step in steps}
    added = {token["content"]: token["id"] for token in spec.get("added_tokens") or ()}
    special = {t["content"]: t["id"] for t in spec.get("added_tokens") or () if t["special"]}
    vocab, model = spec["model"].get("vocab") or {}, spec["model"]
    if "ByteLevel" in kinds and model.get("type") == "BPE" and not model.get("merges"):
        ordinary = {token: id for token, id in vocab.items() if token not in added}
        if added == special and ordinary.keys() <= BYTE_OF.keys():
            ids = {BYTE_OF[token]: id for token, id in ordinary.items()}
            return byte_vocabulary(ids, special)
    try:
        backend = need("tokenizers", "this tokenizer").Tokenizer.from_str(text)
    except ImportError:
        raise
    except Exception as error:  # the library raises plain Exception
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{where}: the package tokenizers cannot read it: {reason}") from error
    backend.no_truncation()
    backend.no_padding()
    ids = {token: backend.token_to_id(token) for token in named if token not in special}
    ids = {token: id for token, id in ids.items() if id is not None}
    backend.add_special_tokens([*ids])  # which keep the ids that they have
    special |= ids
    return backed_vocabulary(backend, steps, added, special)


def backed_vocabulary(
    backend: Any, steps: list[dict[str, Any]], added: dict[str, int], special: dict[str, int]
) -> Vocabulary:
    """A Vocabulary of the functions of a `tokenizers.Tokenizer`.

    A byte without a token (SmolLM2 has no U+0004) is dropped, as everywhere with these files.
    """
    kinds = {step["type"] for step in steps}
    vocab = backend.get_vocab(with_added_tokens=True)
    size = 1 + max(vocab.values(), default=-1)
    texts = {id: text for text, id in special.items()}

    @cache
    def continuing() -> Any:
        """Encodes what stands later in a text, where some vocabularies put no space before."""
        text = backend.to_str()
        return type(backend).from_str(
            re.sub(r'"prepend_scheme":\s*"first"', '"prepend_scheme":"never"', text)
        )

    def encode_ordinary(text: str, first: bool = True) -> list[int]:
        chosen = backend if first else continuing()
        chosen.encode_special_tokens = True  # that is: as ordinary text
        return chosen.encode(text, add_special_tokens=False).ids

    def encode(text: str) -> Any:
        backend.encode_special_tokens = False
        return backend.encode(text, add_special_tokens=False)

    def split(text: str) -> list[tuple[int | None, str]]:
        encoding = encode(text)
        parts, end = [], 0
        for id, (start, stop) in zip(encoding.ids, encoding.offsets):
            if text[start:stop].strip() == texts.get(id):
                parts, end = [*parts, (None, text[end:start]), (id, "")], stop
        return [part for part in [*parts, (None, text[end:])] if part != (None, "")]

    def table() -> list[bytes]:
        rows = [b""] * size
        for token, id in vocab.items():
            rows[id] = token_bytes(token, kinds)
        for token, id in added.items():
            rows[id] = token.encode()
        for id in texts:
            rows[id] = b""
        return rows

    strips = any(step.get("type") == "Strip" and step.get("start") for step in steps)
    meta = [step for step in steps if step["type"] == "Metaspace"]
    prefix = strips or any(step.get("prepend_scheme", "always") != "never" for step in meta)
    return Vocabulary(
        encode_ordinary,
        lambda text: encode(text).ids,
        split,
        cache(table),
        special,
        size,
        prefix,
        backend.to_str,
    )


def token_bytes(token: str, kinds: set[str]) -> bytes:
    """What an ordinary token adds to a text, by the steps of its vocabulary's decoder."""
    if "ByteLevel" in kinds:
        try:
            return token.translate(LATIN).encode("latin-1")
        except UnicodeEncodeError:  # not in the alphabet of bytes: it stands for itself
            return token.encode()
    if "ByteFallback" in kinds and re.fullmatch("<0x[0-9A-F]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace(SPACE, " ").encode()
