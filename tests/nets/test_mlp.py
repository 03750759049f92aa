"""The modules against matrix products in float64; the first weights against what was asked for."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.nets import mlp
from rljax.nets.pure import pure

ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    # Hendrycks and Gimpel (2016), the approximation by tanh
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


def dense(params, x):
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params["bias"], np.float64)


def head(params, x):
    """The same for a kernel [outputs, features]."""
    return x @ np.asarray(params["kernel"], np.float64).T + np.asarray(params["bias"], np.float64)


def with_biases(params, rng):
    """Biases are 0 at first; the tests of the forward pass want others."""
    return jax.tree.map(lambda p: p + rng.normal(size=p.shape).astype(np.float32), params)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_hidden_layers(activation, key):
    assert set(ACTIVATIONS) == set(mlp.ACTIVATIONS)
    net = pure(lambda rngs: mlp.MLP(3, (5, 4), activation, rngs))
    rng = np.random.default_rng(0)
    params = with_biases(net.init(key), rng)
    x = rng.normal(size=(7, 2, 3))
    act = ACTIVATIONS[activation]
    wanted = act(dense(params["hidden_1"], act(dense(params["hidden_0"], x))))
    np.testing.assert_allclose(net.apply(params, jnp.float32(x)), wanted, rtol=1e-4, atol=1e-5)


def test_no_hidden_layer_is_a_linear_policy(key):
    net = pure(lambda rngs: mlp.CategoricalPolicy(3, 2, (), "tanh", rngs))
    params = with_biases(net.init(key), np.random.default_rng(0))
    x = np.random.default_rng(1).normal(size=(4, 3))
    np.testing.assert_allclose(
        net.apply(params, jnp.float32(x)), head(params["logits"], x), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("features_in", "features_out"), [(6, 4), (4, 6), (5, 5), (3, 1)])
@pytest.mark.parametrize("scale", [1.0, math.sqrt(2.0), 0.01])
def test_orthogonal_kernels(features_in, features_out, scale, key):
    # The shorter side's vectors are orthogonal and of length `scale`: their products are scale² I.
    sizes = {"linear": (features_in, features_out), "head": (features_out, features_in)}
    for name, shape in sizes.items():
        layer = getattr(mlp, name)
        net = pure(
            lambda rngs, layer=layer: layer(
                features_in, features_out, scale=scale, bias=0.5, rngs=rngs
            )
        )
        params = net.init(key)
        kernel = np.asarray(params["kernel"], np.float64)
        assert kernel.shape == shape
        products = kernel.T @ kernel if shape[0] >= shape[1] else kernel @ kernel.T
        np.testing.assert_allclose(
            products, scale**2 * np.eye(min(features_in, features_out)), atol=1e-5 * scale**2
        )
        np.testing.assert_array_equal(params["bias"], np.full(features_out, 0.5, np.float32))


def test_a_head_is_a_matrix_product(key):
    net = pure(lambda rngs: mlp.head(3, 2, scale=1.0, rngs=rngs))
    params = {"kernel": jnp.array([[1.0, 2.0, 3.0], [0.0, -1.0, 5.0]]), "bias": jnp.ones(2)}
    assert jax.tree.structure(params) == jax.tree.structure(net.init(key))
    # 1·1 + 2·1 + 3·2 + 1, -1 + 5·2 + 1 | 1
    x = jnp.array([[[1.0, 1.0, 2.0]], [[0.0, 0.0, 0.0]]])
    np.testing.assert_array_equal(net.apply(params, x), [[[10, 10]], [[1, 1]]])


@pytest.mark.parametrize("shape", [(64, 64), (4, 64), (200, 17)])
def test_orthogonal_to_float_rounding_at_usual_sizes(shape, key):
    kernel = np.asarray(mlp.orthogonal(1.0)(key, shape), np.float64)
    assert kernel.shape == shape
    products = kernel.T @ kernel if shape[0] >= shape[1] else kernel @ kernel.T
    np.testing.assert_allclose(products, np.eye(min(shape)), atol=2e-6)


def test_orthogonal_kernels_prefer_no_direction():
    """Rows uniform on the sphere of three dimensions: mean 0 and E[q qᵀ] = I/3; 4000 kernels.

    The standard errors are √(1/3 / 4000) = 0.009 and at most √(4/45 / 4000) = 0.005.
    """
    keys = jax.random.split(jax.random.key(0), 4000)
    kernels = np.asarray(jax.jit(jax.vmap(lambda key: mlp.orthogonal(1.0)(key, (2, 3))))(keys))
    for row in kernels[:, 0], kernels[:, 1]:
        np.testing.assert_allclose(row.mean(0), np.zeros(3), atol=0.045)
        np.testing.assert_allclose(
            np.einsum("ni,nj->ij", row, row) / 4000, np.eye(3) / 3, atol=0.025
        )


def test_eight_seeds_initialise_side_by_side():
    """All kernels of eight networks in one program: LAPACK's QR, batched, would never end here.

    Each network is the one that its key gives alone, and no two are alike.
    """
    net = pure(lambda rngs: mlp.CategoricalPolicy(4, 2, (64, 64), "tanh", rngs))
    values = pure(lambda rngs: mlp.Value(4, (64, 64), "tanh", rngs))

    def init(key):
        return net.init(key), values.init(key)

    keys = jax.random.split(jax.random.key(0), 8)
    together, alone = jax.jit(jax.vmap(init))(keys), jax.jit(init)
    for i in (0, 7):
        one, same = alone(keys[i]), alone(keys[i])
        jax.tree.map(np.testing.assert_array_equal, one, same)
        jax.tree.map(
            lambda x, y, i=i: np.testing.assert_allclose(x[i], y, atol=2e-6), together, one
        )
    kernels = np.asarray(together[0]["trunk"]["hidden_1"]["kernel"])
    assert len({kernel.tobytes() for kernel in kernels}) == 8


def squared_scale(kernel):
    kernel = np.asarray(kernel, np.float64)
    products = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
    return np.diagonal(products)


def test_scales_of_the_layers(key):
    """√2 for hidden layers, 0.01 for what chooses actions, 1 for values."""
    policy = pure(lambda rngs: mlp.CategoricalPolicy(4, 3, (6,), "tanh", rngs)).init(key)
    np.testing.assert_allclose(squared_scale(policy["trunk"]["hidden_0"]["kernel"]), 2.0, rtol=1e-5)
    np.testing.assert_allclose(squared_scale(policy["logits"]["kernel"]), 1e-4, rtol=1e-4)
    value = pure(lambda rngs: mlp.Value(4, (6,), "tanh", rngs)).init(key)
    np.testing.assert_allclose(squared_scale(value["value"]["kernel"]), 1.0, rtol=1e-5)


def test_first_policy_is_nearly_uniform(key):
    net = pure(lambda rngs: mlp.CategoricalPolicy(4, 3, (16,), "tanh", rngs))
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    probs = np.asarray(jax.nn.softmax(net.apply(net.init(key), jnp.asarray(x))), np.float64)
    # Features of tanh are within ±1 and there are 16, so |logit| <= 0.01·√16 = 0.04.
    np.testing.assert_allclose(probs, 1 / 3, atol=0.02)


def gaussian(log_std, init=-0.5):
    return pure(lambda rngs: mlp.GaussianPolicy(3, 2, (5,), "tanh", log_std, init, rngs))


X = jnp.float32(np.random.default_rng(3).normal(size=(4, 6, 3)))


@pytest.mark.parametrize("log_std", ["parameter", "network"])
def test_gaussian_mean(log_std, key):
    net = gaussian(log_std)
    params = with_biases(net.init(key), np.random.default_rng(0))
    mean, log_stds = net.apply(params, X)
    features = np.tanh(dense(params["trunk"]["hidden_0"], np.asarray(X, np.float64)))
    np.testing.assert_allclose(mean, head(params["mean"], features), rtol=1e-4, atol=1e-5)
    assert log_stds.shape == mean.shape == (4, 6, 2)


def test_log_std_parameter_is_the_same_in_every_state(key):
    net = gaussian("parameter")
    params = net.init(key)
    np.testing.assert_allclose(net.apply(params, X)[1], -0.5, rtol=1e-6)
    params["log_std"] = jnp.array([1.0, -7.0])  # beyond the network's range: it is free
    np.testing.assert_array_equal(
        net.apply(params, X)[1], np.broadcast_to(np.float32([1, -7]), (4, 6, 2))
    )
    # Σ of all outputs: 24 states see each of the two numbers.
    grads = jax.grad(lambda p: net.apply(p, X)[1].sum())(params)
    np.testing.assert_array_equal(grads["log_std"], [24.0, 24.0])
    np.testing.assert_array_equal(grads["trunk"]["hidden_0"]["kernel"], 0.0)


def test_log_std_network_shares_the_layers_of_the_mean(key):
    net = gaussian("network")
    params = net.init(key)
    # In state 0 the features are tanh(0) = 0 and the bias alone is left.
    np.testing.assert_allclose(net.apply(params, jnp.zeros(3))[1], -0.5, rtol=1e-6)
    params = with_biases(params, np.random.default_rng(0))
    features = np.tanh(dense(params["trunk"]["hidden_0"], np.asarray(X, np.float64)))
    wanted = np.clip(head(params["log_std_head"], features), -5.0, 2.0)
    np.testing.assert_allclose(net.apply(params, X)[1], wanted, rtol=1e-4, atol=1e-5)
    grads = jax.grad(lambda p: net.apply(p, X)[1].sum())(params)
    assert np.abs(grads["trunk"]["hidden_0"]["kernel"]).max() > 0.1


def test_log_std_network_is_bounded(key):
    net = gaussian("network")
    params = net.init(key)
    params["log_std_head"]["bias"] = jnp.array([50.0, -50.0])
    np.testing.assert_array_equal(
        net.apply(params, X)[1], np.broadcast_to(np.float32([2, -5]), (4, 6, 2))
    )


def test_value_has_no_last_axis(key):
    net = pure(lambda rngs: mlp.Value(3, (5,), "tanh", rngs))
    params = with_biases(net.init(key), np.random.default_rng(0))
    features = np.tanh(dense(params["trunk"]["hidden_0"], np.asarray(X, np.float64)))
    wanted = head(params["value"], features)[..., 0]
    np.testing.assert_allclose(net.apply(params, X), wanted, rtol=1e-4, atol=1e-5)


def test_tables_look_up_rows(key):
    table, values = pure(lambda _: mlp.Table(3, 2)), pure(lambda _: mlp.ValueTable(3))
    np.testing.assert_array_equal(table.init(key)["rows"], np.zeros((3, 2)))
    np.testing.assert_array_equal(values.init(key)["values"], np.zeros(3))
    states = np.array([[2, 0], [1, 2]])
    one_hot = jnp.eye(3)[states]
    rows = np.float32([[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(table.apply({"rows": rows}, one_hot), rows[states])
    np.testing.assert_array_equal(values.apply({"values": rows[:, 0]}, one_hot), rows[states, 0])
