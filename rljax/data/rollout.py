"""Acting in environments for T steps: `unroll` inside jit, `collect` with a host environment."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Array, HostVectorEnv, Key, Metrics, PyTree, Rollout, Transition, VectorEnv

Act = Callable[[Key, Array], tuple[Array, Array]]  # key, observations -> (actions, log_probs)


def unroll(
    key: Key, env: VectorEnv, act: Act, env_state: PyTree, observation: Array, *, length: int
) -> tuple[PyTree, Array, Rollout, Metrics]:
    """Acts for `length` steps in B pure-JAX environments, in one `lax.scan`.

    Args:
      key: consumed; step t uses `split(key, length)[t]`.
      env: the environments.
      act: the policy, key and observations [B, ...] to actions and their log-probabilities [B].
      env_state, observation: where the last unroll ended.
      length: T, at least 1.

    Returns:
      The environments' state and observation to go on from, the rollout [T, B, ...], and the sums over the
      episodes that ended in it (`episode_sums`).
    """

    def step(carry, key):
        env_state, observation = carry
        act_key, env_key = jax.random.split(key)
        actions, log_probs = act(act_key, observation)
        env_state, transition = env.step(env_key, env_state, actions)
        return (env_state, transition.observation), (observation, actions, log_probs, transition)

    (env_state, observation), (observations, actions, log_probs, transitions) = jax.lax.scan(
        step, (env_state, observation), jax.random.split(key, length)
    )
    rollout = make_rollout(observations, actions, log_probs, transitions)
    return env_state, observation, rollout, episode_sums(transitions)


def collect(
    env: HostVectorEnv,
    act: Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]],
    observation: np.ndarray,
    *,
    length: int,
) -> tuple[np.ndarray, Rollout, Metrics]:
    """Acts for `length` steps in B host environments, which keep their own state.

    Args:
      env: the environments; they are stepped in place.
      act: index of the step and observations [B, ...] to actions and their log-probabilities.
      observation: where the last call ended.
      length: T, at least 1.

    Returns:
      The observation to go on from, the rollout [T, B, ...] in numpy, and `episode_sums`.
    """
    steps = []
    for t in range(length):
        actions, log_probs = act(t, observation)
        transition = env.step(actions)
        steps.append((observation, actions, log_probs, transition))
        observation = transition.observation
    observations, actions, log_probs, transitions = jax.tree.map(lambda *xs: np.stack(xs), *steps)
    rollout = make_rollout(observations, actions, log_probs, transitions)
    return observation, rollout, jax.tree.map(np.asarray, episode_sums(transitions))


def make_rollout(
    observations: Array, actions: Array, log_probs: Array, transitions: Transition
) -> Rollout:
    return Rollout(
        observations=observations,
        actions=actions,
        behaviour_log_probs=log_probs,
        rewards=transitions.reward,
        terminated=transitions.terminated,
        truncated=transitions.truncated,
        next_observations=transitions.next_observation,
        mask=transitions.mask,
    )


def episode_sums(transitions: Transition) -> Metrics:
    """Count, summed return and summed length of the episodes that ended, over all axes, in float32.

    Sums rather than means: rollouts without an ended episode add nothing, and sums of several rollouts give
    the exact mean over their episodes.
    """
    done = transitions.terminated | transitions.truncated
    return {
        "episode/count": jnp.sum(done, dtype=jnp.float32),
        "episode/return_sum": jnp.sum(jnp.where(done, transitions.episode_return, 0.0)),
        "episode/length_sum": jnp.sum(
            jnp.where(done, transitions.episode_length, 0), dtype=jnp.float32
        ),
    }
