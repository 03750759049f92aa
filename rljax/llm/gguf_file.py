"""GGUF files: metadata to a config, quantised tensors to numbers."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rljax.llm.gguf_reader import GgufFile, read_gguf
from rljax.llm.layout import Checkpoint
from rljax.llm.packages import need
from rljax.llm.tokenizer import from_gguf
from rljax.nets.rotary import RopeScaling, frequencies
from rljax.nets.transformer import TransformerConfig

FAMILIES = ("llama", "qwen2", "qwen3")
NAMES = {  # of a layer's tensors
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
ROPE_FACTORS = "rope_freqs.weight"  # what the frequencies are divided by
LLAMA3_POSITIONS = 8192  # of all published models with such factors


def open_gguf(path: Path) -> Checkpoint:
    """A GGUF file, mapped into memory; nothing is dequantised before it is read.

    Raises:
      ValueError: of one line, if it is not whole, or holds what is not known.
    """
    gguf = need("gguf", "a .gguf file")
    file = read_gguf(path)
    check_tensors_whole(gguf, file)
    factors = None
    if ROPE_FACTORS in file.tensors:
        factors = dequantized(gguf, file, ROPE_FACTORS, slice(None))
    shapes = {name: tensor.shape for name, tensor in file.tensors.items() if name != ROPE_FACTORS}
    config = config_from_metadata(file.metadata, shapes, factors)
    permuted = {}
    if file.metadata["general.architecture"] == "llama":
        permuted = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}

    def read(name: str, rows: slice) -> np.ndarray:
        numbers = dequantized(gguf, file, name, rows)
        heads = permuted.get(name.split(".")[2]) if name.startswith("blk.") else None
        return numbers if heads is None else in_halves(numbers, heads)

    def tokenizer() -> Any:
        return from_gguf(file.metadata) if "tokenizer.ggml.tokens" in file.metadata else None

    return Checkpoint(config, shapes, name_of, read, tokenizer)


def name_of(name: str) -> str:
    """The name in a GGUF file of a tensor of a Hugging Face folder.

    >>> name_of("model.layers.7.self_attn.q_proj.bias")
    'blk.7.attn_q.bias'
    """
    if name in OUTER:
        return OUTER[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{NAMES[module]}.{kind}"


def in_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the order of the outputs of queries and keys in files of architecture llama.

    There the two numbers that are rotated together stand side by side; here, as in Hugging Face
    files, they are half a head apart.

    >>> in_halves(np.array([0, 2, 1, 3]), 1).tolist()
    [0, 1, 2, 3]
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def dequantized(gguf: Any, file: GgufFile, name: str, rows: slice) -> np.ndarray:
    """Some rows of a tensor, in float32."""
    tensor = file.tensors[name]
    kind = gguf.GGMLQuantizationType(tensor.kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    *outer, inner = tensor.shape
    stored = (*outer, inner // block * size)
    data = file.data[tensor.start :][: math.prod(stored)].reshape(stored)
    if not outer:
        return gguf.quants.dequantize(data, kind)[rows]
    return gguf.quants.dequantize(data[rows], kind)


def check_tensors_whole(gguf: Any, file: GgufFile) -> None:
    """Raises a ValueError for a tensor that the file cuts off, or that cannot be dequantised."""
    known = set()
    for name, tensor in file.tensors.items():
        try:
            kind = gguf.GGMLQuantizationType(tensor.kind)
        except ValueError:
            raise ValueError(f"tensor {name} is of an unknown type, {tensor.kind}") from None
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if not tensor.shape or tensor.shape[-1] % block:
            raise ValueError(f"tensor {name} is {tensor.shape}: {kind.name} needs rows of {block}")
        end = tensor.start + math.prod(tensor.shape) // block * size
        if end > len(file.data):
            raise ValueError(
                f"the GGUF file is truncated: tensor {name} {tensor.shape} ends at byte {end}, "
                f"and the file has {len(file.data)}"
            )
        if kind not in known:
            try:
                gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
            except NotImplementedError:
                message = f"tensor {name} is {kind.name}: the package gguf cannot dequantise that"
                raise ValueError(message) from None
            known.add(kind)


def config_from_metadata(
    values: dict[str, Any], shapes: dict[str, tuple[int, ...]], factors: np.ndarray | None
) -> TransformerConfig:
    """The config of a model.

    Args:
      values: the metadata.
      shapes: of all tensors, [outputs, inputs].
      factors: what frequencies are divided by [K / 2], or None.
    """
    family = values.get("general.architecture")
    if family not in FAMILIES:
        raise ValueError(
            f"general.architecture is {family!r}: it must be one of {', '.join(FAMILIES)}"
        )

    def get(name: str, default: Any = None, *, kind: type = int) -> Any:
        key = name if name.startswith("split.") else f"{family}.{name}"
        value = values.get(key, default)
        if isinstance(value, list):  # one for each layer
            if len(set(value)) != 1:
                raise ValueError(f"{key} is {value}: it must be the same for all layers")
            value = value[0]
        if value is None:
            raise ValueError(f"it has no {key}")
        if isinstance(value, bool) or not isinstance(value, int | float if kind is float else kind):
            raise ValueError(f"{key} is {value!r}: it must be of type {kind.__name__}")
        return kind(value)

    if (parts := get("split.count", 1)) > 1:
        raise ValueError(f"it is one of {parts} parts: merge them with llama-gguf-split --merge")
    for name in ("attention.sliding_window", "expert_count"):
        if (value := get(name, 0)) > 0:
            raise ValueError(f"{family}.{name} is {value}: it must be 0 or absent")
    width, heads = get("embedding_length"), get("attention.head_count")
    head_size = get("attention.key_length", width // max(heads, 1))
    for name in ("attention.value_length", "rope.dimension_count"):
        if (value := get(name, head_size)) != head_size:
            raise ValueError(f"{family}.{name} is {value}: it must be the head size, {head_size}")
    if "token_embd.weight" not in shapes:
        raise ValueError("tensor token_embd.weight is missing")
    theta = get("rope.freq_base", 10_000.0, kind=float)
    if not 1 < theta < float("inf"):
        raise ValueError(f"{family}.rope.freq_base is {theta}: it must be above 1")
    positions = get("context_length")
    scaling = scaling_of(get, positions)
    if factors is not None:
        if scaling is not None:
            raise ValueError(f"it has {ROPE_FACTORS} and rope.scaling too: one must be absent")
        scaling = scaling_of_factors(np.asarray(factors, np.float64), head_size, theta)
    return TransformerConfig(
        vocab_size=shapes["token_embd.weight"][0],
        num_layers=get("block_count"),
        model_size=width,
        num_heads=heads,
        num_kv_heads=get("attention.head_count_kv", heads),
        head_size=head_size,
        mlp_size=get("feed_forward_length"),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=get("attention.layer_norm_rms_epsilon", kind=float),
        tie_embeddings="output.weight" not in shapes,
        qkv_bias="blk.0.attn_q.bias" in shapes,
        out_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_gate.bias" in shapes,
        qk_norm=family == "qwen3",
        max_positions=positions,
    )


def scaling_of(get: Callable, positions: int) -> RopeScaling | None:
    """The scaling that the metadata name; where they give a factor alone it is linear."""
    factor = get("rope.scaling.factor", 0.0, kind=float)
    kind = get("rope.scaling.type", "linear" if factor else "none", kind=str)
    if kind not in ("none", "linear", "yarn"):
        raise ValueError(f"rope.scaling.type is {kind!r}: it must be one of none, linear, yarn")
    for name, plain in (
        ("scaling.attn_factor", 1.0),
        ("scaling.yarn_attn_factor", 1.0),
        ("scaling.yarn_ext_factor", 1.0),
        ("scaling.yarn_log_multiplier", 0.0),
        ("scale_linear", 1.0),
    ):
        if (value := get(f"rope.{name}", plain, kind=float)) != plain:
            raise ValueError(f"rope.{name} is {value}: it must be {plain} or absent")
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if kind == "linear":
        return RopeScaling("linear", factor)
    return RopeScaling(
        "yarn",
        factor,
        get("rope.scaling.original_context_length", positions),
        beta_fast=get("rope.scaling.yarn_beta_fast", 32.0, kind=float),
        beta_slow=get("rope.scaling.yarn_beta_slow", 1.0, kind=float),
    )


def scaling_of_factors(factors: np.ndarray, head_size: int, theta: float) -> RopeScaling | None:
    """The scaling of kind llama3 that divides the frequencies by these factors [K / 2].

    >>> scaling_of_factors(np.ones(32), 64, 1e4) is None
    True
    """
    if factors.shape == (head_size // 2,) and np.all(factors == 1):
        return None
    guess = RopeScaling("llama3", float(np.max(factors, initial=1.0)), LLAMA3_POSITIONS)
    plain, scaled = (np.asarray(frequencies(head_size, theta, s)[0]) for s in (None, guess))
    if factors.shape != plain.shape or not np.allclose(plain / scaled, factors, rtol=1e-4, atol=0):
        raise ValueError(f"{ROPE_FACTORS} is not that of llama3 with {LLAMA3_POSITIONS} positions")
    return guess
