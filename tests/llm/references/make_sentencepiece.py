"""Writes sentencepiece.json beside this file: a small vocabulary and the ids that go with it.

    python make_sentencepiece.py TEXT_FILE ...    (needs sentencepiece; trained on these files)

The vocabulary is stored under the names that GGUF gives to it.
"""

import json
import sys
import tempfile
from pathlib import Path

import sentencepiece
from make_texts import TEXTS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def main(files: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            input=files,
            model_prefix=f"{folder}/model",
            model_type="bpe",
            vocab_size=600,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            user_defined_symbols=["<tool>"],
            control_symbols=["<|im_end|>"],
            minloglevel=2,
        )
        model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/model.model")

    def kind(id: int) -> int:
        if model.IdToPiece(id) == "<tool>":
            return USER_DEFINED
        if model.IsUnknown(id):
            return UNKNOWN
        return CONTROL if model.IsControl(id) else BYTE if model.IsByte(id) else NORMAL

    ids = range(model.vocab_size())
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.IdToPiece(id) for id in ids],
        "tokenizer.ggml.scores": [model.GetScore(id) for id in ids],
        "tokenizer.ggml.token_type": [kind(id) for id in ids],
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
    }
    texts = [{"text": text, "ids": model.encode(text)} for text in TEXTS if "\0" not in text]
    content = {"made_by": sentencepiece.__version__, "fields": fields, "texts": texts}
    out = Path(__file__).with_name("sentencepiece.json")
    out.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
