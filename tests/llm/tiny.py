"""A small byte-level BPE, made on the fly by the library that reads it."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LINES = ["the cat sat on the mat, the hat and the bat", "def f(x):\n    return x + 1", "ä ö ü ß"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(LINES * 5, trainer)
    tokenizer.add_tokens(["<think>"])
    return tokenizer


def write_folder(folder: Path, files: dict[str, object] | None = None) -> Path:
    """A folder with the tiny tokenizer; `files` are further ones, or other contents of them."""
    contents = {
        "tokenizer.json": tiny_bpe().to_str(),
        "tokenizer_config.json": {
            "eos_token": "<|endoftext|>",
            "bos_token": {"content": "<|im_start|>", "lstrip": False},
            "chat_template": CHATML,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (contents | (files or {})).items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).write_text(text, encoding="utf-8")
    return folder
