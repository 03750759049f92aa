"""Tokenizers and the files that hold them: Hugging Face folders and GGUF."""

import json
from pathlib import Path
from typing import Any

from rljax.llm.gguf_reader import read_gguf
from rljax.llm.gguf_vocabulary import gguf_spec
from rljax.llm.text import (
    ROLES,
    Tokenizer,
    arithmetic_tokenizer,
    byte_tokenizer,
    make_tokenizer,
    stream_decode,
)
from rljax.llm.token_spec import parse_json
from rljax.llm.vocabulary import json_vocabulary

__all__ = [
    "Tokenizer",
    "arithmetic_tokenizer",
    "byte_tokenizer",
    "from_folder",
    "from_gguf",
    "save_tokenizer",
    "stream_decode",
]


def from_folder(path: str | Path) -> Tokenizer:
    """The tokenizer of a folder of Hugging Face's kind.

    Read are tokenizer.json and, if they are there, tokenizer_config.json,
    special_tokens_map.json, chat_template.jinja, additional_chat_templates/*.jinja and
    generation_config.json.

    Raises:
      ValueError: in one line, for a missing or malformed file or an unknown kind of vocabulary.
      ImportError: in one line, if a package of `rljax[llm]` is needed and missing.
    """
    folder = Path(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        there = sorted(p.name for p in folder.iterdir())[:8] if folder.is_dir() else "no folder"
        raise ValueError(f"{file}: missing, and no other file holds a vocabulary; there: {there}")
    config = read_object(folder / "tokenizer_config.json")
    named = {**read_object(folder / "special_tokens_map.json"), **config}
    names = {role: token_text(named.get(role)) for role in ROLES}
    names = {role: token for role, token in names.items() if token is not None}
    vocabulary = json_vocabulary(read_text(file), tuple(names.values()), str(file))
    if (eos := names.get("eos_token")) is not None and eos not in vocabulary.special:
        raise ValueError(
            f"{folder}: eos_token is {eos!r}, which is no token of {file.name}; allowed is one "
            f"of {vocabulary.size} tokens, such as {list(vocabulary.special)[:4]}"
        )
    generation = folder / "generation_config.json"
    stops = read_object(generation).get("eos_token_id")
    stops = [] if stops is None else stops if isinstance(stops, list) else [stops]
    if not all(isinstance(stop, int) and stop >= 0 for stop in stops):
        raise ValueError(f"{generation}: eos_token_id is {stops}; an id or a list of ids is wanted")
    return make_tokenizer(
        vocabulary,
        names=names,
        stop_tokens=stops,
        chat_templates=read_templates(folder, config.get("chat_template")),
    )


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8, {error}") from error


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is no such file."""
    content = parse_json(read_text(file), str(file)) if file.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{file}: a {type(content).__name__}, an object {{...}} is wanted")
    return content


def token_text(token: Any) -> str | None:
    """Tokens stand as texts or as objects with the text in "content"."""
    return token.get("content") if isinstance(token, dict) else token


def read_templates(folder: Path, configured: Any) -> dict[str, str]:
    """Chat templates by name: files go before what tokenizer_config.json says."""
    if isinstance(configured, str):
        configured = [{"name": "default", "template": configured}]
    templates = {entry["name"]: entry["template"] for entry in configured or ()}
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = read_text(file)
    if (file := folder / "chat_template.jinja").is_file():
        templates["default"] = read_text(file)
    return templates


def from_gguf(source: Any) -> Tokenizer:
    """The tokenizer of a GGUF file.

    Args:
      source: the file's path, a `gguf.GGUFReader`, or its fields: a dict from names such as
        tokenizer.ggml.tokens to the reader's fields or to plain values.

    Raises:
      ValueError: in one line, for a file that is missing or not GGUF, or an unknown vocabulary.
      ImportError: in one line, if a package of `rljax[llm]` is missing.
    """
    where = "GGUF"
    if isinstance(source, str | Path):
        where, source = str(source), metadata_of(Path(source))
    items = getattr(source, "fields", source).items()
    fields = {
        name: field.contents() if hasattr(field, "contents") else field
        for name, field in items
        if name.startswith("tokenizer.")
    }
    tokens = fields.get("tokenizer.ggml.tokens", ())

    def token_id(role: str) -> int | None:
        name = f"tokenizer.ggml.{role}_token_id"
        id = fields.get(name)
        if id is not None and not 0 <= id < len(tokens):
            raise ValueError(f"{where}: {name} is {id}; allowed are 0 ... {len(tokens) - 1}")
        return id

    ids = dict(zip(ROLES, map(token_id, ("bos", "eos", "padding", "unknown"))))
    spec = gguf_spec(fields, where)
    names = {role: tokens[id] for role, id in ids.items() if id is not None}
    stops = [id for id in (token_id("eot"), token_id("eom")) if id is not None]
    template = fields.get("tokenizer.chat_template")
    return make_tokenizer(
        json_vocabulary(json.dumps(spec, ensure_ascii=False), tuple(names.values()), where),
        names=names,
        stop_tokens=stops,
        chat_templates={} if template is None else {"default": template},
    )


def metadata_of(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(f"{file}: no such file; the path of a .gguf file is wanted")
    try:
        return read_gguf(file).metadata
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def save_tokenizer(path: str | Path, tokenizer: Tokenizer) -> None:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json into a folder.

    transformers' AutoTokenizer and `from_folder` read them.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {id: token for token, id in tokenizer.special_tokens.items()}
    ids = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "pad_token": tokenizer.pad_id,
    }
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{role: texts[id] for role, id in ids.items() if id in texts},
    }
    templates = [{"name": n, "template": t} for n, t in tokenizer.chat_templates.items()]
    if templates:
        only = len(templates) == 1 and templates[0]["name"] == "default"
        config["chat_template"] = templates[0]["template"] if only else templates
    files = {"tokenizer_config.json": config}
    if tokenizer.stop_tokens:
        files["generation_config.json"] = {"eos_token_id": list(tokenizer.stop_tokens)}
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    for name, content in files.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
