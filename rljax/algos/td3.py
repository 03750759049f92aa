"""Twin delayed DDPG: two critics, smoothed target actions, an actor that learns less often.

Fujimoto et al. (2018), "Addressing Function Approximation Error in Actor-Critic Methods",
algorithm 1.
"""

from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.actor_critic import make_optimizer
from rljax.algos.deterministic import make_exploration, make_policy
from rljax.algos.learner import Learner, descend, follow, init_learner, make_rate
from rljax.losses.ddpg import ddpg_actor_loss
from rljax.losses.td3 import td3_critic_loss, td3_targets
from rljax.nets.q import action_bounds, make_critic, twin
from rljax.ops.noise import noisy_actions
from rljax.types import Array, EnvSpec, Key, Metrics, NStepBatch, OffPolicyAlgo


def make(config: Any, spec: EnvSpec, *, num_updates: int) -> OffPolicyAlgo:
    """TD3 for one environment with real actions.

    Metrics:
      loss/critic, q/mean, q/target_mean, q/abs_error, q/gap: of `td3_critic_loss`. loss/actor: of
      `ddpg_actor_loss` by the first critic. grad/critic_norm, grad/actor_norm: global norms before
      clipping. The actor's two are `policy_delay` times what they are where it learned and 0
      elsewhere, so that their means over updates are right.

    Args:
      config: the run's; reads `algo`, `net`, `optimizer`.
      spec: the environment's.
      num_updates: gradient steps of the run, for annealing.

    Raises:
      ValueError: for discrete actions or infinite bounds, or a setting that is not allowed.
    """
    algo = config.algo
    low, high = action_bounds(spec)
    policy, critic = make_policy(config, spec), make_critic(config.net, spec)
    critics = twin(critic)
    optimizer = make_optimizer(config.optimizer)
    rate_at = make_rate(config.optimizer, num_updates)

    def init(key: Key) -> Learner:
        inits = {"actor": policy.init, "critic": critics.init}
        return init_learner(key, inits, optimizer, targets=("actor", "critic"))

    def smoothed(key: Key, actions: Array) -> Array:
        """Near actions are worth nearly the same: the target is an average over them."""
        noise = jax.random.normal(key, actions.shape)
        std, clip = algo.target_noise, algo.target_noise_clip
        return noisy_actions(noise, actions, std=std, clip=clip, low=low, high=high)

    def learn_actor(state: Learner, batch: NStepBatch, rate: Array) -> tuple[Learner, Metrics]:
        def actor_loss(params: Any):
            actions = policy.apply(params, batch.observation)
            q = critic.apply(state.params["critic"]["q1"], batch.observation, actions)
            return ddpg_actor_loss(q)

        state, metrics, norm = descend(state, "actor", actor_loss, optimizer, rate)
        scaled = {name: algo.policy_delay * x for name, x in {**metrics, **norm}.items()}
        return follow(state, rate=algo.target_rate), scaled

    def update(key: Key, state: Learner, batch: NStepBatch, step: Array):
        rate = rate_at(step)
        actions = policy.apply(state.targets["actor"], batch.next_observation)
        q1, q2 = critics.apply(
            state.targets["critic"], batch.next_observation, smoothed(key, actions)
        )
        targets = td3_targets(batch.reward, batch.terminated, q1, q2, discount=batch.discount)

        def critic_loss(params: Any):
            q1, q2 = critics.apply(params, batch.observation, batch.action)
            return td3_critic_loss(q1, q2, targets)

        state, metrics, norm = descend(state, "critic", critic_loss, optimizer, rate)
        _, shapes = jax.eval_shape(learn_actor, state, batch, rate)
        nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        state, actor_metrics = jax.lax.cond(
            (step + 1) % algo.policy_delay == 0,
            learn_actor,
            lambda state, *_: (state, nothing),
            *(state, batch, rate),
        )
        return state, {**metrics, **norm, **actor_metrics}

    draw, begin, act, act_greedy = make_exploration(config, spec, policy)
    return OffPolicyAlgo(init, draw, begin, act, act_greedy, update)
