"""Makes the reference files beside it: what transformers computes for tiny models and for SmolLM2.

Run by hand, never by the tests, from the root of the repository:

    pip install torch transformers accelerate gguf
    python tests/llm/references/make_models.py tiny
    python tests/llm/references/make_models.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf

The files were made with transformers 5.24.0, torch 2.14.1 and tokenizers 0.23.3 on a CPU, in
float32 with attn_implementation="eager". The .gguf file is that of `experiments.get_smollm`.

NAME/ are tiny Hugging Face folders, all of whose tensors (norms and biases too) are random, so that
none of them can be left out or swapped unnoticed; `TINY` says what each is for. In
NAME/reference.npz:
  tokens [3, 12] and logits [3, 12, V]: all three rows whole.
  mask [3, 12] and padded_logits [3, 12, V]: the same tokens, of which the first 0, 4 and 11 of a
    row are padding, with positions max(cumsum(mask) - 1, 0). NaN where there is padding: no test
    can compare them by mistake.

smollm2.npz. All logits of four texts would be 50 MB. A wrong model, position, mask or weight moves
all logits of a row, so a fixed random sample of them, with the logsumexp over all and the largest,
says as much:
  texts [4], tokens [4, 64] (the first 64 of each text), vocabulary_ids [64] and of the logits
    sampled_logits [4, 64, 64] at these ids, logsumexp, max, argmax and margin [4, 64] (margin: the
    largest less the second largest, to know which argmax rounding could change).
  chats [2] (JSON: the messages) and chat_texts [2] (by the model's own template, with the
    beginning of the answer), prompt_tokens and prompt_mask [2, L], left-padded, and the greedy
    continuation of each prompt: greedy_tokens [2, 32], their greedy_log_probs at temperature 1 and
    greedy_margin.
"""

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

FOLDER = Path(__file__).parent
PADDING = (0, 4, 11)  # of the three rows; the last keeps one token


class Tiny(NamedTuple):
    """How a tiny folder is made."""

    config: PretrainedConfig
    dtype: torch.dtype = torch.float32
    max_shard_size: str = "1GB"
    old_config: dict[str, Any] | None = None  # replaces `rope_parameters`, as in older folders


def llama3_rope(theta: float) -> dict[str, Any]:
    # Of the six frequencies of a head one is kept, one is blended, four are divided.
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }


def without(entries: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key != name}


