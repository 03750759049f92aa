"""Acting in environments for T steps: `unroll` inside jit, `collect` with a host environment."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.types import Array, HostVectorEnv, Key, Metrics, PyTree, Rollout, Transition, VectorEnv

Draw = Callable[[Key, tuple[int, ...]], PyTree]  # key, shape -> noise [*shape, ...]
Act = Callable[[PyTree, Array], tuple[Array, Array]]  # noise, observations -> (actions, log_probs)
HostAct = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]]  # the step's index for noise


def draw_noise(key: Key, draw: Draw, num_envs: int, *, length: int, hold: int = 1) -> PyTree:
    """Noise [T, B, ...] for T steps, drawn afresh every `hold` steps and kept in between.

    Kept noise pushes an action one way for a while, which explores where single pushes average
    out; each step's log-probability is still that of its own action (Raffin et al., 2021, "Smooth
    Exploration for Robotic Reinforcement Learning", whose noise also depends on the state).

    >>> noise = draw_noise(jax.random.key(0), jax.random.normal, 2, length=5, hold=2)
    >>> noise.shape, bool((noise[0] == noise[1]).all()), bool((noise[1] == noise[2]).any())
    ((5, 2), True, False)
    """
    noise = draw(key, (-(-length // hold), num_envs))
    return (
        jax.tree.map(lambda x: jnp.repeat(x, hold, axis=0)[:length], noise) if hold > 1 else noise
    )


def unroll(
    key: Key,
    env: VectorEnv,
    draw: Draw,
    act: Act,
    env_state: PyTree,
    observation: Array,
    *,
    length: int,
    hold: int = 1,
) -> tuple[PyTree, Array, Rollout]:
    """Acts for `length` steps in B pure-JAX environments, in one `lax.scan`.

    Args:
      key: consumed.
      env: the environments.
      draw: key and shape (T, B) to the policy's noise [T, B, ...].
      act: the policy, noise and observations [B, ...] to actions and their log-probabilities [B].
      env_state, observation: where the last unroll ended.
      length: T, at least 1.
      hold: for how many steps one draw of the policy's noise is kept; see `draw_noise`.

    Returns:
      The environments' state and observation to go on from, and the rollout [T, B, ...].
    """
    act_key, env_key = jax.random.split(key)
    noise = draw_noise(act_key, draw, env.num_envs, length=length, hold=hold)

    def step(carry, randomness):
        env_state, observation = carry
        noise, draws = randomness
        actions, log_probs = act(noise, observation)
        env_state, transition = env.step(draws, env_state, actions)
        return (env_state, transition.observation), (observation, actions, log_probs, transition)

    (env_state, observation), steps = jax.lax.scan(
        step, (env_state, observation), (noise, env.draw(env_key, length))
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
    done = rollout.terminated | rollout.truncated
    if rollout.mask is not None:
        done &= rollout.mask
    return {
        "episode/count": jnp.sum(done, dtype=jnp.float32),
        "episode/return_sum": jnp.sum(jnp.where(done, rollout.episode_returns, 0.0)),
        "episode/length_sum": jnp.sum(
            jnp.where(done, rollout.episode_lengths, 0), dtype=jnp.float32
        ),
    }
