"""Advantage actor-critic: one gradient step of policy and value together on each rollout.

Mnih et al. (2016), "Asynchronous Methods for Deep Reinforcement Learning", section 4 and algorithm
S3, with the actors stepped together instead of asynchronously and GAE in place of n-step returns
(λ = 1 gives those). With `config.net.name = "tabular"` and plain SGD this is the notes' tabular
actor-critic, with the true gradient of log-softmax.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rljax.algos.actor_critic import (
    ActorCriticState,
    annealed,
    apply_gradients,
    init_state,
    make_act,
    make_act_greedy,
    make_batch,
    make_draw,
    make_optimizer,
    observe,
    value_metrics,
)
from rljax.losses.value import value_loss
from rljax.losses.vpg import vpg_loss
from rljax.nets.actor_critic import make_actor_critic
from rljax.ops.masked import masked_mean, masked_whiten
from rljax.types import Algo, Array, EnvSpec, Key, Metrics, Rollout


def make(config: Any, spec: EnvSpec, *, num_updates: int) -> Algo:
    """A2C for one environment.

    Metrics:
      loss/policy, loss/value: of `vpg_loss` and `value_loss`. policy/entropy: mean entropy, nats.
      value/explained_variance: of the value targets, by the values before the update.
      grad/norm: global norm before clipping. optimizer/learning_rate.

    Args:
      config: the run's; reads `algo`, `net`, `optimizer`, `normalize_observations`.
      spec: the environment's.
      num_updates: length of the run, for annealing.

    Raises:
      ValueError: for a setting that is not allowed.
    """
    algo = config.algo
    nets = make_actor_critic(config.net, spec)
    optimizer = make_optimizer(config.optimizer)

    def init(key: Key) -> ActorCriticState:
        return init_state(
            key, nets, optimizer, spec, normalize_observations=config.normalize_observations
        )

    def update(key: Key, state: ActorCriticState, rollout: Rollout):
        del key  # nothing is random
        batch = make_batch(nets, state, rollout, discount=algo.discount, lambda_=algo.lambda_)
        advantages = batch.advantages
        if algo.normalize_advantages:
            advantages = masked_whiten(advantages, batch.mask)

        flat, unravel = ravel_pytree(state.params)

        def loss_fn(flat: Array) -> tuple[Array, Metrics]:
            params = unravel(flat)
            policy = nets.policy.apply(params["policy"], batch.observations)
            log_probs = nets.distribution.log_prob(policy, batch.actions)
            policy_loss, metrics = vpg_loss(log_probs, advantages, mask=batch.mask)
            values = nets.value.apply(params["value"], batch.observations)
            critic_loss, _ = value_loss(values, batch.targets, mask=batch.mask)
            entropy = masked_mean(nets.distribution.entropy(policy), batch.mask)
            loss = policy_loss + algo.value_coef * critic_loss - algo.entropy_coef * entropy
            return loss, {
                **metrics,
                "loss/policy": policy_loss,
                "loss/value": critic_loss,
                "policy/entropy": entropy,
            }

        grads, metrics = jax.grad(loss_fn, has_aux=True)(flat)
        rate = annealed(
            config.optimizer.learning_rate,
            state.step,
            anneal=config.optimizer.anneal,
            num_updates=num_updates,
        )
        flat, opt_state = apply_gradients(optimizer, grads, state.opt_state, flat, rate)
        state = state._replace(
            params=unravel(flat),
            opt_state=opt_state,
            moments=observe(state.moments, rollout),
            step=state.step + 1,
        )
        return state, {
            **metrics,
            **value_metrics(batch),
            "grad/norm": jnp.linalg.norm(grads),
            "optimizer/learning_rate": rate,
        }

    return Algo(init, make_draw(nets), make_act(nets), make_act_greedy(nets), update)
