"""What a tokenizer is: functions from text to ids and back; and two small ones without files."""

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rljax.llm.chat import make_chat_encoder, make_renderer, turn_end
from rljax.llm.vocabulary import Vocabulary, byte_vocabulary

ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer(NamedTuple):
    """A vocabulary with its special tokens and its chat template, as functions.

    What is special is never interpreted unless asked: text is data. One tokenizer serves one
    thread at a time.
    """

    # (text, *, special=False) -> ids, no special token added; special=True interprets those in it
    encode: Callable[..., list[int]]
    # (ids, *, skip_special_tokens=False) -> text
    decode: Callable[..., str]
    token_bytes: Callable[[int], bytes]  # what an id adds to a text; b"" for special tokens
    # (messages, add_generation_prompt=True, *, tools, documents, now, **more) -> text, to be
    # encoded with special=True; `now` (a datetime) serves templates that print the date
    apply_chat_template: Callable[..., str]
    # the same arguments -> ids; special tokens are the template's own, never a message's
    encode_chat: Callable[..., list[int]]
    vocab_size: int
    eos_id: int | None
    bos_id: int | None
    pad_id: int  # eos_id if there is no token for it: masks say what is padding
    stop_tokens: tuple[int, ...]  # every token that ends a completion
    special_tokens: dict[str, int]
    chat_templates: dict[str, str]  # by name: "default", and "tool_use" if there is one
    to_json: Callable[[], str]  # the content of tokenizer.json


def stream_decode(tokenizer: Tokenizer, pending: bytes, token: int | None) -> tuple[bytes, str]:
    """The text that one more token completes; never half a character.

    The texts of all calls together are those of `decode` without special tokens, but for the
    space that vocabularies with a space before every text take away at the start.

    Args:
      pending: bytes of a character that has begun; b"" at the start.
      token: the next id; None at the end, when half a character becomes a replacement character.

    Returns:
      (pending, text), pending for the next call.

    Example:
      >>> pending, text = stream_decode(byte_tokenizer(), b"", 0xC3)
      >>> stream_decode(byte_tokenizer(), pending, 0xA9)
      (b'', 'é')
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.setstate((pending, 0))
    data = b"" if token is None else tokenizer.token_bytes(token)
    text = decoder.decode(data, final=token is None)
    return decoder.getstate()[0], text


def make_tokenizer(
    vocabulary: Vocabulary,
    *,
    names: Mapping[str, str] | None = None,
    stop_tokens: Sequence[int] = (),
    chat_templates: Mapping[str, str] | None = None,
) -> Tokenizer:
    """A Tokenizer of a vocabulary.

    Args:
      names: of `bos_token`, `eos_token`, `pad_token`, `unk_token`, those that there are.
      stop_tokens: further ids that end a completion; the first is eos_id if names has none.
      chat_templates: jinja2 templates by name, "default" for the usual one.
    """
    names, templates = dict(names or {}), dict(chat_templates or {})
    ids = {role: vocabulary.special.get(names.get(role, "")) for role in ROLES}
    render = make_renderer(templates, names)
    end = turn_end(render, vocabulary) if templates else None
    stops = dict.fromkeys(i for i in (ids["eos_token"], *stop_tokens, end) if i is not None)
    eos = next(iter(stops), None)
    pad = next((i for i in (ids["pad_token"], eos) if i is not None), 0)
    texts = {id: token.encode() for token, id in vocabulary.special.items()}

    def encode(text: str, *, special: bool = False) -> list[int]:
        text.encode()  # raises for half a surrogate pair, which has no bytes
        return vocabulary.encode_special(text) if special else vocabulary.encode(text, True)

    def decode(ids: Any, *, skip_special_tokens: bool = False) -> str:
        ids = np.asarray(ids)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(f"ids are {ids.dtype} of shape {ids.shape}; integers [L] are wanted")
        kept = {} if skip_special_tokens else texts
        data = [token_bytes(id) or kept.get(id, b"") for id in ids.tolist()]
        text = b"".join(data).decode(errors="replace")
        return text.removeprefix(" ") if vocabulary.prefix else text

    def token_bytes(id: int) -> bytes:
        if id < 0:
            raise ValueError(f"token id {id} is below 0; ids are 0 ... {vocabulary.size - 1}")
        table = vocabulary.table()
        return table[id] if id < len(table) else b""  # models may have more rows than tokens

    return Tokenizer(
        encode=encode,
        decode=decode,
        token_bytes=token_bytes,
        apply_chat_template=render,
        encode_chat=make_chat_encoder(render, vocabulary),
        vocab_size=vocabulary.size,
        eos_id=eos,
        bos_id=ids["bos_token"],
        pad_id=pad,
        stop_tokens=tuple(stops),
        special_tokens=vocabulary.special,
        chat_templates=templates,
        to_json=vocabulary.to_json,
    )


def byte_tokenizer(
    *, special_tokens: Sequence[str] = (), chat_template: str | None = None
) -> Tokenizer:
    """The 256 bytes as tokens 0 ... 255, then <bos>, <eos>, <pad> and `special_tokens`.

    Needs no optional package but jinja2 for the template.

    Example:
      >>> byte_tokenizer().encode("né<eos>", special=True)
      [110, 195, 169, 257]
    """
    names = ("<bos>", "<eos>", "<pad>", *special_tokens)
    special = {token: 256 + i for i, token in enumerate(dict.fromkeys(names))}
    vocabulary = byte_vocabulary({byte: byte for byte in range(256)}, special)
    roles = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    templates = {} if chat_template is None else {"default": chat_template}
    return make_tokenizer(vocabulary, names=roles, chat_templates=templates)


def arithmetic_tokenizer() -> Tokenizer:
    """Ten digits, `+-*=()`, space and newline, then <eos> and <pad>: 20 tokens.

    Any other character raises a ValueError. Needs no optional package.

    Example:
      >>> arithmetic_tokenizer().encode("12+7=<eos>", special=True)
      [1, 2, 10, 7, 13, 18]
    """
    ids = {byte: id for id, byte in enumerate(b"0123456789+-*=() \n")}
    vocabulary = byte_vocabulary(ids, {"<eos>": 18, "<pad>": 19})
    return make_tokenizer(vocabulary, names={"eos_token": "<eos>", "pad_token": "<pad>"})
