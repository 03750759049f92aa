"""Soft actor-critic: twin critics, a stochastic actor, a learned temperature.

Haarnoja et al. (2018), "Soft Actor-Critic Algorithms and Applications": equations 5 (critics), 7
and 9 (actor), 17 (temperature), algorithm 1. With discrete actions, where expectations need no
samples: Christodoulou (2019), "Soft Actor-Critic for Discrete Action Settings".
Departure: log-densities are those of the environment's actions, so the default target entropy of
real actions is that paper's -A shifted by the log-volume of the box over that of [-1, 1]^A.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.actor_critic import make_optimizer
from rljax.algos.learner import Learner, descend, follow, init_learner, make_rate
from rljax.losses import discrete_sac
from rljax.losses.sac import (
    sac_actor_loss,
    sac_critic_loss,
    sac_targets,
    sac_temperature_loss,
)
from rljax.nets.actor_critic import make_actor_critic
from rljax.nets.q import action_bounds, make_actor, make_critic, make_q_net, twin
from rljax.ops.distributions import CATEGORICAL
from rljax.ops.tanh_gaussian import tanh_gaussian_shift, tanh_squash
from rljax.types import Array, Discrete, EnvSpec, Key, Metrics, Net, NStepBatch, OffPolicyAlgo

DISCRETE_ENTROPY = 0.89  # of log A: the paper's 0.98 leaves hardly any choice to the policy


class Parts(NamedTuple):
    """What real and discrete actions do differently; y are the targets of the critics."""

    actor: Net
    critic: Net  # two of them
    action_size: int
    noise: Callable[[Key, tuple[int, ...]], Array]
    sample: Callable[[Array, Any], Array]  # noise, what the actor returns -> actions
    mode: Callable[[Any], Array]
    targets: Callable[..., Array]  # key, learner, batch, temperature -> y
    critic_loss: Callable[..., tuple[Array, Metrics]]  # params, batch, y
    # key, params, learner, batch, temperature -> (loss, (metrics, what the temperature looks at))
    actor_loss: Callable[..., tuple[Array, tuple[Metrics, Array]]]
    temperature_loss: Callable[..., tuple[Array, Metrics]]
    target_entropy: float


def make(config: Any, spec: EnvSpec, *, num_updates: int) -> OffPolicyAlgo:
    """SAC for one environment, with real or discrete actions.

    Metrics:
      loss/critic, loss/actor, loss/temperature: of the losses. q/mean, q/target_mean: mean value of
      the sampled actions, by both critics, and of their targets. q/abs_error, q/gap: mean distance
      to the targets, and between the critics. policy/entropy: nats, of the environment's actions.
      temperature: α before the update. grad/critic_norm, grad/actor_norm, grad/temperature_norm:
      global norms before clipping.

    Args:
      config: the run's; reads `algo`, `net`, `optimizer`.
      spec: the environment's.
      num_updates: gradient steps of the run, for annealing.

    Raises:
      ValueError: for a setting that is not allowed, or real actions without finite bounds.
    """
    algo = config.algo
    discrete = isinstance(spec.action_space, Discrete)
    parts = (discrete_actions if discrete else real_actions)(config, spec)
    optimizer = make_optimizer(config.optimizer)
    rate_at = make_rate(config.optimizer, num_updates)
    learned = algo.temperature is None
    target_entropy = parts.target_entropy if algo.target_entropy is None else algo.target_entropy

    def init(key: Key) -> Learner:
        first = algo.init_temperature if learned else algo.temperature
        inits = {
            "actor": parts.actor.init,
            "critic": parts.critic.init,
            "temperature": lambda _: {"log": jnp.log(jnp.float32(first))},
        }
        return init_learner(key, inits, optimizer, targets=("critic",))

    def draw(key: Key, shape: tuple[int, ...]) -> Array:
        return parts.noise(key, (*shape, parts.action_size))

    def act(noise: Array, memory: tuple, state: Learner, observations: Array, step: Array):
        del step
        return parts.sample(noise, parts.actor.apply(state.params["actor"], observations)), memory

    def act_greedy(state: Learner, observations: Array) -> Array:
        return parts.mode(parts.actor.apply(state.params["actor"], observations))

    def update(key: Key, state: Learner, batch: NStepBatch, step: Array):
        rate = rate_at(step)
        next_key, actor_key = jax.random.split(key)
        temperature = jnp.exp(state.params["temperature"]["log"])
        targets = parts.targets(next_key, state, batch, temperature)
        state, critic_metrics, critic_norm = descend(
            state, "critic", lambda p: parts.critic_loss(p, batch, targets), optimizer, rate
        )
        state, (actor_metrics, surprise), actor_norm = descend(
            state,
            "actor",
            lambda p: parts.actor_loss(actor_key, p, state, batch, temperature),
            optimizer,
            rate,
        )
        metrics = {**critic_metrics, **actor_metrics, **critic_norm, **actor_norm}
        if learned:
            state, temperature_metrics, norm = descend(
                state,
                "temperature",
                lambda p: parts.temperature_loss(p["log"], surprise, target_entropy=target_entropy),
                optimizer,
                rate,
            )
            metrics |= {**temperature_metrics, **norm}
        state = follow(state, rate=algo.target_rate)
        return state, {**metrics, "temperature": temperature}

    return OffPolicyAlgo(init, draw, lambda num_envs: (), act, act_greedy, update)


def real_actions(config: Any, spec: EnvSpec) -> Parts:
    low, high = action_bounds(spec)
    actor = make_actor(config.net, spec, stochastic=True)
    critic = twin(make_critic(config.net, spec))

    def shift(noise: Array, policy: tuple[Array, Array]) -> tuple[Array, Array]:
        return tanh_gaussian_shift(noise, *policy, low=low, high=high)

    def targets(key: Key, learner: Learner, batch: NStepBatch, temperature: Array) -> Array:
        noise = jax.random.normal(key, batch.action.shape)
        policy = actor.apply(learner.params["actor"], batch.next_observation)
        actions, log_probs = shift(noise, policy)
        q1, q2 = critic.apply(learner.targets["critic"], batch.next_observation, actions)
        return sac_targets(
            *(batch.reward, batch.terminated, q1, q2, log_probs),
            discount=batch.discount,
            temperature=temperature,
        )

    def critic_loss(params: Any, batch: NStepBatch, y: Array) -> tuple[Array, Metrics]:
        q1, q2 = critic.apply(params, batch.observation, batch.action)
        return sac_critic_loss(q1, q2, y)

    def actor_loss(key: Key, params: Any, learner: Learner, batch: NStepBatch, temperature: Array):
        noise = jax.random.normal(key, batch.action.shape)
        actions, log_probs = shift(noise, actor.apply(params, batch.observation))
        q1, q2 = critic.apply(learner.params["critic"], batch.observation, actions)
        loss, metrics = sac_actor_loss(q1, q2, log_probs, temperature=temperature)
        return loss, (metrics, log_probs)

    return Parts(
        actor=actor,
        critic=critic,
        action_size=len(low),
        noise=jax.random.normal,
        sample=lambda noise, policy: shift(noise, policy)[0],
        mode=lambda policy: tanh_squash(policy[0], low=low, high=high),
        targets=targets,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
        temperature_loss=sac_temperature_loss,
        target_entropy=float(np.sum(np.log((high - low) / 2))) - len(low),
    )


def discrete_actions(config: Any, spec: EnvSpec) -> Parts:
    nets = make_actor_critic(config.net, spec)
    actor = nets.policy
    table = make_q_net(config.net, spec)
    critic = twin(Net(table.init, lambda params, x: table.apply(params, x)[..., 0]))
    num_actions = nets.action_size

    def targets(key: Key, learner: Learner, batch: NStepBatch, temperature: Array) -> Array:
        del key  # an expectation, not a sample
        logits = actor.apply(learner.params["actor"], batch.next_observation)
        q1, q2 = critic.apply(learner.targets["critic"], batch.next_observation)
        return discrete_sac.discrete_sac_targets(
            *(batch.reward, batch.terminated, q1, q2, logits),
            discount=batch.discount,
            temperature=temperature,
        )

    def critic_loss(params: Any, batch: NStepBatch, y: Array) -> tuple[Array, Metrics]:
        q1, q2 = critic.apply(params, batch.observation)
        return discrete_sac.discrete_sac_critic_loss(q1, q2, batch.action, y)

    def actor_loss(key: Key, params: Any, learner: Learner, batch: NStepBatch, temperature: Array):
        del key
        logits = actor.apply(params, batch.observation)
        q1, q2 = critic.apply(learner.params["critic"], batch.observation)
        loss, metrics = discrete_sac.discrete_sac_actor_loss(
            *(q1, q2, logits), temperature=temperature
        )
        return loss, (metrics, logits)

    return Parts(
        actor=actor,
        critic=critic,
        action_size=num_actions,
        noise=CATEGORICAL.noise,
        sample=CATEGORICAL.sample,
        mode=CATEGORICAL.mode,
        targets=targets,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
        temperature_loss=discrete_sac.discrete_sac_temperature_loss,
        target_entropy=DISCRETE_ENTROPY * math.log(num_actions),
    )
