"""`pure`: an NNX module as two functions over nested dicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rljax.nets.pure import pure


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(3, 4, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)


class Nested(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.block = Block(rngs)
        self.scale = nnx.Param(jnp.array(3.0))

    def __call__(self, x, y):
        return self.scale[...] * (self.block(x) + y)


@pytest.fixture(scope="module")
def net():
    return pure(Nested)


@pytest.fixture(scope="module")
def params(net):
    return net.init(jax.random.key(1))


def test_params_are_nested_dicts_with_string_keys(params):
    def check(tree):
        assert type(tree) is dict
        for name, child in tree.items():
            assert type(name) is str
            if not isinstance(child, jax.Array):
                check(child)

    check(params)
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes == {"block": {"linear": {"kernel": (3, 4), "bias": (4,)}}, "scale": ()}


def test_apply_is_the_module(net, params):
    module = Nested(nnx.Rngs(params=jax.random.key(1)))
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 4))
    np.testing.assert_array_equal(net.apply(params, x, y), module(x, y))
    # 3 (x W + 1), the bias is 0
    wanted = 3 * (np.asarray(x, np.float64) @ np.asarray(params["block"]["linear"]["kernel"]) + 1)
    np.testing.assert_allclose(net.apply(params, x, y), wanted, rtol=1e-5)


def test_apply_reads_the_params_it_is_given(net, params):
    x, y = jnp.ones((2, 3)), jnp.ones((2, 4))
    doubled = {**params, "scale": 2 * params["scale"]}
    np.testing.assert_allclose(net.apply(doubled, x, y), 2 * net.apply(params, x, y), rtol=1e-6)
    assert float(params["scale"]) == 3.0


def test_init_differs_by_key_alone(net, params):
    same, other = net.init(jax.random.key(1)), net.init(jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, same, params)
    assert (other["block"]["linear"]["kernel"] != params["block"]["linear"]["kernel"]).all()


def test_under_jit_grad_and_vmap(net, params):
    x, y = jnp.ones((2, 3)), jnp.ones((2, 4))
    np.testing.assert_allclose(jax.jit(net.apply)(params, x, y), net.apply(params, x, y), rtol=1e-6)
    # d/dscale of the sum is sum(output) / scale
    grad = jax.grad(lambda p: net.apply(p, x, y).sum())(params)
    np.testing.assert_allclose(grad["scale"], net.apply(params, x, y).sum() / 3.0, rtol=1e-6)

    # S runs side by side: params with a leading axis
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    outputs = jax.vmap(net.apply, (0, None, None))(stacked, x, y)
    wanted = [net.apply(jax.tree.map(lambda p, k=k: k * p, params), x, y) for k in (1, 2)]
    np.testing.assert_allclose(outputs, wanted, rtol=1e-6)
