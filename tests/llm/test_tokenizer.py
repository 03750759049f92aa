import json

import numpy as np
import pytest
import tokenizers

from rljax.llm.tokenizer import (
    arithmetic_tokenizer,
    byte_tokenizer,
    from_folder,
    from_gguf,
    save_tokenizer,
    stream_decode,
)
from tests.llm.references.make_texts import TEXTS
from tests.llm.tiny import CHATML, SPECIAL, tiny_bpe, write_folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return from_folder(write_folder(tmp_path_factory.mktemp("tiny")))


def streamed(tokenizer, ids):
    pending, texts = b"", []
    for id in [*ids, None]:
        pending, text = stream_decode(tokenizer, pending, id)
        texts.append(text)
    assert pending == b""
    return texts


def test_texts_come_back_exactly(tiny):
    for tokenizer in (tiny, byte_tokenizer(special_tokens=SPECIAL)):
        special = set(tokenizer.special_tokens.values())
        for text in TEXTS:
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            assert not special & set(ids)
            marked = tokenizer.encode(text, special=True)
            assert tokenizer.decode(marked) == text
            if "<|im_end|>" in text:
                assert tokenizer.special_tokens["<|im_end|>"] in marked
            assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
            assert "".join(streamed(tokenizer, ids)) == text


def test_ids_are_those_of_the_library(tiny):
    library = tiny_bpe()
    for text in TEXTS:
        assert tiny.encode(text, special=True) == library.encode(text).ids
    library.encode_special_tokens = True
    for text in TEXTS:
        assert tiny.encode(text) == library.encode(text).ids
    merged = tiny.encode("the cat")
    assert len(merged) < len("the cat")  # words were learned, so this tests more than bytes
    assert tiny.vocab_size == library.get_vocab_size()


def test_special_tokens(tiny):
    end, start = tiny.special_tokens["<|im_end|>"], tiny.special_tokens["<|im_start|>"]
    eos = tiny.special_tokens["<|endoftext|>"]
    think = tiny.encode("<think>")
    assert think == [tiny.vocab_size - 1]  # added, but not special: it is text
    assert (tiny.eos_id, tiny.bos_id, tiny.pad_id) == (eos, start, eos)
    assert tiny.stop_tokens == (eos, end)  # the template's turns end with the second
    assert tiny.token_bytes(end) == b""
    assert tiny.token_bytes(think[0]) == b"<think>"
    ids = tiny.encode("a<|im_end|>b", special=True)
    assert tiny.decode(np.array(ids)) == "a<|im_end|>b"
    assert tiny.decode(ids, skip_special_tokens=True) == "ab"
    assert "".join(streamed(tiny, ids)) == "ab"
    # Models may have rows for ids that are no token.
    assert tiny.token_bytes(tiny.vocab_size + 5) == b""
    assert tiny.decode([tiny.vocab_size + 5]) == ""


def test_streaming_never_cuts_a_character():
    tokenizer = byte_tokenizer()
    assert streamed(tokenizer, "aé😀".encode()) == ["a", "", "é", "", "", "", "😀", ""]
    # E2 82 begins a character; A breaks it off, and so does the end.
    assert streamed(tokenizer, [0xE2, 0x82, 0x41, 0xE2]) == ["", "", "\ufffdA", "", "\ufffd"]
    assert tokenizer.decode([0xE2, 0x82, 0x41, 0xE2]) == "\ufffdA\ufffd"


def test_the_arithmetic_tokenizer():
    tokenizer = arithmetic_tokenizer()
    text = "12+(3-4)*5 = 7\n"
    ids = tokenizer.encode(text)
    assert ids == [1, 2, 10, 14, 3, 11, 4, 15, 12, 5, 16, 13, 16, 7, 17]
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("7<eos><pad>", special=True) == [7, 18, 19]
    assert (tokenizer.vocab_size, tokenizer.stop_tokens, tokenizer.pad_id) == (20, (18,), 19)
    assert tokenizer.bos_id is None


@pytest.mark.parametrize("kind", ["tiny", "bytes", "arithmetic"])
def test_saved_tokenizers_are_the_same_again(tiny, tmp_path, kind):
    tokenizer = {
        "tiny": tiny,
        "bytes": byte_tokenizer(special_tokens=SPECIAL, chat_template=CHATML),
        "arithmetic": arithmetic_tokenizer(),
    }[kind]
    texts = ["12 + (3*4)=\n", "7<eos>"] if kind == "arithmetic" else TEXTS
    save_tokenizer(tmp_path, tokenizer)
    again = from_folder(tmp_path)
    plain = [name for name, field in tokenizer._asdict().items() if not callable(field)]
    assert [getattr(again, name) for name in plain] == [getattr(tokenizer, name) for name in plain]
    # What others read: the library's own reader, and the names in the config.
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in texts:
        ids = tokenizer.encode(text, special=True)
        assert again.encode(text, special=True) == ids
        assert library.encode(text).ids == ids
        assert library.decode(ids, skip_special_tokens=False) == text
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert tokenizer.special_tokens[config["eos_token"]] == tokenizer.eos_id
    assert config.get("chat_template") == tokenizer.chat_templates.get("default")


def test_further_files_of_a_folder(tmp_path):
    files = {
        "tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "r"}]},
        "special_tokens_map.json": {"eos_token": {"content": "<|im_end|>"}, "pad_token": "[PAD]"},
        "generation_config.json": {"eos_token_id": [2, 1]},
        "chat_template.jinja": "{{ messages[0].content }}!",
    }
    tokenizer = from_folder(write_folder(tmp_path, files))
    assert tokenizer.stop_tokens == (2, 1)
    assert tokenizer.pad_id == tokenizer.eos_id == 2  # [PAD] is no token
    assert tokenizer.bos_id is None
    assert tokenizer.chat_templates == {"rag": "r", "default": "{{ messages[0].content }}!"}
    assert tokenizer.apply_chat_template([{"role": "user", "content": "é"}]) == "é!"


def test_a_folder_with_a_vocabulary_only(tmp_path):
    tokenizer = from_folder(write_folder(tmp_path, {"tokenizer_config.json": None}))
    assert tokenizer.eos_id is tokenizer.bos_id is None
    assert (tokenizer.stop_tokens, tokenizer.pad_id) == ((), 0)


def test_the_ids_of_smollm(smollm_path, references):
    """33 texts and 4 chats as transformers encodes them; see make_tokenizer.py."""
    tokenizer = from_gguf(smollm_path)
    lines = (references / "tokenizer.jsonl").read_text(encoding="utf-8").splitlines()
    _, *entries = map(json.loads, lines)
    texts = [entry for entry in entries if "messages" not in entry]
    assert len(texts) == len(TEXTS)
    for entry in texts:
        assert tokenizer.encode(entry["text"]) == entry["ids"]
        special = entry.get("special_ids", entry["ids"])
        assert tokenizer.encode(entry["text"], special=True) == special
        assert tokenizer.decode(special) == entry["text"]
    chats = [entry for entry in entries if "messages" in entry]
    assert len(chats) == 4
    for entry in chats:
        text = tokenizer.apply_chat_template(entry["messages"], entry["prompt"])
        assert text == entry["text"]
        assert tokenizer.encode(text, special=True) == entry["ids"]
        assert tokenizer.encode_chat(entry["messages"], entry["prompt"]) == entry["ids"]
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.stop_tokens) == (49152, 2, (2,))
