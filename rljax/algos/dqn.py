"""Deep Q-networks, with double Q-learning, a dueling network and n-step returns as switches.

Mnih et al. (2015), "Human-level control through deep reinforcement learning", algorithm 1; van
Hasselt et al. (2016), "Deep Reinforcement Learning with Double Q-learning", equation 4; Wang et al.
(2016), "Dueling Network Architectures for Deep Reinforcement Learning", equation 9.
Departures: the target network may also follow slowly (`target_rate` below 1); errors are bounded by
the Huber loss only if `huber_delta` is set.
"""

from typing import Any

from rljax.algos.learner import Learner
from rljax.algos.q_learning import make_q_learner
from rljax.losses.dqn import dqn_loss, dqn_targets
from rljax.nets.q import make_q_net
from rljax.types import Array, EnvSpec, Metrics, NStepBatch, OffPolicyAlgo, Params


def make(config: Any, spec: EnvSpec, *, num_updates: int) -> OffPolicyAlgo:
    """DQN for one environment with discrete actions.

    Metrics:
      loss/critic, q/mean, q/target_mean, q/abs_error: of `dqn_loss`. grad/q_norm: global norm
      before clipping.

    Args:
      config: the run's; reads `algo`, `net`, `optimizer`.
      spec: the environment's.
      num_updates: gradient steps of the run, for annealing.

    Raises:
      ValueError: for real actions, or a setting that is not allowed.
    """
    algo = config.algo
    net = make_q_net(config.net, spec, dueling=algo.dueling)

    def q_values(table: Array) -> Array:
        return table[..., 0]

    def loss_fn(params: Params, state: Learner, batch: NStepBatch) -> tuple[Array, Metrics]:
        next_q = q_values(net.apply(state.targets["q"], batch.next_observation))
        online = q_values(net.apply(params, batch.next_observation)) if algo.double else None
        targets = dqn_targets(
            batch.reward, batch.terminated, next_q, discount=batch.discount, next_q_online=online
        )
        q = q_values(net.apply(params, batch.observation))
        return dqn_loss(q, batch.action, targets, huber_delta=algo.huber_delta)

    return make_q_learner(config, num_updates, net, q_values, loss_fn)
