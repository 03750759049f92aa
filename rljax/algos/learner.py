"""What DQN, C51, DDPG, TD3 and SAC share: parameters with their optimisers and slow targets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rljax.algos.actor_critic import annealed
from rljax.ops.tree import polyak_update
from rljax.types import Array, Key, Metrics, Params, PyTree


class Learner(NamedTuple):
    params: dict[str, Params]  # by the name of the network
    targets: dict[str, Params]  # slow copies of some of them
    opt_state: dict[str, PyTree]


def init_learner(
    key: Key,
    inits: Mapping[str, Callable[[Key], Params]],
    optimizer: optax.GradientTransformation,
    *,
    targets: Sequence[str],
) -> Learner:
    """Fresh parameters by name, each with an optimiser of its own; targets start as copies."""
    keys = jax.random.split(key, len(inits))
    params = {name: init(k) for k, (name, init) in zip(keys, inits.items())}
    return Learner(
        params=params,
        targets={name: jax.tree.map(jnp.copy, params[name]) for name in targets},
        opt_state={name: optimizer.init(value) for name, value in params.items()},
    )


def make_rate(config: Any, num_updates: int) -> Callable[[Array], Array]:
    """`config.optimizer`'s learning rate by the number of gradient steps done."""

    def rate_at(step: Array) -> Array:
        rate = config.learning_rate
        return annealed(rate, step, anneal=config.anneal, num_updates=num_updates)

    return rate_at


def descend(
    learner: Learner,
    name: str,
    loss_fn: Callable[[Params], tuple[Array, Any]],
    optimizer: optax.GradientTransformation,
    rate: Array,
) -> tuple[Learner, Any, Metrics]:
    """One gradient step of the parameters `name`.

    Returns:
      The learner, the second thing that `loss_fn` gives, and the metric `grad/NAME_norm`: the
      global norm of the gradient before clipping.
    """
    params = learner.params[name]
    grads, aux = jax.grad(loss_fn, has_aux=True)(params)
    updates, opt_state = optimizer.update(grads, learner.opt_state[name], params)
    new = jax.tree.map(lambda p, u: p - rate * u, params, updates)
    learner = learner._replace(
        params={**learner.params, name: new},
        opt_state={**learner.opt_state, name: opt_state},
    )
    return learner, aux, {f"grad/{name}_norm": optax.tree.norm(grads)}


def follow(learner: Learner, *, rate: float) -> Learner:
    """Every target moves towards its network by `rate`."""
    params = {name: learner.params[name] for name in learner.targets}
    return learner._replace(targets=polyak_update(params, learner.targets, rate=rate))
