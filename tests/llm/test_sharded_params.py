"""Parameters split over devices give the completions of one device."""

import jax
import numpy as np
import pytest

from rljax.llm.load import LanguageModel, load_language_model, save_language_model
from rljax.llm.sampler import generate
from rljax.nets.transformer import TransformerConfig, make_transformer
from rljax.sharding import make_mesh, param_sharding, shard_params

NET = make_transformer(
    TransformerConfig(
        *(32, 2, 16, 4, 2, 6, 20),
        tie_embeddings=False,
        qkv_bias=True,
        qk_norm=True,
    )
)
LENGTHS = np.array([7, 3, 1])
MASK = np.arange(7)[None] >= 7 - LENGTHS[:, None]
PROMPTS = np.where(MASK, np.random.default_rng(0).integers(3, 31, (3, 7)), 0)


@pytest.fixture(scope="module")
def params():
    """Sharper than at first, so that rounding decides no token."""
    return jax.tree.map(lambda x: 1.5 * x, NET.init(jax.random.key(0)))


def sample(params, **changes):
    settings = dict(group_size=3, max_new_tokens=9, stop_tokens=(1, 2), pad_token=0) | changes
    return generate(jax.random.key(5), NET, params, PROMPTS, MASK, **settings)


@pytest.fixture(scope="module")
def plain(params):
    return sample(params)


@pytest.mark.parametrize(
    ("devices", "model_devices", "over_data", "changes"),
    [
        (2, 2, False, {}),
        (4, 2, False, {"num_rows": 2}),
        (4, 2, True, {"unroll": False}),
        (2, 1, True, {}),
        (4, 1, True, {"num_rows": 2}),
    ],
    ids=str,
)
def test_completions_are_those_of_one_device(
    devices, model_devices, over_data, changes, params, plain
):
    mesh = make_mesh(devices, model_devices=model_devices)
    placed = shard_params(params, param_sharding(mesh, over_data=over_data))
    completions = sample(placed, mesh=mesh, **changes)
    for name in ("tokens", "mask", "lengths", "finished"):
        np.testing.assert_array_equal(getattr(completions, name), getattr(plain, name))
    np.testing.assert_allclose(completions.log_probs, plain.log_probs, atol=1e-5)


def test_each_device_has_its_part(params):
    """KV heads, columns of the MLP, rows of the vocabulary over `model`; the rest over `data`."""
    mesh = make_mesh(4, model_devices=2)
    layers = shard_params(params, param_sharding(mesh))["layers"]
    assert layers["qkv"].addressable_shards[0].data.shape == (2, 1, 4, 6, 16)
    assert layers["out"].addressable_shards[0].data.shape == (2, 16, 1, 2, 6)
    assert layers["gate"].addressable_shards[0].data.shape == (2, 10, 16)
    assert layers["down"].addressable_shards[0].data.shape == (2, 16, 10)
    assert layers["qkv_bias"].addressable_shards[0].data.shape == (2, 1, 4, 6)
    assert layers["query_norm"].sharding.is_fully_replicated
    placed = shard_params(params, param_sharding(mesh, over_data=True))
    assert placed["embedding"].addressable_shards[0].data.shape == (16, 8)
    total = sum(x.size for x in jax.tree.leaves(placed))
    on_one = sum(x.addressable_shards[0].data.size for x in jax.tree.leaves(placed))
    assert on_one < 0.3 * total


def test_a_file_is_read_into_its_parts(tmp_path):
    net = make_transformer(NET.config._replace(qkv_bias=False))  # so that it is a Qwen3
    params = net.init(jax.random.key(0))
    save_language_model(tmp_path / "m", LanguageModel(net.config, net, params, None))
    mesh = make_mesh(4, model_devices=2)
    place = param_sharding(mesh, over_data=True)
    read = load_language_model(tmp_path / "m", sharding=place).params
    wanted = shard_params(params, place)
    jax.tree.map(np.testing.assert_array_equal, read, wanted)
    assert jax.tree.map(lambda x: x.sharding, read) == jax.tree.map(lambda x: x.sharding, wanted)
    by_mesh = load_language_model(tmp_path / "m", sharding=mesh).params
    assert by_mesh["embedding"].sharding == param_sharding(mesh)("embedding", (32, 16))
