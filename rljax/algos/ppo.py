"""Proximal policy optimisation: epochs of minibatches on one rollout, near the old policy.

Schulman et al. (2017), "Proximal Policy Optimization Algorithms": equation 7 (clip), equation 8
and the rule below it (KL penalty, fixed or adaptive), equation 9 (with value loss and entropy
bonus).
Departures: the KL can also stop the epochs early, the value loss can be clipped, and `terminated`
alone cuts the bootstrap.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rljax.algos.actor_critic import (
    ActorCriticState,
    Batch,
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
from rljax.data.minibatch import shuffled_minibatches
from rljax.losses.ppo import ppo_loss
from rljax.losses.trpo import surrogate_loss
from rljax.losses.value import value_loss
from rljax.nets.actor_critic import check_choice, make_actor_critic
from rljax.ops.masked import masked_mean, masked_whiten
from rljax.types import Algo, Array, EnvSpec, Key, Metrics, Params, PyTree, Rollout


class Learner(NamedTuple):
    params: Array  # as one flat vector
    opt_state: PyTree
    stopped: Array  # bool []: the KL has grown too large, the remaining minibatches are skipped


KL_PENALTIES = ("none", "fixed", "adaptive")
NORMALIZE_ADVANTAGES = ("none", "batch", "minibatch")


def make(config: Any, spec: EnvSpec, *, num_updates: int) -> Algo:
    """PPO for one environment.

    Metrics (means over the minibatches looked at, the one whose KL was too large included):
      loss/policy, loss/value: of `ppo_loss` (or the penalised surrogate) and `value_loss`.
      policy/entropy: mean entropy, nats. policy/clip_fraction: share of ratios outside the band.
      policy/behaviour_kl: estimate of KL(behaviour ‖ policy), nats. policy/kl_coef: weight of the
      KL penalty, if any. policy/epochs: epochs done, below `algo.epochs` if the KL stopped them.
      value/explained_variance: of the value targets, by the values before the update. grad/norm:
      global norm before clipping. optimizer/learning_rate.

    Args:
      config: the run's; reads `algo`, `net`, `optimizer`, `normalize_observations`.
      spec: the environment's.
      num_updates: length of the run, for annealing.

    Raises:
      ValueError: for a setting that is not allowed.
    """
    algo = config.algo
    check_choice("config.algo.kl_penalty", algo.kl_penalty, KL_PENALTIES)
    check_choice(
        "config.algo.normalize_advantages", algo.normalize_advantages, NORMALIZE_ADVANTAGES
    )
    if algo.kl_penalty == "adaptive" and algo.target_kl is None:
        raise ValueError("config.algo.kl_penalty is 'adaptive': it needs config.algo.target_kl")
    penalised = algo.kl_penalty != "none"
    may_stop = algo.target_kl is not None and not penalised

    nets = make_actor_critic(config.net, spec)
    optimizer = make_optimizer(config.optimizer)

    def init(key: Key) -> ActorCriticState:
        return init_state(
            key,
            nets,
            optimizer,
            spec,
            normalize_observations=config.normalize_observations,
            kl_coef=algo.kl_coef if penalised else 0.0,
        )

    def loss_fn(
        params: Params, batch: Batch, behaviour: Any, kl_coef: Array
    ) -> tuple[Array, Metrics]:
        policy = nets.policy.apply(params["policy"], batch.observations)
        values = nets.value.apply(params["value"], batch.observations)
        log_probs = nets.distribution.log_prob(policy, batch.actions)
        advantages = batch.advantages
        if algo.normalize_advantages == "minibatch":
            advantages = masked_whiten(advantages, batch.mask)
        if penalised:
            policy_loss, metrics = surrogate_loss(
                log_probs, batch.behaviour_log_probs, advantages, mask=batch.mask
            )
            kl = masked_mean(nets.distribution.kl(behaviour, policy), batch.mask)
            policy_loss += kl_coef * kl
        else:
            policy_loss, metrics = ppo_loss(
                log_probs,
                batch.behaviour_log_probs,
                advantages,
                clip=algo.clip,
                clip_high=algo.clip_high,
                dual_clip=algo.dual_clip,
                mask=batch.mask,
            )
        critic_loss, _ = value_loss(
            values,
            batch.targets,
            behaviour_values=batch.behaviour_values,
            clip=algo.value_clip,
            mask=batch.mask,
        )
        entropy = masked_mean(nets.distribution.entropy(policy), batch.mask)
        loss = policy_loss + algo.value_coef * critic_loss - algo.entropy_coef * entropy
        return loss, {
            **metrics,
            "loss/policy": policy_loss,
            "loss/value": critic_loss,
            "policy/entropy": entropy,
        }

    def update(key: Key, state: ActorCriticState, rollout: Rollout):
        batch = make_batch(nets, state, rollout, discount=algo.discount, lambda_=algo.lambda_)
        if algo.normalize_advantages == "batch":
            batch = batch._replace(advantages=masked_whiten(batch.advantages, batch.mask))
        behaviour = (
            nets.policy.apply(state.params["policy"], batch.observations) if penalised else ()
        )
        rate = annealed(
            config.optimizer.learning_rate,
            state.step,
            anneal=config.optimizer.anneal,
            num_updates=num_updates,
        )

        params, unravel = ravel_pytree(state.params)

        def learn(learner: Learner, minibatch: tuple) -> tuple[Learner, Metrics]:
            def loss(params: Array) -> tuple[Array, Metrics]:
                batch, behaviour = minibatch
                return loss_fn(unravel(params), batch, behaviour, state.kl_coef)

            grads, metrics = jax.grad(loss, has_aux=True)(learner.params)
            params, opt_state = apply_gradients(
                optimizer, grads, learner.opt_state, learner.params, rate
            )
            new = Learner(params, opt_state, learner.stopped)
            if may_stop:
                stop = metrics["policy/behaviour_kl"] > algo.kl_stop_factor * algo.target_kl
                new = jax.tree.map(lambda n, old: jnp.where(stop, old, n), new, learner)
                new = new._replace(stopped=stop)
            return new, {**metrics, "grad/norm": jnp.linalg.norm(grads)}

        # Beside the metrics: whether the minibatch was looked at, and whether it was learned from.
        def step(learner: Learner, minibatch: tuple) -> tuple[Learner, tuple]:
            seen = ~learner.stopped
            if may_stop:
                _, shapes = jax.eval_shape(learn, learner, minibatch)
                nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
                learner, metrics = jax.lax.cond(
                    seen, learn, lambda learner, _: (learner, nothing), learner, minibatch
                )
            else:
                learner, metrics = learn(learner, minibatch)
            return learner, (metrics, seen, ~learner.stopped)

        def epoch(learner: Learner, key: Key) -> tuple[Learner, tuple]:
            minibatches = shuffled_minibatches(
                key, (batch, behaviour), num_minibatches=algo.minibatches
            )
            return jax.lax.scan(step, learner, minibatches)

        learner = Learner(params, state.opt_state, jnp.bool_(False))
        learner, (metrics, seen, used) = jax.lax.scan(
            epoch, learner, jax.random.split(key, algo.epochs)
        )

        kl_coef = state.kl_coef
        if algo.kl_penalty == "adaptive":
            policy = nets.policy.apply(unravel(learner.params)["policy"], batch.observations)
            kl = masked_mean(nets.distribution.kl(behaviour, policy), batch.mask)
            kl_coef = adapted_kl_coef(kl_coef, kl, algo.target_kl)
        metrics = {
            **{name: masked_mean(value, seen) for name, value in metrics.items()},
            **value_metrics(batch),
            **({"policy/kl_coef": state.kl_coef} if penalised else {}),
            "policy/epochs": jnp.sum(used, dtype=jnp.float32) / algo.minibatches,
            "optimizer/learning_rate": rate,
        }
        state = state._replace(
            params=unravel(learner.params),
            opt_state=learner.opt_state,
            moments=observe(state.moments, rollout),
            kl_coef=kl_coef,
            step=state.step + 1,
        )
        return state, metrics

    return Algo(init, make_draw(nets), make_act(nets), make_act_greedy(nets), update)


def adapted_kl_coef(kl_coef: Array, kl: Array, target_kl: float) -> Array:
    """Doubles the weight of the penalty if KL > 1.5·target, halves it if KL < target/1.5.

    Schulman et al. (2017), section 4.
    """
    return kl_coef * jnp.where(kl > 1.5 * target_kl, 2.0, jnp.where(kl < target_kl / 1.5, 0.5, 1.0))
