"""Acting in environments for T steps: `unroll` inside jit, `collect` with a host environment."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Array, HostVectorEnv, Key, Metrics, PyTree, Rollout, Transition, VectorEnv

Act = Callable[[Key, Array], tuple[Array, Array]]  # key, observations -> (actions, log_probs)
HostAct = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]]  # the step's index for the key


def unroll(
    key: Key, env: VectorEnv, act: Act, env_state: PyTree, observation: Array, *, length: int
) -> tuple[PyTree, Array, Rollout]:
    """Acts for `length` steps in B pure-JAX environments, in one `lax.scan`.

    Args:
      key: consumed; step t uses `split(key, length)[t]`.
      env: the environments.
      act: the policy, key and observations [B, ...] to actions and their log-probabilities [B].
      env_state, observation: where the last unroll ended.
      length: T, at least 1.

    Returns:
      The environments' state and observation to go on from, and the rollout [T, B, ...].
    """

    def step(carry, key):
        env_state, observation = carry
        act_key, env_key = jax.random.split(key)
        actions, log_probs = act(act_key, observation)
        env_state, transition = env.step(env_key, env_state, actions)
        return (env_state, transition.observation), (observation, actions, log_probs, transition)

    (env_state, observation), steps = jax.lax.scan(
        step, (env_state, observation), jax.random.split(key, length)
    )
    return env_state, observation, make_rollout(*steps)


def collect(
    env: HostVectorEnv, act: HostAct, observation: np.ndarray, *, length: int
) -> tuple[np.ndarray, Rollout]:
    """Acts for `length` steps in B host environments, which are stepped in place.

    Args:
      env: the environments.
      act: the policy, index of the step and observations [B, ...] to actions and log-probabilities.
      observation: where the last call ended.
      length: T, at least 1.

    Returns:
      The observation to go on from, and the rollout [T, B, ...] in numpy.
    """
    steps = []
    for t in range(length):
        actions, log_probs = act(t, observation)
        transition = env.step(actions)
        steps.append((observation, actions, log_probs, transition))
        observation = np.asarray(transition.observation)
    return observation, make_rollout(*jax.tree.map(lambda *xs: np.stack(xs), *steps))


def make_rollout(
    observations: Any, actions: Any, log_probs: Any, transitions: Transition
) -> Rollout:  # of JAX's arrays or of NumPy's
    return Rollout(
        observations=observations,
        actions=actions,
        behaviour_log_probs=log_probs,
        rewards=transitions.reward,
        terminated=transitions.terminated,
        truncated=transitions.truncated,
        next_observations=transitions.next_observation,
        episode_returns=transitions.episode_return,
        episode_lengths=transitions.episode_length,
        mask=transitions.mask,
    )


def episode_sums(rollout: Rollout) -> Metrics:
    """Count, summed return and summed length of the episodes that ended in the rollout, float32.

    Sums rather than means: a rollout without an ended episode adds nothing, and the sums of several
    rollouts give the exact mean over their episodes.
    """
    done = (rollout.terminated | rollout.truncated) & rollout.mask
    return {
        "episode/count": jnp.sum(done, dtype=jnp.float32),
        "episode/return_sum": jnp.sum(jnp.where(done, rollout.episode_returns, 0.0)),
        "episode/length_sum": jnp.sum(
            jnp.where(done, rollout.episode_lengths, 0), dtype=jnp.float32
        ),
    }