COMMON = {"num_attention_heads": 4, "num_key_value_heads": 2}
YARN = {
    # Six frequencies: one is kept, two are divided, three lie between; attention is scaled by 1.14.
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
TINY = {
    # Untied; heads wider than model_size / heads; the config in the form of Llama 3.1's folder.
    "llama3": Tiny(
        LlamaConfig(
            vocab_size=104,
            hidden_size=32,
            intermediate_size=56,
            num_hidden_layers=2,
            head_dim=12,
            rms_norm_eps=1e-5,
            rope_parameters=llama3_rope(10_000.0),
            tie_word_embeddings=False,
            **COMMON,
        ),
        old_config={
            "rope_theta": 10_000.0,
            "rope_scaling": without(llama3_rope(10_000.0), "rope_theta"),
        },
    ),
    # Biases everywhere, tied; an epsilon that matters; three heads share one of keys and values.
    "llama_bias": Tiny(
        LlamaConfig(
            vocab_size=96,
            hidden_size=36,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=6,
            rms_norm_eps=1e-2,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
        )
    ),
    # Linear scaling, whose type stood under "type" in the oldest folders; in bfloat16.
    "llama_linear": Tiny(
        LlamaConfig(
            vocab_size=112,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0},
            tie_word_embeddings=False,
            **COMMON,
        ),
        dtype=torch.bfloat16,
        old_config={"rope_theta": 1000.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
    ),
    "llama_yarn": Tiny(
        LlamaConfig(
            vocab_size=100,
            hidden_size=48,
            intermediate_size=56,
            num_hidden_layers=2,
            max_position_embeddings=256,
            rms_norm_eps=1e-5,
            rope_parameters=YARN,
            tie_word_embeddings=False,
            **COMMON,
        )
    ),
    # Biases on queries, keys and values, tied.
    "qwen2": Tiny(
        Qwen2Config(
            vocab_size=120,
            hidden_size=40,
            intermediate_size=72,
            num_hidden_layers=2,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
            tie_word_embeddings=True,
            **COMMON,
        )
    ),
    # Norms of queries and keys, untied, wide heads; in several files.
    "qwen3": Tiny(
        Qwen3Config(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            head_dim=16,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
            tie_word_embeddings=False,
            **COMMON,
        ),
        max_shard_size="60KB",
    ),
    # What SmolLM2 is: a Llama, tied; three layers.
    "smollm": Tiny(
        LlamaConfig(
            vocab_size=110,
            hidden_size=36,
            intermediate_size=60,
            num_hidden_layers=3,
            num_attention_heads=3,
            num_key_value_heads=1,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
            tie_word_embeddings=True,
        )
    ),
}

TEXTS = [
    "The lighthouse keeper had not spoken to anyone for eleven days when the boat came. He watched "
    "it round the point, low in the water, and counted the people on deck: three, and a dog. By "
    "the time they had tied up he had put the kettle on, found a second cup, and remembered how a "
    "sentence begins. They had come, it turned out, to ask him whether the light could be put out "
    "for one night, so that the birds would not lose their way.",
    "def median(values: list[float]) -> float:\n"
    '    """Middle value; the mean of both where there are two."""\n'
    "    ordered = sorted(values)\n"
    "    half, odd = divmod(len(ordered), 2)\n"
    "    if not ordered:\n"
    '        raise ValueError("no values")\n'
    "    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2\n\n\n"
    "print(median([3.0, 1.5, 2.25]))  # 2.25\n",
    "Größe naïve façade, Ångström; Привет, мир! 東京は雨です。 مرحبا بالعالم ☕🚀 👩‍👩‍👧 "
    "e\u0301 ≠ é, ∑ᵢ xᵢ² ≤ 1 — “quoted”…",
    "In 1987 the pump moved 12,450 litres in 36 minutes; by 2024 it needed 41.75. "
    "  7 * 8 = 56, 56 + 0.5 = 56.5, 1e-3 < 0.01, 2^10 = 1024, 100% of $3.50 is 3.50, "
    "and 9/4 = 2.25. Phone 555-0199, room 204B, flight at 06:05.",
]
CHATS = [
    [{"role": "user", "content": "Why do leaves change colour in autumn?"}],
    [
        {"role": "system", "content": "You answer like a patient teacher."},
        {"role": "user", "content": "What is 12 + 30?"},
        {"role": "assistant", "content": "12 + 30 is 42."},
        {"role": "user", "content": "Explain step by step how you found it, in a few sentences."},
    ],
]


def random_tensor(name: str, shape: torch.Size, tied: bool, rng: np.random.Generator):
    """Scales that give logits with a deviation above 1, and attention that is not flat."""
    noise = rng.standard_normal(shape)
    if name.endswith("norm.weight"):
        noise = 1.0 + 0.3 * noise
    elif name.endswith("bias"):
        noise *= 0.3
    elif name == "lm_head.weight" or (name == "model.embed_tokens.weight" and tied):
        noise *= 1.2 / np.sqrt(shape[-1])
    elif name != "model.embed_tokens.weight":
        noise *= 1.0 / np.sqrt(shape[-1])
    return torch.tensor(noise, dtype=torch.float32)


def write_tiny(name: str, tiny: Tiny) -> None:
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    rng = np.random.default_rng([7, *name.encode()])
    model = AutoModelForCausalLM.from_config(tiny.config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            tied = tiny.config.tie_word_embeddings
            parameter.copy_(random_tensor(parameter_name, parameter.shape, tied, rng))
    model.to(tiny.dtype).save_pretrained(folder, max_shard_size=tiny.max_shard_size)
    reference = tiny_reference(folder, rng)
    if tiny.old_config:
        file = folder / "config.json"
        entries = without(json.loads(file.read_text()), "rope_parameters")
        entries["torch_dtype"] = entries.pop("dtype")
        file.write_text(json.dumps(entries | tiny.old_config, indent=2, sort_keys=True) + "\n")
        again = logits_of(load(folder), reference["tokens"])
        assert np.array_equal(again, reference["logits"]), "the older config means something else"
    np.savez_compressed(folder / "reference.npz", **reference)


def tiny_reference(folder: Path, rng: np.random.Generator) -> dict[str, np.ndarray]:
    model = load(folder)
    tokens = rng.integers(0, model.config.vocab_size, (3, 12))
    mask = np.arange(12) >= np.array(PADDING)[:, None]
    logits, padded = logits_of(model, tokens), logits_of(model, tokens, mask)
    padded[~mask] = np.nan
    for row, padding in enumerate(PADDING):  # padding must not be seen
        alone = logits_of(model, tokens[row : row + 1, padding:])[0]
        assert np.abs(alone - padded[row, padding:]).max() < 1e-5
    exact = logits_of(model.double(), tokens)
    print(
        f"{folder.name:14} deviation of the logits {logits.std():.2f}, largest "
        f"{np.abs(logits).max():.1f}, float32 less float64 {np.abs(logits - exact).max():.1e}"
    )
    return {
        "tokens": tokens.astype(np.int32),
        "logits": logits,
        "mask": mask,
        "padded_logits": padded,
    }


def load(path: Path, **options):
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", **options
    ).eval()


@torch.no_grad()
def logits_of(model, tokens: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    options = {}
    if mask is not None:
        options["attention_mask"] = torch.tensor(mask, dtype=torch.long)
        options["position_ids"] = torch.tensor(np.maximum(np.cumsum(mask, -1) - 1, 0))
    return model(torch.tensor(tokens, dtype=torch.long), **options).logits.numpy()


def margin_of(logits: np.ndarray) -> np.ndarray:
    largest = np.partition(logits, -2)[..., -2:]
    return largest[..., 1] - largest[..., 0]


def logsumexp_of(logits: np.ndarray) -> np.ndarray:
    largest = logits.max(-1, keepdims=True)
    total = np.exp(logits.astype(np.float64) - largest).sum(-1)
    return (largest[..., 0] + np.log(total)).astype(np.float32)


def write_smollm2(gguf: Path) -> None:
    model = load(gguf.parent, gguf_file=gguf.name)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers does not read which splitting the file names ("smollm"): digits one by one,
    # before that of GPT-2. It matters for spaces in front of digits.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    tokens = np.array([encode(text)[:64] for text in TEXTS])
    logits = logits_of(model, tokens)
    ids = np.sort(np.random.default_rng(7).choice(model.config.vocab_size, 64, replace=False))
    reference = {
        "texts": np.array(TEXTS),
        "tokens": tokens.astype(np.int32),
        "vocabulary_ids": ids.astype(np.int32),
        "sampled_logits": logits[..., ids],
        "logsumexp": logsumexp_of(logits),
        "max": logits.max(-1),
        "argmax": logits.argmax(-1).astype(np.int32),
        "margin": margin_of(logits),
    }
    chat_texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for chat in CHATS
    ]
    reference |= {
        "chats": np.array([json.dumps(chat) for chat in CHATS]),
        "chat_texts": np.array(chat_texts),
        **greedy_of(model, [encode(text) for text in chat_texts]),
    }
    np.savez_compressed(FOLDER / "smollm2.npz", **reference)
    exact = logits_of(model.double(), tokens)
    print(f"float32 less float64: {np.abs(logits - exact).max():.1e}, largest {logits.max():.1f}")
    print(f"smallest margins: {np.sort(reference['margin'].ravel())[:5]}")
    print(f"of the greedy tokens: {np.sort(reference['greedy_margin'].ravel())[:5]}")
    for row in reference["greedy_tokens"]:
        print(repr(tokenizer.decode(row)))


def greedy_of(model, prompts: list[list[int]]) -> dict[str, np.ndarray]:
    """32 tokens for each prompt; `generate` (cached, padded) and the full forward agree on them."""
    length = max(map(len, prompts))
    pad = model.config.eos_token_id
    tokens = np.array([[pad] * (length - len(prompt)) + prompt for prompt in prompts])
    mask = np.array([np.arange(length) >= length - len(prompt) for prompt in prompts])
    generated = model.generate(
        torch.tensor(tokens),
        attention_mask=torch.tensor(mask, dtype=torch.long),
        do_sample=False,
        max_new_tokens=32,
        pad_token_id=pad,
    ).numpy()[:, length:]
    assert generated.shape[1] == 32
    assert not (generated == pad).any(), "a chat ends early"
    log_probs, margins = [], []
    for prompt, row in zip(prompts, generated):
        logits = logits_of(model, np.array([[*prompt, *row]]))[0, len(prompt) - 1 : -1]
        assert np.array_equal(logits.argmax(-1), row)
        log_probs.append(logits.max(-1) - logsumexp_of(logits))
        margins.append(margin_of(logits))
    return {
        "prompt_tokens": tokens.astype(np.int32),
        "prompt_mask": mask,
        "greedy_tokens": generated.astype(np.int32),
        "greedy_log_probs": np.array(log_probs),
        "greedy_margin": np.array(margins),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["tiny", "smollm2"])
    parser.add_argument("gguf", nargs="?", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    if options.what == "tiny":
        for name, tiny in TINY.items():
            write_tiny(name, tiny)
    elif options.gguf is None:
        parser.error("smollm2 needs the path of the .gguf file")
    else:
        write_smollm2(options.gguf)


if __name__ == "__main__":
    main()
