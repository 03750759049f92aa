"""Multi-layer perceptrons and the heads that turn their features into a policy or a value."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rljax.types import Array, Key

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "silu": jax.nn.silu, "gelu": jax.nn.gelu}
LOG_STD_RANGE = (-5.0, 2.0)  # of a log_std that a network computes; a free parameter is not bounded


def orthogonal(scale: float) -> Callable[..., Array]:
    """Initialiser of a kernel with orthonormal rows or columns, whichever are fewer, times `scale`.

    Gram-Schmidt, twice for accuracy, instead of LAPACK's QR: on CPU jaxlib's QR of a batch waits
    for threads of the pool that it runs in, and several at once (networks of vmapped seeds) wait
    for each other for ever.
    Saxe et al. (2014), "Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks".
    """

    def init(key: Key, shape: tuple[int, int], dtype: Any = jnp.float32) -> Array:
        noise = jax.random.normal(key, (min(shape), max(shape)))

        def add(i: Array, basis: Array) -> Array:
            vector = noise[i]
            for _ in range(2):
                vector -= (basis @ vector) @ basis
            return basis.at[i].set(vector / jnp.linalg.norm(vector))

        basis = jax.lax.fori_loop(0, len(noise), add, jnp.zeros_like(noise))
        return scale * (basis if shape[0] <= shape[1] else basis.T).astype(dtype)

    return init


def linear(
    features_in: int, features_out: int, *, scale: float, bias: float = 0.0, rngs: nnx.Rngs
) -> nnx.Linear:
    """A layer with an orthogonal kernel times `scale` and a constant bias."""
    return nnx.Linear(
        features_in,
        features_out,
        kernel_init=orthogonal(scale),
        bias_init=nnx.initializers.constant(bias),
        rngs=rngs,
    )


def head(
    features_in: int, features_out: int, *, scale: float, bias: float = 0.0, rngs: nnx.Rngs
) -> nnx.Einsum:
    """The same for a last layer, with its kernel as [outputs, features].

    The gradient of a kernel with few outputs is much faster to compute in this shape.
    """
    return nnx.Einsum(
        "...f,of->...o",
        (features_out, features_in),
        (features_out,),
        kernel_init=orthogonal(scale),
        bias_init=nnx.initializers.constant(bias),
        rngs=rngs,
    )


class MLP(nnx.Module):
    """Hidden layers with their activation, no output layer: [..., D] to features [..., H]."""

    def __init__(self, features: int, hidden_sizes: Sequence[int], activation: str, rngs: nnx.Rngs):
        self.num_layers = len(hidden_sizes)
        self.activation = ACTIVATIONS[activation]
        for i, (size_in, size_out) in enumerate(zip([features, *hidden_sizes], hidden_sizes)):
            setattr(self, f"hidden_{i}", linear(size_in, size_out, scale=math.sqrt(2.0), rngs=rngs))

    def __call__(self, x: Array) -> Array:
        for i in range(self.num_layers):
            x = self.activation(getattr(self, f"hidden_{i}")(x))
        return x


class CategoricalPolicy(nnx.Module):
    """Logits [..., A]. The small last layer makes the first policy almost uniform."""

    def __init__(
        self,
        features: int,
        num_actions: int,
        hidden_sizes: Sequence[int],
        activation: str,
        rngs: nnx.Rngs,
    ):
        self.trunk = MLP(features, hidden_sizes, activation, rngs)
        self.logits = head([features, *hidden_sizes][-1], num_actions, scale=0.01, rngs=rngs)

    def __call__(self, observations: Array) -> Array:
        return self.logits(self.trunk(observations))


class GaussianPolicy(nnx.Module):
    """Mean and log_std, both [..., A], of a diagonal Gaussian.

    `log_std="parameter"`: one free number per action, the same in every state.
    `log_std="network"`: a second head on the layers that the mean uses, bounded to `LOG_STD_RANGE`.
    """

    def __init__(
        self,
        features: int,
        num_actions: int,
        hidden_sizes: Sequence[int],
        activation: str,
        log_std: str,
        log_std_init: float,
        rngs: nnx.Rngs,
    ):
        width = [features, *hidden_sizes][-1]
        self.trunk = MLP(features, hidden_sizes, activation, rngs)
        self.mean = head(width, num_actions, scale=0.01, rngs=rngs)
        self.state_dependent = log_std == "network"
        if self.state_dependent:
            self.log_std_head = head(width, num_actions, scale=0.01, bias=log_std_init, rngs=rngs)
        else:
            self.log_std = nnx.Param(jnp.full(num_actions, log_std_init))

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        features = self.trunk(observations)
        mean = self.mean(features)
        if self.state_dependent:
            return mean, jnp.clip(self.log_std_head(features), *LOG_STD_RANGE)
        return mean, jnp.broadcast_to(self.log_std[...], mean.shape)


class Value(nnx.Module):
    """State values [...]."""

    def __init__(self, features: int, hidden_sizes: Sequence[int], activation: str, rngs: nnx.Rngs):
        self.trunk = MLP(features, hidden_sizes, activation, rngs)
        self.value = head([features, *hidden_sizes][-1], 1, scale=1.0, rngs=rngs)

    def __call__(self, observations: Array) -> Array:
        return self.value(self.trunk(observations))[..., 0]


class Table(nnx.Module):
    """One row of numbers per state, 0 at first: one-hot observations [..., S] to rows [..., K]."""

    def __init__(self, num_states: int, num_columns: int):
        self.rows = nnx.Param(jnp.zeros((num_states, num_columns)))

    def __call__(self, observations: Array) -> Array:
        return observations @ self.rows[...]


class ValueTable(nnx.Module):
    """One value per state: one-hot observations [..., S] to values [...]."""

    def __init__(self, num_states: int):
        self.values = nnx.Param(jnp.zeros(num_states))

    def __call__(self, observations: Array) -> Array:
        return observations @ self.values[...]
