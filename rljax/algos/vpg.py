"""Vanilla policy gradient: one step along log π(a|s) times a weight, then fit the values.

Williams (1992) and Sutton et al. (2000); the four weights are those of the course notes
(`vpg_weights`), from the return of the whole trajectory to GAE. All of them bootstrap with the
value function where an episode is cut or the rollout ends.
"""

from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rljax.algos.actor_critic import (
    ActorCriticState,
    Batch,
    annealed,
    apply_gradients,
    fit_value,
    flatten,
    init_state,
    make_act,
    make_act_greedy,
    make_draw,
    make_optimizer,
    observe,
    steps_taken,
    value_metrics,
    values_of,
)
from rljax.losses.vpg import WeightKind, vpg_loss, vpg_weights
from rljax.nets.actor_critic import check_choice, make_actor_critic
from rljax.ops.masked import masked_mean, masked_whiten
from rljax.types import Algo, Array, EnvSpec, Key, Metrics, Rollout


def make(config: Any, spec: EnvSpec, *, num_updates: int) -> Algo:
    """VPG for one environment.

    Metrics:
      loss/policy: of `vpg_loss`. loss/value: of `value_loss`, before its steps.
      policy/entropy: mean entropy before the update, nats.
      value/explained_variance: of the value targets, by the values before the update.
      grad/norm: global norm of the policy's gradient before clipping. optimizer/learning_rate: of
      the policy.

    Args:
      config: the run's; reads `algo`, `net`, `optimizer`, `normalize_observations`.
      spec: the environment's.
      num_updates: length of the run, for annealing.

    Raises:
      ValueError: for a setting that is not allowed.
    """
    algo = config.algo
    check_choice("config.algo.weights", algo.weights, get_args(WeightKind))
    nets = make_actor_critic(config.net, spec)
    optimizer = {name: make_optimizer(config.optimizer) for name in ("policy", "value")}

    def init(key: Key) -> ActorCriticState:
        return init_state(
            key, nets, optimizer, spec, normalize_observations=config.normalize_observations
        )

    def make_weighted_batch(state: ActorCriticState, rollout: Rollout) -> Batch:
        rollout = steps_taken(rollout)
        observations, values, next_values = values_of(nets, state, rollout)
        use = dict(discount=algo.discount, lambda_=algo.lambda_, mask=rollout.mask)
        steps = (rollout.rewards, rollout.terminated, rollout.truncated, values, next_values)
        return flatten(
            Batch(
                observations=observations,
                actions=rollout.actions,
                behaviour_log_probs=rollout.behaviour_log_probs,
                behaviour_values=values,
                advantages=vpg_weights(*steps, kind=algo.weights, **use),
                targets=vpg_weights(*steps, kind="advantage", **use) + values,
                mask=rollout.mask,
            )
        )

    def update(key: Key, state: ActorCriticState, rollout: Rollout):
        del key  # nothing is random
        batch = make_weighted_batch(state, rollout)
        weights = batch.advantages
        if algo.normalize_advantages:
            weights = masked_whiten(weights, batch.mask)

        flat, unravel = ravel_pytree(state.params["policy"])

        def loss_fn(flat: Array) -> tuple[Array, Metrics]:
            policy = nets.policy.apply(unravel(flat), batch.observations)
            log_probs = nets.distribution.log_prob(policy, batch.actions)
            policy_loss, metrics = vpg_loss(log_probs, weights, mask=batch.mask)
            entropy = masked_mean(nets.distribution.entropy(policy), batch.mask)
            loss = policy_loss - algo.entropy_coef * entropy
            return loss, {**metrics, "policy/entropy": entropy}

        grads, metrics = jax.grad(loss_fn, has_aux=True)(flat)
        scale = annealed(1.0, state.step, anneal=config.optimizer.anneal, num_updates=num_updates)
        rate = scale * config.optimizer.learning_rate
        flat, policy_opt_state = apply_gradients(
            optimizer["policy"], grads, state.opt_state["policy"], flat, rate
        )
        value_params, value_opt_state, fit_metrics = fit_value(
            nets,
            optimizer["value"],
            state.params["value"],
            state.opt_state["value"],
            batch,
            rate=scale * algo.value_learning_rate,
            iterations=algo.value_iterations,
        )
        state = state._replace(
            params={"policy": unravel(flat), "value": value_params},
            opt_state={"policy": policy_opt_state, "value": value_opt_state},
            moments=observe(state.moments, rollout),
            step=state.step + 1,
        )
        return state, {
            **metrics,
            **fit_metrics,
            **value_metrics(batch),
            "grad/norm": jnp.linalg.norm(grads),
            "optimizer/learning_rate": rate,
        }

    return Algo(init, make_draw(nets), make_act(nets), make_act_greedy(nets), update)
