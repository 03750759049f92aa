"""Bad folders, ids and texts: one line that says what is wrong and what is allowed."""

import json
import subprocess
import sys

import pytest

from rljax.llm.tokenizer import arithmetic_tokenizer, byte_tokenizer, from_folder, save_tokenizer
from tests.llm.tiny import tiny_bpe, write_folder

pytestmark = pytest.mark.errors


def changed(**parts):
    return json.dumps(json.loads(tiny_bpe().to_str()) | parts)


BAD_FILES = [
    ("tokenizer.json", None, "missing, and no other file holds a vocabulary; there:"),
    ("tokenizer.json", '{"model": ', "not JSON"),
    ("tokenizer.json", "[1]", "no vocabulary in it"),
    ("tokenizer.json", changed(decoder={"type": "WordPiece"}), "WordPiece is not known; allowed"),
    ("tokenizer.json", changed(decoder=None), "decoder None is not known; allowed are ByteLevel"),
    ("tokenizer.json", changed(model={"type": "New"}), "the package tokenizers cannot read it"),
    ("tokenizer_config.json", "{", "not JSON"),
    ("tokenizer_config.json", "[]", "a list, an object {...} is wanted"),
    ("tokenizer_config.json", {"eos_token": "<e>"}, "eos_token is '<e>', which is no token of"),
    ("generation_config.json", {"eos_token_id": "2"}, "eos_token_id is ['2']; an id or a list"),
]


@pytest.mark.parametrize(("name", "content", "reason"), BAD_FILES)
def test_bad_files(tmp_path, name, content, reason):
    write_folder(tmp_path, {name: content})
    with pytest.raises(ValueError) as error:  # noqa: PT011
        from_folder(tmp_path)
    message = str(error.value)
    assert reason in message
    assert "\n" not in message
    assert str(tmp_path) in message
    assert name in message or "eos_token is" in message


def test_files_that_are_not_text(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not UTF-8"):
        from_folder(tmp_path)
    with pytest.raises(ValueError, match="no folder"):
        from_folder(tmp_path / "none")


def test_characters_without_a_token(tmp_path):
    tokenizer = arithmetic_tokenizer()
    save_tokenizer(tmp_path, tokenizer)
    for arithmetic in (tokenizer, from_folder(tmp_path)):
        for text, wrong in [("1 + x", "'x'"), ("2×3", "'×'"), ("1\t", r"'\t'")]:
            with pytest.raises(ValueError) as error:  # noqa: PT011
                arithmetic.encode(text)
            message = f"this vocabulary has no token for {wrong}; it knows only "
            assert str(error.value) == message + r"'\n ()*+-0123456789='"
        with pytest.raises(ValueError, match="no token for '<'"):
            arithmetic.encode("1<eos>")  # not interpreted, so it is text


def test_bad_ids_and_texts():
    tokenizer = byte_tokenizer()
    with pytest.raises(ValueError, match=r"float64 of shape \(1,\); integers \[L\] are wanted"):
        tokenizer.decode([1.5])
    with pytest.raises(ValueError, match=r"of shape \(1, 2\); integers \[L\]"):
        tokenizer.decode([[1, 2]])
    with pytest.raises(ValueError, match=r"token id -1 is below 0; ids are 0 ... 258"):
        tokenizer.decode([3, -1])
    with pytest.raises(ValueError, match="surrogates not allowed"):
        tokenizer.encode("\ud800")


def test_surrogates_in_large_vocabularies(tmp_path):
    tokenizer = from_folder(write_folder(tmp_path))
    for special in (False, True):
        with pytest.raises(ValueError, match="surrogates not allowed"):
            tokenizer.encode("a\ud800", special=special)


MISSING = """
import sys
for name in ("tokenizers", "jinja2"):
    sys.modules[name] = None
from rljax.llm.tokenizer import byte_tokenizer, from_folder
assert byte_tokenizer().encode("a") == [97]
calls = [
    lambda: from_folder(sys.argv[1]),
    lambda: byte_tokenizer(chat_template="x"),
]
for call in calls:
    try:
        call()
    except ImportError as error:
        print(error)
"""


def test_without_the_optional_packages(tmp_path):
    write_folder(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", MISSING, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [
        'this tokenizer needs the package tokenizers: pip install "rljax[llm]"',
        'a chat template needs the package jinja2: pip install "rljax[llm]"',
    ]
