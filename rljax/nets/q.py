"""Q-networks and deterministic or squashed actors, chosen by the environment's spec."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rljax.nets import mlp
from rljax.nets.actor_critic import check_choice, check_sizes, flat_observations
from rljax.nets.pure import pure
from rljax.types import Array, Box, Discrete, EnvSpec, Key, Net, Params


class QTable(nnx.Module):
    """K numbers for each of A actions, [..., A, K]; dueling: a common row plus what each adds."""

    def __init__(
        self,
        features: int,
        num_actions: int,
        size: int,
        hidden_sizes: Sequence[int],
        activation: str,
        dueling: bool,
        rngs: nnx.Rngs,
    ):
        width = [features, *hidden_sizes][-1]
        self.shape = (num_actions, size)
        self.dueling = dueling
        self.trunk = mlp.MLP(features, hidden_sizes, activation, rngs)
        self.actions = mlp.head(width, num_actions * size, scale=1.0, rngs=rngs)
        if dueling:
            self.common = mlp.head(width, size, scale=1.0, rngs=rngs)

    def __call__(self, observations: Array) -> Array:
        features = self.trunk(observations)
        table = self.actions(features)
        table = table.reshape(*table.shape[:-1], *self.shape)
        if self.dueling:
            table -= jnp.mean(table, axis=-2, keepdims=True)
            table += self.common(features)[..., None, :]
        return table


def make_q_net(config: Any, spec: EnvSpec, *, size: int = 1, dueling: bool = False) -> Net:
    """A net from observations to `size` numbers for each discrete action, [..., A, size].

    Dueling as in Wang et al. (2016), "Dueling Network Architectures for Deep Reinforcement
    Learning", equation 9.

    Raises:
      ValueError: if the actions are real or a setting of `config.net` is not allowed.
    """
    actions = spec.action_space
    if not isinstance(actions, Discrete):
        raise ValueError(f"{spec.name} has real actions: config.algo.name needs discrete ones")
    features, hidden_sizes, activation = layers(config, spec)
    net = pure(
        lambda rngs: QTable(
            features, actions.num_actions, size, hidden_sizes, activation, dueling, rngs
        )
    )
    return flat_observations(net, spec)


def make_critic(config: Any, spec: EnvSpec) -> Net:
    """`apply(params, observations, actions)`: Q(s, a) [...], which sees actions as in [-1, 1].

    Raises:
      ValueError: if the actions are discrete or without bounds, or a setting is not allowed.
    """
    low, high = action_bounds(spec)
    features, hidden_sizes, activation = layers(config, spec)
    net = pure(lambda rngs: mlp.Value(features + len(low), hidden_sizes, activation, rngs))

    def apply(params: Params, observations: Array, actions: Array) -> Array:
        batch = actions.shape[:-1]
        middle, half_width = (
            jnp.broadcast_to(x, actions.shape) for x in ((high + low) / 2, (high - low) / 2)
        )
        unit = (actions - middle) / half_width
        rows = jnp.reshape(observations, (*batch, features)).astype(jnp.float32)
        return net.apply(params, jnp.concatenate([rows, unit], axis=-1))

    return Net(net.init, apply)


def twin(net: Net) -> Net:
    """Two copies that start apart: `apply` gives both outputs."""

    def init(key: Key) -> Params:
        keys = jax.random.split(key)
        return {"q1": net.init(keys[0]), "q2": net.init(keys[1])}

    def apply(params: Params, *inputs: Any) -> tuple[Array, Array]:
        return net.apply(params["q1"], *inputs), net.apply(params["q2"], *inputs)

    return Net(init, apply)


def make_actor(config: Any, spec: EnvSpec, *, stochastic: bool) -> Net:
    """Observations to what tanh squashes into the box: u [..., A], or mean and log_std of u.

    Raises:
      ValueError: if the actions are discrete or without bounds, or a setting is not allowed.
    """
    low, _ = action_bounds(spec)
    features, hidden_sizes, activation = layers(config, spec)
    if stochastic:
        make = partial(mlp.GaussianPolicy, log_std="network", log_std_init=config.log_std_init)
    else:
        make = mlp.CategoricalPolicy  # a trunk and one row of numbers
    net = pure(
        lambda rngs: make(
            features, len(low), hidden_sizes=hidden_sizes, activation=activation, rngs=rngs
        )
    )
    return flat_observations(net, spec)


def action_bounds(spec: EnvSpec) -> tuple[np.ndarray, np.ndarray]:
    """The ends [A] of the box of actions.

    Raises:
      ValueError: if the actions are discrete, or an end is infinite.
    """
    actions = spec.action_space
    if not isinstance(actions, Box):
        raise ValueError(
            f"{spec.name} has {actions.num_actions} discrete actions: config.algo.name needs real "
            "ones (ddpg, td3, sac); for discrete ones there are dqn, c51, sac"
        )
    if not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
        raise ValueError(
            f"{spec.name} has actions between {actions.low.tolist()} and {actions.high.tolist()}: "
            "both ends must be finite"
        )
    return actions.low, actions.high


def layers(config: Any, spec: EnvSpec) -> tuple[int, tuple[int, ...], str]:
    """Size of a flat observation, hidden sizes and activation, checked."""
    check_choice("config.net.name", config.name, ("mlp",))
    check_choice("config.net.activation", config.activation, tuple(mlp.ACTIVATIONS))
    return math.prod(spec.observation_shape), check_sizes(config.hidden_sizes), config.activation
