"""Writes GGUF files of small models from Hugging Face folders, as converters of llama.cpp do."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a folder in float32, by their names there."""
    files = sorted(folder.glob("*.safetensors"))
    tensors = {name: x for file in files for name, x in load_file(file).items()}
    return {name: x.astype(np.float32) for name, x in tensors.items()}


def side_by_side(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row i and row i + K/2 of each head, which are rotated together, become rows 2i and 2i + 1."""
    moved = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for i in range(size // 2):
            for half in range(2):
                moved[head * size + 2 * i + half] = rows[head * size + i + half * size // 2]
    return moved


def gguf_tensors(folder: Path, config: dict) -> dict[str, np.ndarray]:
    """The tensors under the names and in the order of rows that a GGUF file has."""
    found = {}
    for name, x in tensors_of(folder).items():
        module, _, kind = name.rpartition(".")
        if module in OUTER:
            found[f"{OUTER[module]}.{kind}"] = x
            continue
        layer, _, module = module.removeprefix("model.layers.").partition(".")
        if config["model_type"] == "llama" and module.endswith(("q_proj", "k_proj")):
            queries = module.endswith("q_proj")
            heads = config["num_attention_heads" if queries else "num_key_value_heads"]
            x = side_by_side(x, heads)
        found[f"blk.{layer}.{LAYER[module]}.{kind}"] = x
    return found


def write_gguf(
    path: Path,
    folder: Path,
    *,
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
    metadata: dict[str, object] | None = None,
    extra: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """A .gguf file of the model in `folder`; returns its tensors as they were before quantising.

    Args:
      kinds: quantisations of tensors whose names end so; float32 for the others.
      metadata: further or other values, without the name of the architecture; None takes one away.
      extra: further tensors.
    """
    config = json.loads((folder / "config.json").read_text())
    rope = config.get("rope_parameters") or config
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    values: dict = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": head_size,
        "rope.freq_base": float(rope["rope_theta"]),
        **(metadata or {}),
    }
    writer = gguf.GGUFWriter(path, config["model_type"])
    for name, value in values.items():
        name = name if name.startswith("split.") else f"{config['model_type']}.{name}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif value is not None:
            writer.add_uint32(name, value)
    tensors = gguf_tensors(folder, config) | (extra or {})
    for name, x in tensors.items():
        ends = [kind for end, kind in (kinds or {}).items() if name.endswith(end)]
        if ends:
            writer.add_tensor(name, gguf.quants.quantize(x, ends[0]), raw_dtype=ends[0])
        else:
            writer.add_tensor(name, x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors
