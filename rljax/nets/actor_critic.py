"""Policy and value networks for an environment, chosen by its spec and `config.net`."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx

from rljax.nets import mlp
from rljax.nets.pure import pure
from rljax.ops.distributions import CATEGORICAL, GAUSSIAN
from rljax.types import Array, Discrete, Distribution, EnvSpec, Net

NETS = ("mlp", "tabular")
LOG_STDS = ("parameter", "network")


class ActorCritic(NamedTuple):
    policy: Net  # params, observations [..., *O] -> parameters of the distribution
    value: Net  # params, observations [..., *O] -> [...]
    distribution: Distribution
    action_size: int  # A: number of discrete actions, or of real ones


def make_actor_critic(config: Any, spec: EnvSpec) -> ActorCritic:
    """Builds the two networks; they share nothing, so each can be fitted without moving the other.

    Args:
      config: `config.net` with `name` ("mlp" or "tabular"), `hidden_sizes`, `activation`, `log_std`
        ("parameter" or "network") and `log_std_init`.
      spec: the environment's; discrete actions get a categorical policy, real ones a diagonal
        Gaussian.

    Returns:
      Two `Net`s and the family of distributions that the policy's output belongs to.

    Raises:
      ValueError: for a name that is not allowed, or a table for observations that are not one-hot
        rows.
    """
    check_choice("config.net.name", config.name, NETS)
    check_choice("config.net.activation", config.activation, tuple(mlp.ACTIVATIONS))
    check_choice("config.net.log_std", config.log_std, LOG_STDS)
    features = math.prod(spec.observation_shape)
    actions = spec.action_space

    if config.name == "tabular":
        if not isinstance(actions, Discrete) or len(spec.observation_shape) != 1:
            raise ValueError(
                f"config.net.name 'tabular' needs discrete actions and one-hot observations: "
                f"{spec.name} has {actions} and observations {spec.observation_shape}"
            )
        policy = pure(lambda rngs: mlp.Table(features, actions.num_actions))
        value = pure(lambda rngs: mlp.ValueTable(features))
        return ActorCritic(policy, value, CATEGORICAL, actions.num_actions)

    hidden_sizes = check_sizes(config.hidden_sizes)

    def make_policy(rngs: nnx.Rngs) -> nnx.Module:
        if isinstance(actions, Discrete):
            return mlp.CategoricalPolicy(
                features, actions.num_actions, hidden_sizes, config.activation, rngs
            )
        return mlp.GaussianPolicy(
            features,
            len(actions.low),
            hidden_sizes,
            config.activation,
            config.log_std,
            config.log_std_init,
            rngs,
        )

    def make_value(rngs: nnx.Rngs) -> nnx.Module:
        return mlp.Value(features, hidden_sizes, config.activation, rngs)

    return ActorCritic(
        flat_observations(pure(make_policy), spec),
        flat_observations(pure(make_value), spec),
        CATEGORICAL if isinstance(actions, Discrete) else GAUSSIAN,
        actions.num_actions if isinstance(actions, Discrete) else len(actions.low),
    )


def flat_observations(net: Net, spec: EnvSpec) -> Net:
    """The same net on observations of any shape: their axes are flattened into one."""
    num_axes = len(spec.observation_shape)

    def apply(params: Any, observations: Array) -> Any:
        batch = observations.shape[: observations.ndim - num_axes]
        return net.apply(params, jnp.reshape(observations, (*batch, -1)).astype(jnp.float32))

    return Net(net.init, apply)


def check_sizes(hidden_sizes: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(hidden_sizes)
    if not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(
            f"config.net.hidden_sizes is {sizes}: each size must be an integer, at least 1"
        )
    return sizes


def check_choice(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{field} is {value!r}: allowed are {', '.join(allowed)}")
