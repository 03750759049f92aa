"""The presets have the sizes that were published."""

import jax
import pytest

from rljax.nets.presets import PRESETS, num_params
from rljax.nets.transformer import make_transformer

# Parameters as the model cards and the safetensors of these models count them, the tied
# unembedding once.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "llama-3.2-1b": 1_235_814_400,
    "qwen3-1.7b": 1_720_574_976,
    "llama-3.1-8b": 8_030_261_248,
    "qwen3-8b": 8_190_735_360,
}


def counted(config):
    net = make_transformer(config)
    abstract = jax.eval_shape(lambda: net.init(jax.random.key(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(abstract))


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_counted(name):
    assert num_params(PRESETS[name]) == counted(PRESETS[name])


def test_variants_are_counted():
    every = {"qkv_bias": True, "out_bias": True, "mlp_bias": True, "qk_norm": True}
    config = PRESETS["tiny"]._replace(tie_embeddings=False, **every)
    assert num_params(config) == counted(config)


def test_published_sizes():
    assert {name: num_params(PRESETS[name]) for name in PUBLISHED} == PUBLISHED
    assert num_params(PRESETS["tiny"]) < 6000
