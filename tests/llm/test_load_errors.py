"""What is wrong with a model's files is said in one line, before anything is compiled."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rljax.llm.load import load_language_model, model_from_config, save_language_model
from rljax.nets.presets import PRESETS
from rljax.nets.transformer import TransformerConfig

from .small_gguf import write_gguf

pytestmark = pytest.mark.errors
QUERY = "model.layers.0.self_attn.q_proj.weight"
COMPILED = []  # what has been, in this process


def note_compilation(name, *_, **__):
    if "backend_compile" in name:
        COMPILED.append(name)


jax.monitoring.register_event_duration_secs_listener(note_compilation)


def test_compilation_is_noticed():
    before = len(COMPILED)
    jax.jit(lambda x: 3 * x + 5)(jnp.ones(7)).block_until_ready()
    assert len(COMPILED) > before


@pytest.fixture(scope="module")
def model():
    return model_from_config(PRESETS["tiny"], jax.random.key(0))


@pytest.fixture
def folder(tmp_path, model):
    save_language_model(tmp_path / "model", model)
    return tmp_path / "model"


@pytest.fixture
def shards(tmp_path, model):
    save_language_model(tmp_path / "shards", model, max_shard_bytes=5000)
    return tmp_path / "shards"


def refused(path, error=ValueError, **arguments):
    """The one line with which a model is refused; nothing may be compiled before."""
    before = len(COMPILED)
    with pytest.raises(error) as caught:
        load_language_model(path, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message or "dtype" in message
    assert len(COMPILED) == before
    return message


def edit_config(folder, **fields):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: v for name, v in config.items() if v != "absent"}))


def edit_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_path_with_nothing_there(tmp_path):
    message = refused(tmp_path / "nothing", FileNotFoundError)
    assert "nothing does not exist" in message


def test_a_folder_that_is_no_model(tmp_path):
    assert "no config.json" in refused(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "architectures is model_type None" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 and more", b"GGUF"])
def test_a_file_that_is_no_model(tmp_path, content):
    (tmp_path / "a.gguf").write_bytes(content)
    assert "GGUF file" in refused(tmp_path / "a.gguf")


def test_dtypes(folder):
    assert "dtype is int8: it must be one of float32" in refused(folder, dtype=jnp.int8)
    assert "dtype is words" in refused(folder, dtype="words")
    assert "compute_dtype is float64" in refused(folder, compute_dtype="float64")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "it must be one of LlamaForCausalLM, Qwen2"),
        ({"architectures": ["LlamaModel"]}, "architectures is ['LlamaModel']"),
        ({"hidden_size": "absent"}, "it has no hidden_size"),
        ({"hidden_size": "16"}, "hidden_size is '16': it must be a whole number"),
        ({"hidden_size": True}, "hidden_size is True: it must be a whole number"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small': it must be a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1: it must be true or false"),
        ({"hidden_size": 15, "head_dim": None}, "hidden_size is 15: without head_dim"),
        ({"num_attention_heads": 3}, f"tensor {QUERY} is (16, 16): it must be (24, 16)"),
        ({"num_key_value_heads": 3}, "num_heads is 2: it must be a multiple of num_kv_heads, 3"),
        ({"num_hidden_layers": 0}, "num_layers is 0: it must be at least 1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu': it must be 'silu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is 'gptq'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "has 'sliding_attention'"),
        ({"rope_theta": 0.5}, "rope_theta is 0.5: it must be above 1"),
        ({"rope_theta": float("nan")}, "rope_theta is nan: it must be finite"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "must be one of default, linear, llama3"),
        ({"rope_scaling": {"rope_type": "linear"}}, "it has no factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor is 0.5"),
        ({"rope_scaling": {"full_attention": {}}}, "differ by layer"),
        ({"rope_scaling": ["linear"]}, "differ by layer, or are no object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5: it must be 1"),
    ],
)
def test_fields_of_the_config(folder, fields, message):
    edit_config(folder, **fields)
    assert message in refused(folder)


def test_windows_of_qwen(folder):
    qwen = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
    edit_config(folder, **qwen, sliding_window=16, max_window_layers=1)
    assert "layer_types has 'sliding_attention'" in refused(folder)
    edit_config(folder, max_window_layers=2)  # no layer is beyond it
    assert "q_proj.bias" in refused(folder)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}}', "\ud83d"])
def test_a_config_that_is_no_json(folder, content):
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    assert "config.json: it" in refused(folder)


def test_a_wrong_shape(folder):
    edit_tensors(folder, lambda x: x.update({QUERY: np.zeros((8, 16), np.float32)}))
    assert f"tensor {QUERY} is (8, 16): it must be (16, 16)" in refused(folder)


def test_missing_and_extra_tensors(folder):
    edit_tensors(folder, lambda x: x.pop(QUERY))
    assert f"tensor {QUERY} (16, 16) is missing" in refused(folder)
    edit_config(folder, num_hidden_layers=3)
    assert "is missing (and 9 more)" in refused(folder)
    edit_config(folder, num_hidden_layers=1)
    edit_tensors(folder, lambda x: x.update({QUERY: np.zeros((16, 16), np.float32)}))
    message = refused(folder)
    assert "tensor model.layers.1." in message
    assert "has no place in this model (and 8 more)" in message


def test_an_unembedding_that_differs_from_the_tied_embedding(folder):
    edit_tensors(folder, lambda x: x.update({"lm_head.weight": np.ones((32, 16), np.float32)}))
    assert "lm_head.weight differs from model.embed_tokens.weight" in refused(folder)


def test_a_dtype_that_is_no_float(folder):
    edit_tensors(folder, lambda x: x.update({QUERY: np.zeros((16, 16), np.int8)}))
    assert f"tensor {QUERY} is I8: it must be one of F64" in refused(folder)


@pytest.mark.parametrize("left", [0, 4, 100, 0.5, 0.999])
def test_a_truncated_file_of_tensors(folder, left):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: left if isinstance(left, int) else int(left * len(data))])
    assert "model.safetensors is truncated or damaged" in refused(folder)


def test_no_tensors_at_all(folder):
    (folder / "model.safetensors").unlink()
    assert "neither model.safetensors nor model.safetensors.index.json" in refused(folder)


def test_damaged_shards(shards):
    index = shards / "model.safetensors.index.json"
    whole = index.read_text()
    files = sorted(shards.glob("*.safetensors"))
    assert len(files) > 2
    content = json.loads(whole)
    content["weight_map"]["model.norm.weight"] = files[0].name
    index.write_text(json.dumps(content))
    assert f"{files[0].name} holds no tensor model.norm.weight" in refused(shards)
    content["weight_map"]["model.norm.weight"] = "../secret.safetensors"
    index.write_text(json.dumps(content))
    assert "names ../secret.safetensors, which is not there" in refused(shards)
    for text in ("{}", "[]", '{"weight_map": {"a": 1}}', "nothing"):
        index.write_text(text)
        assert "index.json" in refused(shards)
    index.write_text(whole)
    files[1].unlink()
    assert f"index.json names {files[1].name}, which is not there" in refused(shards)


@pytest.fixture
def small(tmp_path, folder):
    """Writes a GGUF file of the tiny model, with some metadata and tensors changed."""

    def write(extra=None, **metadata):
        path = tmp_path / "model.gguf"
        write_gguf(path, folder, metadata=metadata, extra=extra)
        return path

    return write


def test_a_truncated_gguf_file(small):
    path = small()
    data = path.read_bytes()
    whole = load_language_model(path)
    assert whole.config.num_layers == 2
    for size in [5, 20, 24, 100, 500, 1200, len(data) // 2]:
        path.write_bytes(data[:size])
        assert "truncated" in refused(path)
    path.write_bytes(data[:-600])
    assert "the GGUF file is truncated: tensor " in refused(path)


def test_a_damaged_gguf_file(small):
    path = small()
    data = path.read_bytes()
    for place, number in [(4, 9), (8, 2**40), (16, 2**40), (24, 2**60)]:
        size = 4 if place == 4 else 8
        changed = data[:place] + number.to_bytes(size, "little") + data[place + size :]
        path.write_bytes(changed)
        assert "GGUF file" in refused(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"block_count": None}, "it has no llama.block_count"),
        ({"block_count": 3}, "tensor blk.2.attn_norm.weight (16,) is missing (and 8 more)"),
        ({"block_count": "two"}, "llama.block_count is 'two': it must be of type int"),
        ({"attention.head_count_kv": [1, 2]}, "llama.attention.head_count_kv is [1, 2]"),
        ({"rope.dimension_count": 4}, "rope.dimension_count is 4: it must be the head size, 8"),
        ({"rope.scaling.type": "longrope"}, "rope.scaling.type is 'longrope'"),
        ({"rope.scaling.attn_factor": 2.0}, "rope.scaling.attn_factor is 2.0: it must be 1.0"),
        ({"attention.sliding_window": 8}, "attention.sliding_window is 8"),
        ({"expert_count": 4}, "llama.expert_count is 4"),
        ({"rope.freq_base": 0.0}, "rope.freq_base is 0.0"),
        ({"split.count": 3}, "it is one of 3 parts"),
        ({"embedding_length": 32}, "tensor token_embd.weight is (32, 16): it must be (32, 32)"),
    ],
)
def test_metadata_of_a_gguf_file(small, metadata, message):
    assert message in refused(small(**metadata))


def test_tensors_of_a_gguf_file(small):
    query = {"blk.1.attn_q.weight": np.zeros((8, 16), np.float32)}
    message = "tensor blk.1.attn_q.weight is (8, 16): it must be (16, 16)"
    assert message in refused(small(query))
    assert "tensor more (3,) has no place" in refused(small({"more": np.zeros(3, np.float32)}))
    whole = {"blk.1.attn_q.weight": np.zeros((16, 16), np.int8)}
    assert "is I8: the package gguf cannot dequantise that" in refused(small(whole))
    factors = {"rope_freqs.weight": np.array([1, 1, 2, 3], np.float32)}
    assert "rope_freqs.weight is not that of llama3" in refused(small(factors))


def test_an_unknown_architecture_in_a_gguf_file(small):
    path = small()
    path.write_bytes(path.read_bytes().replace(b"llama", b"gemma"))
    assert "general.architecture is 'gemma': it must be one of llama, qwen2" in refused(path)


def unsaved(path, model, **arguments):
    with pytest.raises(ValueError, match=r"\S") as caught:
        save_language_model(path, model, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_places_that_are_not_overwritten(folder, model, tmp_path):
    (folder / "notes.txt").write_text("mine")
    assert "holds notes.txt: only a model's folder is replaced" in unsaved(folder, model)
    assert (folder / "notes.txt").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_bytes(b"")
    assert "holds model.safetensors" in unsaved(tmp_path / "other", model)
    (tmp_path / "file").write_text("")
    assert "is a file" in unsaved(tmp_path / "file", model)
    assert "max_shard_bytes is 0" in unsaved(tmp_path / "new", model, max_shard_bytes=0)


def test_models_that_cannot_be_saved(model, tmp_path):
    def changed(**fields):
        return model._replace(params={**model.params, **fields})

    path = Path(tmp_path / "new")
    message = unsaved(path, changed(norm=jnp.zeros(3)))
    assert message == "parameter norm is (3,): it must be (16,)"
    assert "parameter adapter is (3,): it must be absent" in unsaved(
        path, changed(adapter=jnp.zeros(3))
    )
    odd = model_from_config(
        TransformerConfig(8, 1, 16, 2, 1, 8, 16, out_bias=True), jax.random.key(0)
    )
    assert "no architecture of transformers has" in unsaved(path, odd)
    assert not list(tmp_path.iterdir())


MISSING = """
import sys
for name in ("safetensors", "gguf"):
    sys.modules[name] = None
from rljax.llm.load import load_language_model
for path in sys.argv[1:]:
    try:
        load_language_model(path)
    except ImportError as error:
        print(error)
"""


def test_without_the_optional_packages(small, folder):
    ran = subprocess.run(
        [sys.executable, "-c", MISSING, str(small()), str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == [
        'a .gguf file needs the package gguf: pip install "rljax[llm]"',
        'a Hugging Face folder needs the package safetensors: pip install "rljax[llm]"',
    ]
