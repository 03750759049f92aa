"""Models from Hugging Face folders: the same logits as transformers, and the same bits again."""

import json
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from rljax.llm.load import load_language_model, model_from_config, save_language_model
from rljax.nets.presets import PRESETS
from rljax.nets.transformer import TransformerConfig
from rljax.sharding import make_mesh, replicated

from .small_gguf import tensors_of

REFERENCES = Path(__file__).parent / "references"
FOLDERS = ["llama3", "llama_bias", "llama_linear", "llama_yarn", "qwen2", "qwen3", "smollm"]
# Tied, untied, sharded; biases on all, some, none; norms of queries and keys; bfloat16.
KINDS = ["llama_bias", "llama_linear", "llama_yarn", "qwen2", "qwen3"]


def assert_same(params, others):
    jax.tree.map(np.testing.assert_array_equal, params, others)


@pytest.mark.parametrize("name", FOLDERS)
def test_logits_are_those_of_transformers(name):
    model = load_language_model(REFERENCES / name)
    reference = np.load(REFERENCES / name / "reference.npz")
    tokens, padded = reference["tokens"], reference["mask"] != 0
    mask = np.concatenate([np.ones_like(padded), padded])
    apply = jax.jit(model.net.apply)
    logits = np.asarray(apply(model.params, np.concatenate([tokens, tokens]), mask=mask))
    wanted = np.concatenate([reference["logits"], reference["padded_logits"]])
    np.testing.assert_allclose(logits[mask], wanted[mask], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_logits_of_smollm2_are_those_of_transformers(smollm_path):
    model = load_language_model(smollm_path)
    reference = np.load(REFERENCES / "smollm2.npz")
    logits = np.asarray(jax.jit(model.net.apply)(model.params, reference["tokens"]))
    sampled = logits[:, :, reference["vocabulary_ids"]]
    np.testing.assert_allclose(sampled, reference["sampled_logits"], rtol=0, atol=3e-4)
    np.testing.assert_allclose(logits.max(-1), reference["max"], rtol=0, atol=3e-4)
    sure = reference["margin"] > 1e-3
    assert np.all((logits.argmax(-1) == reference["argmax"])[sure])


@pytest.mark.parametrize("name", KINDS)
def test_what_is_saved_is_what_transformers_had_saved(name, tmp_path):
    before = json.loads((REFERENCES / name / "config.json").read_text())
    dtype = before.get("dtype") or before["torch_dtype"]
    model = load_language_model(REFERENCES / name, dtype=dtype)
    limit = 30_000 if name == "qwen2" else 5e9
    save_language_model(tmp_path / "model", model, max_shard_bytes=limit)
    wanted, saved = tensors_of(REFERENCES / name), tensors_of(tmp_path / "model")
    assert saved.keys() == wanted.keys()
    for tensor, x in wanted.items():
        np.testing.assert_array_equal(saved[tensor], x)
    after = json.loads((tmp_path / "model" / "config.json").read_text())
    for field in ("architectures", "model_type", "max_position_embeddings", "head_dim"):
        assert after[field] == before.get(field, after[field])
    assert after["torch_dtype"] == dtype
    again = load_language_model(tmp_path / "model", dtype=dtype)
    assert again.config == model.config
    assert_same(again.params, model.params)


def test_a_large_model_is_saved_in_shards(tmp_path):
    model = load_language_model(REFERENCES / "qwen2")
    save_language_model(tmp_path / "model", model, max_shard_bytes=30_000)
    files = sorted((tmp_path / "model").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    contents = [load_file(file) for file in files]
    assert all(sum(x.nbytes for x in c.values()) <= 30_000 or len(c) == 1 for c in contents)
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    places = {name: file.name for file, c in zip(files, contents) for name in c}
    assert index["weight_map"] == places
    assert index["metadata"]["total_size"] == sum(x.nbytes for c in contents for x in c.values())


def test_a_model_made_from_scratch_comes_back(tmp_path, key):
    model = model_from_config(PRESETS["tiny"]._replace(param_dtype="bfloat16"), key)
    save_language_model(tmp_path / "deep" / "model", model)
    again = load_language_model(tmp_path / "deep" / "model", dtype=jnp.bfloat16)
    assert again.config == model.config._replace(compute_dtype="bfloat16")
    assert again.tokenizer is None
    assert_same(again.params, model.params)


def test_dtypes_of_parameters_and_of_the_computation():
    wide = load_language_model(REFERENCES / "qwen3")
    narrow = load_language_model(REFERENCES / "qwen3", dtype=jnp.bfloat16)
    mixed = load_language_model(REFERENCES / "qwen3", dtype="float32", compute_dtype="bfloat16")
    assert_same(narrow.params, jax.tree.map(lambda x: x.astype(jnp.bfloat16), wide.params))
    assert_same(mixed.params, wide.params)
    assert (narrow.config.param_dtype, narrow.config.compute_dtype) == ("bfloat16", "bfloat16")
    assert (mixed.config.param_dtype, mixed.config.compute_dtype) == ("float32", "bfloat16")


def test_parameters_are_put_where_they_are_wanted():
    mesh = make_mesh(2)
    plain = load_language_model(REFERENCES / "qwen3").params
    whole = load_language_model(REFERENCES / "qwen3", sharding=replicated(mesh)).params
    assert_same(whole, plain)
    assert all(x.sharding == replicated(mesh) for x in jax.tree.leaves(whole))
    asked = {}

    def split_embedding(path, shape):
        asked[path] = shape
        return NamedSharding(mesh, PartitionSpec("data")) if path == "embedding" else None

    split = load_language_model(REFERENCES / "qwen3", sharding=split_embedding).params
    assert_same(split, plain)
    rows, width = plain["embedding"].shape
    assert {x.data.shape for x in split["embedding"].addressable_shards} == {(rows // 2, width)}
    assert asked["layers/qkv"] == plain["layers"]["qkv"].shape
    assert len(asked) == len(jax.tree.leaves(plain))


def test_no_second_copy_of_a_model_is_made(tmp_path, key):
    config = TransformerConfig(2048, 6, 128, 4, 2, 32, 512)
    save_language_model(tmp_path / "model", model_from_config(config, key))
    extra, sizes = [], []

    def measure(path, shape):
        # On a CPU NumPy's memory becomes the parameters': that of those that are there and of this
        # one, and what it took to read it.
        sizes.append(4 * int(np.prod(shape)))
        extra.append(tracemalloc.get_traced_memory()[1] - start - sum(sizes))
        tracemalloc.reset_peak()

    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        model = load_language_model(tmp_path / "model", sharding=measure)
        kept = tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()
    one_tensor = 4 * 2048 * 128  # the embedding: a block, as it is this small
    assert max(extra) < one_tensor + 300_000 < 0.25 * sum(sizes)
    assert sum(x.nbytes for x in jax.tree.leaves(model.params)) <= kept < sum(sizes) + 300_000


def test_a_large_table_is_read_in_blocks(monkeypatch):
    whole = load_language_model(REFERENCES / "llama3")
    monkeypatch.setattr("rljax.llm.layout.BLOCK", 1000)  # 31 rows, and 104 are no multiple of it
    assert_same(load_language_model(REFERENCES / "llama3").params, whole.params)


def test_harmless_tensors_of_older_files(tmp_path, key):
    model = model_from_config(PRESETS["tiny"], key)
    save_language_model(tmp_path, model)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    save_file(tensors, file)
    assert_same(load_language_model(tmp_path).params, model.params)


def test_a_saved_model_replaces_a_model_whole(tmp_path, key):
    model = model_from_config(PRESETS["tiny"], key)
    save_language_model(tmp_path / "model", model, max_shard_bytes=2000)
    other = model._replace(params=jax.tree.map(lambda x: x + 1, model.params))
    save_language_model(tmp_path / "model", other)
    assert_same(load_language_model(tmp_path / "model").params, other.params)
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"config.json", "model.safetensors"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_save_that_fails_leaves_the_model_that_was_there(tmp_path, key):
    model = model_from_config(PRESETS["tiny"], key)
    save_language_model(tmp_path / "model", model)
    lost = {**model.params, "norm": jnp.copy(model.params["norm"])}
    lost["norm"].delete()
    with pytest.raises(RuntimeError, match="deleted"):
        save_language_model(tmp_path / "model", model._replace(params=lost))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert_same(load_language_model(tmp_path / "model").params, model.params)
