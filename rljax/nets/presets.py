"""Sizes of language models by name, from one that trains in seconds to 8 billion parameters."""

import jax

from rljax.nets.rotary import RopeScaling
from rljax.nets.transformer import TransformerConfig, make_transformer


def llama3_scaling(factor: float) -> RopeScaling:
    """How Llama 3.1 and 3.2 reach beyond the 8192 positions of Llama 3."""
    return RopeScaling("llama3", factor, 8192, low_freq_factor=1.0, high_freq_factor=4.0)


QWEN3 = TransformerConfig(
    *(151_936, 28, 1024, 16, 8, 128, 3072),
    rope_theta=1e6,
    norm_eps=1e-6,
    qk_norm=True,
    max_positions=40_960,
)
# Sizes stand in the order of the config: V, N, D, H, KV, K, F.
PRESETS: dict[str, TransformerConfig] = {
    # From scratch; for tokenizers of a few symbols, and of bytes (256 and some special ones).
    "tiny": TransformerConfig(32, 2, 16, 2, 1, 8, 32, max_positions=128),
    "mini": TransformerConfig(64, 2, 64, 4, 2, 16, 192, max_positions=256),
    "small": TransformerConfig(320, 4, 128, 4, 2, 32, 384, max_positions=512),
    "medium": TransformerConfig(320, 8, 384, 6, 2, 64, 1024, max_positions=1024),
    # As published, for loading or for training from scratch.
    "smollm2-135m": TransformerConfig(
        *(49_152, 30, 576, 9, 3, 64, 1536), rope_theta=1e5, norm_eps=1e-5, max_positions=8192
    ),
    "smollm2-360m": TransformerConfig(
        *(49_152, 32, 960, 15, 5, 64, 2560), rope_theta=1e5, norm_eps=1e-5, max_positions=8192
    ),
    "qwen2.5-0.5b": TransformerConfig(
        *(151_936, 24, 896, 14, 2, 64, 4864),
        rope_theta=1e6,
        norm_eps=1e-6,
        qkv_bias=True,
        max_positions=32_768,
    ),
    "qwen3-0.6b": QWEN3,
    "llama-3.2-1b": TransformerConfig(
        *(128_256, 16, 2048, 32, 8, 64, 8192),
        rope_theta=5e5,
        rope_scaling=llama3_scaling(32.0),
        norm_eps=1e-5,
        max_positions=131_072,
    ),
    "qwen3-1.7b": QWEN3._replace(model_size=2048, mlp_size=6144),
    "llama-3.1-8b": TransformerConfig(
        *(128_256, 32, 4096, 32, 8, 128, 14_336),
        rope_theta=5e5,
        rope_scaling=llama3_scaling(8.0),
        norm_eps=1e-5,
        tie_embeddings=False,
        max_positions=131_072,
    ),
    "qwen3-8b": QWEN3._replace(
        num_layers=36, model_size=4096, num_heads=32, mlp_size=12_288, tie_embeddings=False
    ),
}


def num_params(config: TransformerConfig) -> int:
    """How many numbers the parameters of a model are.

    >>> num_params(PRESETS["smollm2-135m"])
    134515008
    """
    params = jax.eval_shape(make_transformer(config).init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(params))
