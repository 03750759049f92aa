"""The language model's forward: what sees what, positions, dtypes, adapters and heads."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.nets.heads import make_scalar_head
from rljax.nets.lora import init_lora, merge
from rljax.nets.rotary import RopeScaling, frequencies, rotate, rotation
from rljax.nets.transformer import (
    TransformerConfig,
    make_transformer,
    positions_of,
    product,
    rms_norm,
    unstack,
)

CONFIG = TransformerConfig(
    vocab_size=23,
    num_layers=2,
    model_size=16,
    num_heads=4,
    num_kv_heads=2,
    head_size=6,
    mlp_size=20,
    tie_embeddings=False,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    qk_norm=True,
)
NET = make_transformer(CONFIG)
TOKENS = np.random.default_rng(0).integers(0, 23, (3, 7))
apply = jax.jit(NET.apply)


@pytest.fixture(scope="module")
def params():
    """Biases and norms are random too: zeros and ones would hide them."""
    params = NET.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    leaves = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys)]
    return jax.tree.unflatten(tree, leaves)


def test_a_token_changes_nothing_before_it(params):
    changed = TOKENS.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 23
    before, after = apply(params, TOKENS), apply(params, changed)
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.abs(before[:, 4:] - after[:, 4:]).max(axis=(0, 2)).min() > 1e-3


def test_padding_on_the_left_changes_nothing_whatever_it_holds(params):
    """Each row as if it were alone, at positions of its own."""
    lengths = [7, 4, 1]
    mask = np.arange(7) >= 7 - np.array(lengths)[:, None]
    logits = apply(params, TOKENS, mask=mask)
    poisoned = apply(params, np.where(mask, TOKENS, 22 - TOKENS), mask=mask)
    np.testing.assert_array_equal(logits[mask], poisoned[mask])
    for row, length in enumerate(lengths):
        alone = NET.apply(params, TOKENS[row : row + 1, 7 - length :])
        np.testing.assert_allclose(logits[row, 7 - length :], alone[0], atol=2e-6)


def test_padding_on_the_right_changes_nothing(params):
    mask = np.arange(7)[None] < np.array([7, 4, 1])[:, None]
    logits, whole = apply(params, TOKENS, mask=mask), apply(params, TOKENS)
    np.testing.assert_allclose(logits[mask], whole[mask], atol=2e-6)
    assert np.isfinite(logits).all()


def test_positions_count_real_tokens():
    """sample-05: max(cumsum(mask) - 1, 0), row by row."""
    mask = jnp.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]], bool)
    expected = [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0]]
    assert positions_of(mask).tolist() == expected


def test_positions_may_be_given_and_only_differences_count(params):
    default = apply(params, TOKENS)
    shifted = NET.apply(params, TOKENS, positions=np.tile(np.arange(7) + 1000, (3, 1)))
    np.testing.assert_allclose(shifted, default, atol=2e-4)
    apart = NET.apply(params, TOKENS, positions=np.tile(3 * np.arange(7), (3, 1)))
    assert np.abs(apart - default).max() > 1e-2


def test_logits_are_those_of_the_hidden_states(params):
    hidden = NET.hidden(params, TOKENS)
    assert hidden.shape == (3, 7, 16)
    np.testing.assert_allclose(NET.unembed(params, hidden), apply(params, TOKENS), atol=2e-6)
    expected = np.asarray(hidden) @ np.asarray(params["unembedding"]).T
    np.testing.assert_allclose(apply(params, TOKENS), expected, atol=1e-5)


def test_tied_embeddings_are_one_parameter():
    net = make_transformer(CONFIG._replace(tie_embeddings=True))
    params = net.init(jax.random.key(0))
    assert "unembedding" not in params
    grads = jax.grad(lambda p: jnp.sum(net.apply(p, TOKENS[:1, :2])[..., 5]))(params)
    assert np.abs(grads["embedding"][5]).max() > 0.1  # never an input, yet it has a gradient


def test_unrolled_layers_and_remat_compute_the_same(params):
    expected = apply(params, TOKENS)
    np.testing.assert_allclose(NET.apply(unstack(params), TOKENS), expected, atol=2e-6)

    def grads(net):
        return jax.jit(jax.grad(lambda p: jnp.mean(net.apply(p, TOKENS) ** 2)))(params)

    plain, again = grads(NET), grads(make_transformer(CONFIG._replace(remat=True)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), plain, again)
    assert all(np.abs(x).max() > 1e-6 for x in jax.tree.leaves(plain))  # each parameter counts


@pytest.mark.parametrize("param_dtype", ["float32", "bfloat16"])
def test_bfloat16(param_dtype, params):
    """Inputs of products are rounded to 8 bits, sums are not: errors stay near 1 in 100."""
    net = make_transformer(CONFIG._replace(compute_dtype="bfloat16", param_dtype=param_dtype))
    rounded = jax.tree.map(lambda x: x.astype(param_dtype), params)
    logits = jax.jit(net.apply)(rounded, TOKENS)
    exact = apply(params, TOKENS)
    assert logits.dtype == jnp.float32
    assert net.init(jax.random.key(0))["embedding"].dtype == param_dtype
    error = np.abs(logits - exact)
    assert np.sqrt((error**2).mean()) < 0.05 * np.asarray(exact).std()


def test_sums_are_float32():
    """4096 ones and a small number: a bfloat16 sum would stop growing at 256."""
    x = jnp.ones((1, 4096), jnp.bfloat16)
    weights = jnp.ones((2, 4096), jnp.bfloat16)
    assert product(x, weights).tolist() == [[4096.0, 4096.0]]


def test_products_over_several_axes():
    x, weights = jnp.arange(12.0).reshape(2, 2, 3), jnp.arange(24.0).reshape(4, 2, 3)
    np.testing.assert_allclose(product(x, weights, 2), np.einsum("bij,oij->bo", x, weights))


def test_rms_norm_by_hand():
    """x = (3, 4): mean square 12.5, so 3 / 3.5355 = 0.8485 and 4 / 3.5355 = 1.1314."""
    normed = rms_norm(jnp.array([3.0, 4.0]), jnp.array([1.0, 2.0]), 0.0)
    np.testing.assert_allclose(normed, [0.848528, 2.262742], atol=1e-6)


def test_rotation_by_hand():
    """K = 4, θ = 100: a quarter turn of pair (x0, x2); pair (x1, x3) turns a tenth as far."""
    turns, factor = frequencies(4, 100.0, None)
    cosines, sines = rotation(jnp.array([[np.pi / 2]]), turns, factor)
    x = jnp.array([1.0, 1.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
    small = np.pi / 20
    expected = [0.0, np.cos(small), 1.0, np.sin(small)]
    np.testing.assert_allclose(rotate(x, cosines, sines).ravel(), expected, atol=1e-6)


def test_scaled_frequencies():
    """The ends of each kind: fast turns stay, slow ones are divided by the factor."""
    plain, _ = frequencies(64, 10_000.0, None)
    linear, _ = frequencies(64, 10_000.0, RopeScaling("linear", 4.0))
    np.testing.assert_allclose(linear, plain / 4, rtol=1e-6)
    for kind in ("llama3", "yarn"):
        scaled, factor = frequencies(64, 10_000.0, RopeScaling(kind, 4.0, 512))
        np.testing.assert_allclose(scaled[0], plain[0], rtol=1e-6)
        np.testing.assert_allclose(scaled[-1], plain[-1] / 4, rtol=1e-6)
        ratio = np.asarray(scaled / plain)
        assert (np.diff(ratio) <= 1e-6).all()
        assert ((ratio > 0.26) & (ratio < 0.99)).any()  # there is a ramp
        np.testing.assert_allclose(factor, 1.0 if kind == "llama3" else 0.1 * np.log(4) + 1)


def test_adapters_start_as_nothing_and_learn_alone(params):
    adapters = init_lora(jax.random.key(2), params, rank=2)
    merged = merge(params, adapters, scale=2.0)
    jax.tree.map(np.testing.assert_array_equal, merged, params)

    def loss(adapters):
        return jnp.mean(NET.apply(merge(params, adapters, scale=2.0), TOKENS) ** 2)

    grads = jax.jit(jax.grad(loss))(adapters)
    assert set(grads) == {"qkv", "out", "gate", "up", "down"}
    for grad in grads.values():
        assert np.abs(grad["b"]).max() > 1e-6
        np.testing.assert_array_equal(grad["a"], 0)  # b is still zero


def test_adapters_by_hand_and_taken_out_again(params):
    adapters = init_lora(jax.random.key(2), params, rank=3, targets=["out", "qkv"])
    adapters = jax.tree.map(lambda x: x + 0.1, adapters)
    merged = merge(params, adapters, scale=0.5)
    a, b = (np.asarray(adapters["out"][name][1]) for name in ("a", "b"))  # of layer 1
    change = 0.5 * (b @ a).reshape(params["layers"]["out"].shape[1:])
    np.testing.assert_allclose(
        merged["layers"]["out"][1] - params["layers"]["out"][1], change, atol=1e-6
    )
    back = merge(merged, adapters, scale=-0.5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), back, params)


def test_a_head_is_linear(key):
    head = make_scalar_head(3)
    params = head.init(key)
    np.testing.assert_array_equal(head.apply(params, jnp.ones((2, 5, 3))), np.zeros((2, 5)))
    params = {"weights": jnp.array([1.0, 2.0, 3.0]), "bias": jnp.float32(0.5)}
    values = head.apply(params, jnp.array([[1.0, 0.0, -1.0]], jnp.bfloat16))
    assert values.tolist() == [-1.5]
    assert values.dtype == jnp.float32
    assert np.asarray(make_scalar_head(64, scale=1.0).init(key)["weights"]).std() > 0.05


@pytest.mark.errors
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_heads": 3}, ["num_heads is 3", "num_kv_heads, 2"]),
        ({"head_size": 5}, ["head_size is 5", "even"]),
        ({"num_layers": 0}, ["num_layers is 0"]),
        ({"compute_dtype": "int8"}, ["'int8'", "float32, bfloat16"]),
        ({"rope_scaling": RopeScaling("dynamic", 2.0)}, ["'dynamic'", "linear, llama3, yarn"]),
        ({"rope_scaling": RopeScaling("yarn", 2.0)}, ["original_max_positions is 0"]),
        ({"rope_scaling": RopeScaling("linear", 0.5)}, ["factor is 0.5"]),
    ],
)
def test_sizes_that_do_not_fit(changes, words):
    with pytest.raises(ValueError, match=".*".join(re.escape(word) for word in words)):
        make_transformer(CONFIG._replace(**changes))


@pytest.mark.errors
def test_arrays_that_do_not_fit(params):
    with pytest.raises(ValueError, match=r"\(3, 7\) and mask \(3, 6\)"):
        NET.apply(params, TOKENS, mask=np.ones((3, 6)))
    with pytest.raises(ValueError, match=r"positions are \(7,\)"):
        NET.apply(params, TOKENS, positions=np.arange(7))
    with pytest.raises(ValueError, match="rank is 0"):
        init_lora(jax.random.key(0), params, rank=0)
    with pytest.raises(ValueError, match="'norm' cannot have adapters"):
        init_lora(jax.random.key(0), params, rank=1, targets=["norm"])
    with pytest.raises(ValueError, match="model_size is 0"):
        make_scalar_head(0)
