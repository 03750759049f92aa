"""Deep deterministic policy gradient.

Lillicrap et al. (2016), "Continuous control with deep reinforcement learning", algorithm 1.
Departures: Gaussian noise unless `noise` is "ou"; no batch normalisation and no weight decay.
"""

from typing import Any

from rljax.algos.actor_critic import make_optimizer
from rljax.algos.deterministic import make_exploration, make_policy
from rljax.algos.learner import Learner, descend, follow, init_learner, make_rate
from rljax.losses.ddpg import ddpg_actor_loss, ddpg_critic_loss, ddpg_targets
from rljax.nets.q import make_critic
from rljax.types import Array, EnvSpec, Key, NStepBatch, OffPolicyAlgo


def make(config: Any, spec: EnvSpec, *, num_updates: int) -> OffPolicyAlgo:
    """DDPG for one environment with real actions.

    Metrics:
      loss/critic, q/mean, q/target_mean, q/abs_error: of `ddpg_critic_loss`. loss/actor: of
      `ddpg_actor_loss`. grad/critic_norm, grad/actor_norm: global norms before clipping.

    Args:
      config: the run's; reads `algo`, `net`, `optimizer`.
      spec: the environment's.
      num_updates: gradient steps of the run, for annealing.

    Raises:
      ValueError: for discrete actions or infinite bounds, or a setting that is not allowed.
    """
    algo = config.algo
    policy, critic = make_policy(config, spec), make_critic(config.net, spec)
    optimizer = make_optimizer(config.optimizer)
    rate_at = make_rate(config.optimizer, num_updates)

    def init(key: Key) -> Learner:
        inits = {"actor": policy.init, "critic": critic.init}
        return init_learner(key, inits, optimizer, targets=("actor", "critic"))

    def update(key: Key, state: Learner, batch: NStepBatch, step: Array):
        del key  # nothing is random
        rate = rate_at(step)
        next_actions = policy.apply(state.targets["actor"], batch.next_observation)
        next_q = critic.apply(state.targets["critic"], batch.next_observation, next_actions)
        targets = ddpg_targets(batch.reward, batch.terminated, next_q, discount=batch.discount)

        def critic_loss(params: Any):
            q = critic.apply(params, batch.observation, batch.action)
            return ddpg_critic_loss(q, targets)

        state, critic_metrics, critic_norm = descend(state, "critic", critic_loss, optimizer, rate)

        def actor_loss(params: Any):
            actions = policy.apply(params, batch.observation)
            return ddpg_actor_loss(critic.apply(state.params["critic"], batch.observation, actions))

        state, actor_metrics, actor_norm = descend(state, "actor", actor_loss, optimizer, rate)
        state = follow(state, rate=algo.target_rate)
        return state, {**critic_metrics, **actor_metrics, **critic_norm, **actor_norm}

    draw, begin, act, act_greedy = make_exploration(config, spec, policy)
    return OffPolicyAlgo(init, draw, begin, act, act_greedy, update)
