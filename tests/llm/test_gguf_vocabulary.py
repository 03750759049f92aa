import json

import gguf
import pytest
import tokenizers

from rljax.llm.tokenizer import byte_tokenizer, from_folder, from_gguf, save_tokenizer
from tests.llm.references.make_texts import TEXTS
from tests.llm.tiny import CHATML, tiny_bpe

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def byte_level_fields(**more):
    """The tiny tokenizer as a GGUF file tells it, with two rows more than tokens."""
    library = tiny_bpe()
    tokens = sorted(library.get_vocab(), key=library.token_to_id)
    kinds = {"<think>": USER_DEFINED}
    merges = json.loads(library.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, "[PAD1]", "[PAD2]"],
        "tokenizer.ggml.token_type": [CONTROL] * 3
        + [kinds.get(token, NORMAL) for token in tokens[3:]]
        + [UNUSED, UNUSED],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.chat_template": CHATML,
        **{f"tokenizer.ggml.{name}": value for name, value in more.items()},
    }


def test_byte_level_bpe():
    library, tokenizer = tiny_bpe(), from_gguf(byte_level_fields())
    for text in TEXTS:
        assert tokenizer.encode(text, special=True) == library.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == library.get_vocab_size()
    assert tokenizer.stop_tokens == (0, 2)
    assert tokenizer.apply_chat_template([], add_generation_prompt=True).startswith("<|im_start|>")


# Which words the patterns find. Digits: one by one for Qwen 2 and SmolLM, up to three for Llama 3.
WORDS = {
    "gpt-2": ["I", "'m", " at", " 12345", " Ⅷ", "\n\n ", ' "', "x", '"', "  ", " IT", "'", "S"],
    "smollm": [
        "I",
        "'m",
        " at",
        " ",
        *"12345",
        " ",
        "Ⅷ",
        "\n\n ",
        ' "',
        "x",
        '"',
        "  ",
        " IT",
        "'",
        "S",
    ],
    "llama-bpe": [
        "I",
        "'m",
        " at",
        " ",
        "123",
        "45",
        " ",
        "Ⅷ",
        "\n\n",
        " ",
        ' "',
        "x",
        '"',
        "  ",
        " IT",
        "'S",
    ],
    "qwen2": [
        "I",
        "'m",
        " at",
        " ",
        *"12345",
        " ",
        "Ⅷ",
        "\n\n",
        " ",
        ' "',
        "x",
        '"',
        "  ",
        " IT",
        "'S",
    ],
}


@pytest.mark.parametrize("pre", WORDS)
def test_words_of_the_pre_tokenizers(pre):
    tokenizer = from_gguf(byte_level_fields(pre=pre))
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    text = "".join(WORDS[pre])
    assert text == "I'm at 12345 Ⅷ\n\n  \"x\"   IT'S"
    found = library.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:stop] for _, (start, stop) in found] == WORDS[pre]


def test_sentencepiece(references, tmp_path):
    """A vocabulary that sentencepiece has learned, and what it made of the texts."""
    reference = json.loads((references / "sentencepiece.json").read_text(encoding="utf-8"))
    tokenizer = from_gguf(reference["fields"])
    assert len(reference["texts"]) > 30
    for entry in reference["texts"]:
        assert tokenizer.encode(entry["text"]) == entry["ids"]
        assert tokenizer.decode(entry["ids"]) == entry["text"]
    assert tokenizer.token_bytes(entry["ids"][0]).startswith(b" ")
    tool = tokenizer.encode("a<tool>")[-1]
    assert tokenizer.token_bytes(tool) == b"<tool>"
    assert tokenizer.token_bytes(tokenizer.eos_id) == b""
    assert (
        tokenizer.token_bytes(reference["fields"]["tokenizer.ggml.tokens"].index("<0xFF>"))
        == b"\xff"
    )
    save_tokenizer(tmp_path, tokenizer)
    again = from_folder(tmp_path)
    assert [again.encode(e["text"]) for e in reference["texts"]] == [
        e["ids"] for e in reference["texts"]
    ]


def test_scores_order_the_merges():
    """abc: b+c (score -1) goes before a+b (score -2), so nothing is left for ab."""
    tokens = ["<unk>", "a", "b", "c", "ab", "bc"]
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0, -3.0, -4.0, -5.0, -2.0, -1.0],
        "tokenizer.ggml.token_type": [2, 1, 1, 1, 1, 1],
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = from_gguf(fields)
    assert tokenizer.encode("abc") == [1, 5]
    assert tokenizer.decode([1, 5]) == "abc"
    fields["tokenizer.ggml.scores"][4:] = [-1.0, -2.0]
    assert from_gguf(fields).encode("abc") == [4, 3]


def test_a_file(tmp_path):
    path = tmp_path / "tiny.gguf"
    fields = byte_level_fields()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(fields["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(fields["tokenizer.ggml.pre"])
    writer.add_token_list(fields["tokenizer.ggml.tokens"])
    writer.add_token_types(fields["tokenizer.ggml.token_type"])
    writer.add_token_merges(fields["tokenizer.ggml.merges"])
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    for source in (path, str(path), gguf.GGUFReader(path)):
        tokenizer = from_gguf(source)
        assert tokenizer.eos_id == 2
        assert tokenizer.encode("the cat é") == from_gguf(fields).encode("the cat é")


@pytest.mark.errors
def test_what_is_wrong_with_a_gguf_vocabulary(tmp_path):
    def message(source):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            from_gguf(source)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "is 'bert'; allowed are 'gpt2', 'llama'" in message(byte_level_fields(model="bert"))
    assert "pre is 'x'; allowed are default, gpt-2" in message(byte_level_fields(pre="x"))
    fields = byte_level_fields()
    size = len(fields["tokenizer.ggml.tokens"])
    assert f"is 999; allowed are 0 ... {size - 1}" in message(byte_level_fields(eos_token_id=999))
    types = message(byte_level_fields(token_type=[1, 1]))
    assert f"tokens has {size} entries and tokenizer.ggml.token_type 2" in types
    del fields["tokenizer.ggml.merges"]
    assert "no field tokenizer.ggml.merges" in message(fields)
    assert "no such file" in message(tmp_path / "none.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00 and then nothing")
    assert f"{broken}: the GGUF file is truncated" in message(broken)
    with pytest.raises(ValueError, match="below 0"):
        byte_tokenizer().token_bytes(-1)
