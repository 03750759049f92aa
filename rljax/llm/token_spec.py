"""The content of a tokenizer.json, as a dict."""

import json
from typing import Any


def byte_level(use_regex: bool = True) -> dict[str, Any]:
    """GPT-2's bytes as visible characters, with or without its way to cut a text into words."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def added_token(content: str, id: int, special: bool = True) -> dict[str, Any]:
    """A token that is found in a text before anything else."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": content, **flags, "special": special}


def bpe_spec(
    vocabulary: dict[str, int],
    merges: list[list[str]],
    added_tokens: list[dict[str, Any]],
    *,
    normalizer: dict[str, Any] | None = None,
    pre_tokenizer: dict[str, Any] | None = None,
    decoder: dict[str, Any],
    **model: Any,
) -> dict[str, Any]:
    """A whole tokenizer.json with a BPE model; `model` overrides the model's settings."""
    defaults = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {**defaults, **model, "vocab": vocabulary, "merges": merges},
    }


def parse_json(text: str, where: str) -> Any:
    """What `text` holds; a ValueError of one line that names the file `where` if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON, {error}") from error


def decoder_steps(spec: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The steps of the decoder, if it is of a kind whose bytes we know."""
    decoder = spec.get("decoder") or {}
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if not {"ByteLevel", "Metaspace", "ByteFallback"} & {*kinds}:
        raise ValueError(
            f"{where}: decoder {'+'.join(map(str, kinds))} is not known; allowed are ByteLevel, "
            "Metaspace and sequences with ByteFallback"
        )
    return steps
