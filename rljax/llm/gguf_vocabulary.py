"""The vocabulary of a GGUF file, as the content of a tokenizer.json."""

from collections.abc import Mapping
from typing import Any

from rljax.llm.token_spec import added_token, bpe_spec, byte_level
from rljax.llm.vocabulary import SPACE

UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5  # what tokenizer.ggml.token_type says


def split(pattern: str) -> dict[str, Any]:
    """Cuts a text into the matches of a pattern, and those into bytes."""
    cut = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return sequence(cut, byte_level(use_regex=False))


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


# How words are found, by tokenizer.ggml.pre. Llama 3 takes up to three digits together, Qwen 2 one.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = byte_level()
LLAMA3 = split(WORDS.replace("DIGITS", "{1,3}"))
QWEN2 = split(WORDS.replace("DIGITS", ""))
SMOLLM = sequence({"type": "Digits", "individual_digits": True}, byte_level())
PRE_TOKENIZERS = {
    "default": GPT2,
    "gpt-2": GPT2,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "smaug-bpe": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "smollm": SMOLLM,
}


def gguf_spec(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """tokenizer.json of the fields `tokenizer.ggml.*` of a GGUF file, given as plain values.

    Raises:
      ValueError: in one line, for a model or pre-tokenizer that is not known or a missing field.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"{where}: tokenizer.ggml.model is {kind!r}; allowed are 'gpt2', 'llama'")
    tokens = list(want(fields, "tokenizer.ggml.tokens", where))
    types = list(fields.get("tokenizer.ggml.token_type") or [1] * len(tokens))
    if len(types) != len(tokens):
        raise ValueError(
            f"{where}: tokenizer.ggml.tokens has {len(tokens)} entries and "
            f"tokenizer.ggml.token_type {len(types)}"
        )
    while types and types[-1] == UNUSED:  # rows that only make the embedding's size even
        types.pop()
        tokens.pop()
    added = [
        added_token(token, id, special=type != USER_DEFINED)
        for id, (token, type) in enumerate(zip(tokens, types))
        if type in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    ids = {token: id for id, token in enumerate(tokens)}
    if kind == "gpt2":
        return byte_level_spec(fields, ids, added, where)
    return sentencepiece_spec(fields, ids, added, where)


def want(fields: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in fields:
        raise ValueError(f"{where}: no field {name}, which its vocabulary needs")
    return fields[name]


def byte_level_spec(
    fields: Mapping[str, Any], ids: dict[str, int], added: list[dict[str, Any]], where: str
) -> dict[str, Any]:
    """Byte-level BPE with the merges of the file.

    GGUF names no normaliser, so none is used; Qwen's own tokenizer.json composes accents (NFC).
    """
    pre = fields.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(
            f"{where}: tokenizer.ggml.pre is {pre!r}; allowed are {', '.join(PRE_TOKENIZERS)}"
        )
    merges = [merge.split(" ") for merge in want(fields, "tokenizer.ggml.merges", where)]
    return bpe_spec(
        ids,
        merges,
        added,
        pre_tokenizer=PRE_TOKENIZERS[pre],
        decoder=byte_level(),
        ignore_merges=PRE_TOKENIZERS[pre] is LLAMA3,
    )


def sentencepiece_spec(
    fields: Mapping[str, Any], ids: dict[str, int], added: list[dict[str, Any]], where: str
) -> dict[str, Any]:
    """SentencePiece's BPE: of all neighbours those are joined first whose union scores highest.

    As in llama.cpp a space goes before the text and after each added token.
    """
    tokens, scores = fields["tokenizer.ggml.tokens"], want(fields, "tokenizer.ggml.scores", where)
    if len(scores) != len(tokens):
        raise ValueError(
            f"{where}: tokenizer.ggml.tokens has {len(tokens)} entries and "
            f"tokenizer.ggml.scores {len(scores)}"
        )
    names = {token["content"] for token in added}
    found = []
    for token, id in ids.items():
        for cut in range(1, len(token) if token not in names else 0):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                found.append((-scores[id], ids[left], ids[right], left, right))
    prefix = fields.get("tokenizer.ggml.add_space_prefix", True)
    unknown = fields.get("tokenizer.ggml.unknown_token_id", 0)
    steps = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    back = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    back += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        steps = [{"type": "Prepend", "prepend": SPACE}, *steps]
        back += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return bpe_spec(
        ids,
        [[left, right] for *_, left, right in sorted(found)],
        added,
        normalizer={"type": "Sequence", "normalizers": steps},
        decoder={"type": "Sequence", "decoders": back},
        unk_token=tokens[unknown] if tokens[unknown] in ids else None,
        fuse_unk=True,
        byte_fallback=True,
    )
