"""Categorical DQN: the distribution of the return on fixed atoms instead of its mean.

Bellemare et al. (2017), "A Distributional Perspective on Reinforcement Learning", algorithm 1.
"""

from typing import Any

import jax.numpy as jnp

from rljax.algos.learner import Learner
from rljax.algos.q_learning import make_q_learner
from rljax.losses.c51 import c51_loss, c51_q_values, c51_targets
from rljax.nets.q import make_q_net
from rljax.types import Array, EnvSpec, Metrics, NStepBatch, OffPolicyAlgo, Params


def make(config: Any, spec: EnvSpec, *, num_updates: int) -> OffPolicyAlgo:
    """C51 for one environment with discrete actions.

    Metrics:
      loss/critic: of `c51_loss`, and its others. grad/q_norm: global norm before clipping.

    Args:
      config: the run's; reads `algo`, `net`, `optimizer`.
      spec: the environment's.
      num_updates: gradient steps of the run, for annealing.

    Raises:
      ValueError: for real actions, atoms without a range, or a setting that is not allowed.
    """
    algo = config.algo
    if algo.num_atoms < 2 or not algo.value_min < algo.value_max:
        raise ValueError(
            f"config.algo has {algo.num_atoms} atoms from {algo.value_min} to {algo.value_max}: "
            "there must be at least 2, and value_min below value_max"
        )
    net = make_q_net(config.net, spec, size=algo.num_atoms, dueling=algo.dueling)
    support = jnp.linspace(algo.value_min, algo.value_max, algo.num_atoms)

    def q_values(logits: Array) -> Array:
        return c51_q_values(support, logits)

    def loss_fn(params: Params, state: Learner, batch: NStepBatch) -> tuple[Array, Metrics]:
        next_logits = net.apply(state.targets["q"], batch.next_observation)
        online = net.apply(params, batch.next_observation) if algo.double else None
        targets = c51_targets(
            support,
            batch.reward,
            batch.terminated,
            next_logits,
            discount=batch.discount,
            next_logits_online=online,
        )
        return c51_loss(net.apply(params, batch.observation), batch.action, targets)

    return make_q_learner(config, num_updates, net, q_values, loss_fn)
