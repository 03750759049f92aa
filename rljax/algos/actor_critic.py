"""What VPG, A2C, TRPO and PPO share: state, acting, the batch to learn from, fitting values."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rljax.losses.value import value_loss
from rljax.nets.actor_critic import ActorCritic
from rljax.ops.masked import explained_variance
from rljax.ops.moments import Moments, init_moments, update_moments, variance
from rljax.ops.returns import gae
from rljax.types import Array, EnvSpec, Key, Metrics, Params, PyTree, Rollout

OPTIMIZERS = ("adam", "rmsprop", "sgd")
OBSERVATION_BOUND = 10.0  # of a normalised observation


class ActorCriticState(NamedTuple):
    params: Params  # {"policy": ..., "value": ...}
    opt_state: PyTree
    moments: Moments | None  # of the observations; None when they are not normalised
    kl_coef: Array  # float32 []: PPO's adaptive penalty; constant elsewhere
    step: Array  # int32 []: updates done


class Batch(NamedTuple):
    """A rollout as a learner sees it: N = T·B rows, observations normalised."""

    observations: Array  # [N, ...]
    actions: Array  # [N] or [N, A]
    behaviour_log_probs: Array  # [N]
    behaviour_values: Array  # [N]
    advantages: Array  # [N]
    targets: Array  # [N], of the value function
    mask: Array | None  # [N]


def init_state(
    key: Key,
    nets: ActorCritic,
    optimizer: PyTree,
    spec: EnvSpec,
    *,
    normalize_observations: bool,
    kl_coef: float = 0.0,
) -> ActorCriticState:
    """First state; `optimizer` is one optax transformation, or a dict with the keys of `params`.

    Optimisers see parameters and gradients as one flat vector: with small networks, a handful of
    operations on many small arrays would cost more than the gradient itself.
    """
    policy_key, value_key = jax.random.split(key)
    params = {"policy": nets.policy.init(policy_key), "value": nets.value.init(value_key)}
    if isinstance(optimizer, dict):
        opt_state = {name: optimizer[name].init(ravel(params[name])) for name in params}
    else:
        opt_state = optimizer.init(ravel(params))
    return ActorCriticState(
        params=params,
        opt_state=opt_state,
        moments=init_moments(spec.observation_shape) if normalize_observations else None,
        kl_coef=jnp.float32(kl_coef),
        step=jnp.int32(0),
    )


def ravel(params: Params) -> Array:
    """All parameters as one vector."""
    return ravel_pytree(params)[0]


def normalize(moments: Moments | None, observations: Array) -> Array:
    """(x - mean) / std, bounded; x itself while nothing is counted, or with `moments=None`."""
    if moments is None:
        return observations
    seen = moments.count > 0
    mean = jnp.where(seen, moments.mean, 0.0)
    scale = jnp.where(seen, jax.lax.rsqrt(variance(moments) + 1e-8), 1.0)
    batch = (1,) * (observations.ndim - mean.ndim)
    mean, scale = mean.reshape(batch + mean.shape), scale.reshape(batch + scale.shape)
    return jnp.clip((observations - mean) * scale, -OBSERVATION_BOUND, OBSERVATION_BOUND)


def make_draw(nets: ActorCritic):
    """`draw(key, shape)`: the noise [*shape, A] that acting in so many rows needs."""

    def draw(key: Key, shape: tuple[int, ...]) -> Array:
        return nets.distribution.noise(key, (*shape, nets.action_size))

    return draw


def make_act(nets: ActorCritic):
    """`act(noise, state, observations)`: sampled actions and their log-probabilities."""

    def act(noise: Array, state: ActorCriticState, observations: Array) -> tuple[Array, Array]:
        policy = nets.policy.apply(state.params["policy"], normalize(state.moments, observations))
        actions = nets.distribution.sample(noise, policy)
        return actions, nets.distribution.log_prob(policy, actions)

    return act


def make_act_greedy(nets: ActorCritic):
    """`act_greedy(state, observations)`: the most likely actions."""

    def act_greedy(state: ActorCriticState, observations: Array) -> Array:
        policy = nets.policy.apply(state.params["policy"], normalize(state.moments, observations))
        return nets.distribution.mode(policy)

    return act_greedy


def steps_taken(rollout: Rollout) -> Rollout:
    """The rollout with zeros where no step was taken (mask 0).

    What stands there may be NaN, and the gradient of a network is NaN wherever its input is, also
    where the loss is masked. Such a row becomes an episode of its own; the step before it is cut.
    """
    if rollout.mask is None:
        return rollout
    taken = rollout.mask

    def select(x: Array) -> Array:
        rows = jnp.expand_dims(taken, tuple(range(taken.ndim, x.ndim)))
        return jnp.where(rows, x, jnp.zeros_like(x))

    rollout = jax.tree.map(select, rollout)
    before_gap = jnp.concatenate([~taken[1:], jnp.zeros_like(taken[:1])])
    return rollout._replace(
        terminated=rollout.terminated | ~taken, truncated=rollout.truncated | before_gap
    )


def values_of(
    nets: ActorCritic, state: ActorCriticState, rollout: Rollout
) -> tuple[Array, Array, Array]:
    """Normalised observations [T, B, ...], and the values [T, B] of them and of what followed.

    Normalised by the moments that acted, so that the ratio starts at 1; the moments take in this
    rollout afterwards (`observe`).
    """
    observations = normalize(state.moments, rollout.observations)
    next_observations = normalize(state.moments, rollout.next_observations)
    values = nets.value.apply(state.params["value"], observations)
    next_values = nets.value.apply(state.params["value"], next_observations)
    return observations, values, next_values


def make_batch(
    nets: ActorCritic, state: ActorCriticState, rollout: Rollout, *, discount: float, lambda_: float
) -> Batch:
    """GAE advantages and their value targets, flattened to N = T·B rows."""
    rollout = steps_taken(rollout)
    observations, values, next_values = values_of(nets, state, rollout)
    advantages = gae(
        rollout.rewards,
        values,
        next_values,
        rollout.terminated,
        rollout.truncated,
        discount=discount,
        lambda_=lambda_,
    )
    return flatten(
        Batch(
            observations=observations,
            actions=rollout.actions,
            behaviour_log_probs=rollout.behaviour_log_probs,
            behaviour_values=values,
            advantages=advantages,
            targets=advantages + values,
            mask=rollout.mask,
        )
    )


def flatten(batch: Batch) -> Batch:
    """[T, B, ...] to [T·B, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def observe(moments: Moments | None, rollout: Rollout) -> Moments | None:
    """Counts the rollout's observations into the moments."""
    if moments is None:
        return None
    return update_moments(moments, rollout.observations, rollout.mask)


def value_metrics(batch: Batch) -> Metrics:
    return {
        "value/explained_variance": explained_variance(
            batch.targets, batch.behaviour_values, batch.mask
        )
    }


def make_optimizer(config: Any) -> optax.GradientTransformation:
    """`config.optimizer` as an optax chain that ends before the learning rate.

    The rate follows the number of updates done, which is part of the run's state, not the
    optimiser's own count: early stopping must not slow the schedule down. `apply_gradients` has it.
    """
    scale_by = {
        "adam": lambda: optax.scale_by_adam(eps=config.eps),
        "rmsprop": lambda: optax.scale_by_rms(decay=0.99, eps=config.eps),
        "sgd": optax.identity,
    }
    if config.name not in scale_by:
        raise ValueError(
            f"config.optimizer.name is {config.name!r}: allowed are {', '.join(OPTIMIZERS)}"
        )
    clip = [] if config.max_grad_norm is None else [optax.clip_by_global_norm(config.max_grad_norm)]
    return optax.chain(*clip, scale_by[config.name]())


def annealed(rate: float, step: Array, *, anneal: bool, num_updates: int) -> Array:
    """`rate`, or with `anneal` rate·(1 - step / num_updates): update u (from 0) uses step = u."""
    fraction = 1.0 - step / num_updates if anneal else jnp.float32(1.0)
    return rate * fraction


def apply_gradients(
    optimizer: optax.GradientTransformation,
    grads: Array,
    opt_state: PyTree,
    params: Array,
    rate: Array,
) -> tuple[Array, PyTree]:
    """params - rate · (what the optimiser makes of the gradients), all as flat vectors."""
    updates: Any  # a vector, as the gradients are
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return params - rate * updates, opt_state


def fit_value(
    nets: ActorCritic,
    optimizer: optax.GradientTransformation,
    params: Params,
    opt_state: PyTree,
    batch: Batch,
    *,
    rate: Array,
    iterations: int,
) -> tuple[Params, PyTree, Metrics]:
    """`iterations` gradient steps of the value net on the whole batch; the first one's metrics."""

    flat, unravel = ravel_pytree(params)

    def loss_fn(flat: Array) -> tuple[Array, Metrics]:
        values = nets.value.apply(unravel(flat), batch.observations)
        return value_loss(values, batch.targets, mask=batch.mask)

    def step(carry, _):
        flat, opt_state = carry
        (loss, _), grads = jax.value_and_grad(loss_fn, has_aux=True)(flat)
        flat, opt_state = apply_gradients(optimizer, grads, opt_state, flat, rate)
        return (flat, opt_state), loss

    (flat, opt_state), losses = jax.lax.scan(step, (flat, opt_state), length=iterations)
    return unravel(flat), opt_state, {"loss/value": losses[0]}
