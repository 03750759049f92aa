"""What DQN and C51 share: acting by epsilon-greedy, and a target network that follows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.actor_critic import make_optimizer
from rljax.algos.learner import Learner, descend, follow, init_learner, make_rate
from rljax.ops.noise import epsilon_greedy, linear_decay
from rljax.types import Array, Key, Metrics, Net, NStepBatch, OffPolicyAlgo, Params

LossFn = Callable[[Params, Learner, NStepBatch], tuple[Array, Metrics]]


def make_q_learner(
    config: Any, num_updates: int, net: Net, q_values: Callable[[Array], Array], loss_fn: LossFn
) -> OffPolicyAlgo:
    """Epsilon-greedy acting around a loss of the parameters `q`.

    Args:
      config: the run's; reads `algo` and `optimizer`.
      num_updates: gradient steps of the run, for annealing.
      net: observations to what `loss_fn` learns.
      q_values: of what `net` gives, [..., A].
      loss_fn: params, learner, batch -> (loss, metrics).
    """
    algo = config.algo
    optimizer = make_optimizer(config.optimizer)
    rate_at = make_rate(config.optimizer, num_updates)

    def init(key: Key) -> Learner:
        return init_learner(key, {"q": net.init}, optimizer, targets=("q",))

    def draw(key: Key, shape: tuple[int, ...]) -> Array:
        return jax.random.uniform(key, (*shape, 2))

    def act_greedy(state: Learner, observations: Array) -> Array:
        values = q_values(net.apply(state.params["q"], observations))
        return jnp.argmax(values, axis=-1).astype(jnp.int32)

    def act(noise: Array, memory: tuple, state: Learner, observations: Array, step: Array):
        epsilon = linear_decay(
            step, start=algo.epsilon_start, end=algo.epsilon_end, steps=algo.epsilon_steps
        )
        values = q_values(net.apply(state.params["q"], observations))
        return epsilon_greedy(noise, values, epsilon=epsilon), memory

    def update(key: Key, state: Learner, batch: NStepBatch, step: Array):
        del key  # nothing is random
        state, metrics, norm = descend(
            state, "q", lambda params: loss_fn(params, state, batch), optimizer, rate_at(step)
        )
        due = (step + 1) % algo.target_period == 0
        state = jax.lax.cond(due, lambda s: follow(s, rate=algo.target_rate), lambda s: s, state)
        return state, {**metrics, **norm}

    return OffPolicyAlgo(init, draw, lambda num_envs: (), act, act_greedy, update)
