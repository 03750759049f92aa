"""GGUF files: the weights that were written, whatever their order and quantisation."""

import math
from pathlib import Path

import gguf
import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from rljax.llm.gguf_reader import read_gguf
from rljax.llm.load import load_language_model, model_from_config, save_language_model
from rljax.nets.rotary import RopeScaling
from rljax.nets.transformer import TransformerConfig

from .small_gguf import write_gguf

REFERENCES = Path(__file__).parent / "references"
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("llama_bias", {}),
        ("llama_linear", LINEAR),
        ("llama_yarn", YARN),
        ("qwen2", {}),
        ("qwen3", {}),
        ("smollm", {}),
    ],
)
def test_a_file_and_a_folder_of_one_model_are_the_same(name, scaling, tmp_path):
    write_gguf(tmp_path / "model.gguf", REFERENCES / name, metadata=scaling)
    folder = load_language_model(REFERENCES / name)
    file = load_language_model(tmp_path / "model.gguf")
    jax.tree.map(np.testing.assert_array_equal, file.params, folder.params)
    eps = folder.config.norm_eps
    assert file.config.norm_eps == pytest.approx(eps, rel=1e-7)  # in float32 there
    assert file.config._replace(norm_eps=eps) == folder.config
    assert file.tokenizer is None


def test_logits_of_a_file_are_those_of_transformers(tmp_path):
    write_gguf(tmp_path / "model.gguf", REFERENCES / "llama_bias")
    model = load_language_model(tmp_path / "model.gguf")
    reference = np.load(REFERENCES / "llama_bias" / "reference.npz")
    logits = jax.jit(model.net.apply)(model.params, reference["tokens"])
    np.testing.assert_allclose(logits, reference["logits"], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama whose rows are whole blocks of every quantisation."""
    path = tmp_path_factory.mktemp("folder")
    config = TransformerConfig(40, 2, 256, 4, 2, 64, 256, max_positions=64)
    save_language_model(path, model_from_config(config, jax.random.key(3)))
    return path


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ2_0"])
def test_quantised_weights(kind, folder, tmp_path):
    kind = Kind[kind]
    ends = {"token_embd.weight": kind, "attn_q.weight": kind, "ffn_up.weight": kind}
    stored = write_gguf(tmp_path / "model.gguf", folder, kinds=ends)
    layers = load_language_model(tmp_path / "model.gguf").params
    table, layers = layers["embedding"], layers["layers"]

    def rounded(name):
        return gguf.quants.dequantize(gguf.quants.quantize(stored[name], kind), kind)

    np.testing.assert_array_equal(table, rounded("token_embd.weight"))
    for layer in range(2):
        up = layers["up"][layer]
        np.testing.assert_array_equal(up, rounded(f"blk.{layer}.ffn_up.weight"))
        # Output i of a head was stored at 2i, output i + 32 at 2i + 1.
        queries = rounded(f"blk.{layer}.attn_q.weight").reshape(2, 2, 64, 256)
        loaded = np.asarray(layers["qkv"][layer, :, :2])
        np.testing.assert_array_equal(loaded[:, :, :32], queries[:, :, ::2])
        np.testing.assert_array_equal(loaded[:, :, 32:], queries[:, :, 1::2])


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ2_XXS"])
def test_quantisations_that_can_only_be_read(kind, folder, tmp_path, monkeypatch):
    kind = Kind[kind]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    # Small bytes only: as scales they are finite.
    bytes_ = np.random.default_rng(0).integers(0, 60, (40, size), dtype=np.uint8)
    monkeypatch.setattr("gguf.quants.quantize", lambda x, kind: bytes_)
    write_gguf(tmp_path / "model.gguf", folder, kinds={"token_embd.weight": kind})
    table = load_language_model(tmp_path / "model.gguf").params["embedding"]
    wanted = gguf.quants.dequantize(bytes_, kind)
    assert np.ptp(wanted) > 0
    np.testing.assert_array_equal(table, wanted)


def llama3_factors(factor, low, high, positions, head_size, theta):
    """Long waves are stretched, short ones stay, the others lie between, wave by wave."""
    factors = []
    for i in range(head_size // 2):
        wave = 2 * math.pi * theta ** (2 * i / head_size)
        if wave < positions / high:
            factors.append(1.0)
        elif wave > positions / low:
            factors.append(factor)
        else:
            smooth = (positions / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_factors_of_llama3_become_its_scaling(factor, folder, tmp_path):
    factors = llama3_factors(factor, 1.0, 4.0, 8192, 64, 5e5)
    assert len(np.unique(factors)) > 3
    write_gguf(
        *(tmp_path / "model.gguf", folder),
        metadata={"rope.freq_base": 5e5},
        extra={"rope_freqs.weight": factors},
    )
    scaling = load_language_model(tmp_path / "model.gguf").config.rope_scaling
    assert scaling == RopeScaling("llama3", factor, 8192, 1.0, 4.0)


def test_defaults_of_what_a_file_does_not_say(folder, tmp_path):
    absent = ("rope.freq_base", "rope.dimension_count", "attention.key_length")
    absent += ("attention.value_length",)
    metadata = {name: None for name in absent} | {"attention.head_count_kv": [2, 2]}
    write_gguf(tmp_path / "model.gguf", folder, metadata=metadata)
    config = load_language_model(tmp_path / "model.gguf").config
    assert (config.rope_theta, config.head_size, config.num_kv_heads) == (1e4, 64, 2)


def test_metadata_are_those_that_the_package_reads(folder, tmp_path):
    more = {"some.words": "à la carte", "some.numbers": [3, -1], "some.texts": ["a", "", "é"]}
    write_gguf(tmp_path / "model.gguf", folder, metadata=more)
    ours, theirs = read_gguf(tmp_path / "model.gguf"), gguf.GGUFReader(tmp_path / "model.gguf")
    fields = {name: f.contents() for name, f in theirs.fields.items() if "GGUF." not in name}
    assert ours.metadata == fields
    assert fields["llama.some.texts"] == ["a", "", "é"]
    for tensor in theirs.tensors:
        own = ours.tensors[tensor.name]
        assert own.shape == tuple(tensor.shape[::-1])
        assert (own.kind, own.start) == (tensor.tensor_type, tensor.data_offset)
