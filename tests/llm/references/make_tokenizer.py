"""Writes tokenizer.jsonl beside this file: ids that transformers gives for SmolLM2's vocabulary.

    python make_tokenizer.py SmolLM2-135M-Instruct.Q4_1.gguf    (needs transformers and gguf)

The file's `tokenizer.ggml.pre` is smollm: digits are cut apart before GPT-2's pattern is used, as
the model was trained. transformers uses that pattern alone, which differs for runs of spaces before
a digit. The script gives transformers' tokenizer both steps and notes which texts that changes.
"""

import json
import sys
from pathlib import Path

import tokenizers
import transformers
from make_texts import TEXTS
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

CHATS = [
    [{"role": "user", "content": "What is 12 + 30?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Hallo Welt \n"},
        {"role": "assistant", "content": "你好"},
        {"role": "user", "content": ""},
    ],
]


def main(path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)

    def encode(text: str, special: bool) -> list[int]:
        tokenizer.backend_tokenizer.encode_special_tokens = not special
        return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    stock = [(encode(text, False), encode(text, True)) for text in TEXTS]
    words = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.backend_tokenizer.pre_tokenizer = words
    texts = []
    for text, before in zip(TEXTS, stock):
        ids = (encode(text, False), encode(text, True))
        entry = {"text": text, "ids": ids[0], "changed_by_digits": ids != before}
        texts.append(entry | ({"special_ids": ids[1]} if ids[0] != ids[1] else {}))
    chats = []
    for messages in CHATS:
        for prompt in (True, False):
            text = tokenizer.apply_chat_template(
                messages, add_generation_prompt=prompt, tokenize=False
            )
            chats.append(
                {"messages": messages, "prompt": prompt, "text": text, "ids": encode(text, True)}
            )
    made_by = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    lines = [json.dumps(made_by), *map(json.dumps, texts), *map(json.dumps, chats)]
    out = Path(__file__).with_name("tokenizer.jsonl")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
