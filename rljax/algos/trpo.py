"""Trust region policy optimisation: the largest natural-gradient step that the KL allows.

Schulman et al. (2015), "Trust Region Policy Optimization", equation 14 and appendix C. Departures:
GAE advantages instead of Q-values by Monte Carlo, and a damped Fisher matrix.
"""

from typing import Any

import optax

from rljax.algos.actor_critic import (
    ActorCriticState,
    annealed,
    fit_value,
    init_state,
    make_act,
    make_act_greedy,
    make_batch,
    make_draw,
    make_optimizer,
    observe,
    value_metrics,
)
from rljax.losses.trpo import surrogate_loss, trpo_step
from rljax.nets.actor_critic import make_actor_critic
from rljax.ops.masked import masked_mean, masked_whiten
from rljax.types import Algo, Array, EnvSpec, Key, Params, Rollout


def make(config: Any, spec: EnvSpec, *, num_updates: int) -> Algo:
    """TRPO for one environment.

    Metrics: those of `trpo_step`, and
      loss/value: of `value_loss` before its steps. policy/entropy: mean entropy before the update,
      nats. value/explained_variance: of the value targets, by the values before the update.
      optimizer/learning_rate: of the value network.

    Args:
      config: the run's; reads `algo`, `net`, `optimizer`, `normalize_observations`.
      spec: the environment's.
      num_updates: length of the run, for annealing.

    Raises:
      ValueError: for a setting that is not allowed.
    """
    algo = config.algo
    nets = make_actor_critic(config.net, spec)
    value_optimizer = make_optimizer(config.optimizer)
    optimizer = {"policy": optax.identity(), "value": value_optimizer}

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
        behaviour = nets.policy.apply(state.params["policy"], batch.observations)
        behaviour_log_probs = nets.distribution.log_prob(behaviour, batch.actions)

        def objective_fn(params: Params) -> Array:
            policy = nets.policy.apply(params, batch.observations)
            log_probs = nets.distribution.log_prob(policy, batch.actions)
            return -surrogate_loss(log_probs, behaviour_log_probs, advantages, mask=batch.mask)[0]

        def kl_fn(params: Params) -> Array:
            policy = nets.policy.apply(params, batch.observations)
            return masked_mean(nets.distribution.kl(behaviour, policy), batch.mask)

        policy_params, policy_metrics = trpo_step(
            objective_fn,
            kl_fn,
            state.params["policy"],
            max_kl=algo.max_kl,
            damping=algo.damping,
            cg_iterations=algo.cg_iterations,
            backtrack_ratio=algo.backtrack_ratio,
            max_backtracks=algo.max_backtracks,
        )
        rate = annealed(
            config.optimizer.learning_rate,
            state.step,
            anneal=config.optimizer.anneal,
            num_updates=num_updates,
        )
        value_params, value_opt_state, fit_metrics = fit_value(
            nets,
            value_optimizer,
            state.params["value"],
            state.opt_state["value"],
            batch,
            rate=rate,
            iterations=algo.value_iterations,
        )
        state = state._replace(
            params={"policy": policy_params, "value": value_params},
            opt_state={**state.opt_state, "value": value_opt_state},
            moments=observe(state.moments, rollout),
            step=state.step + 1,
        )
        return state, {
            **policy_metrics,
            **fit_metrics,
            **value_metrics(batch),
            "policy/entropy": masked_mean(nets.distribution.entropy(behaviour), batch.mask),
            "optimizer/learning_rate": rate,
        }

    return Algo(init, make_draw(nets), make_act(nets), make_act_greedy(nets), update)
