"""Functions on pure-JAX environments; `host_transforms.py` has those on host environments."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from rljax.ops.moments import Moments, init_moments, update_moments, variance
from rljax.types import Array, Box, Env, EnvSpec, Key, PyTree, Step, Transition, VectorEnv

EPS = 1e-8  # added to the variance of the returns
MAX_REWARD = 10.0  # the largest normalised reward


def clip_actions(env: Env) -> Env:
    """Real actions are clipped to their bounds before the step sees them; others pass.

    It matters where more than the dynamics depends on the action, as the cost of
    MountainCarContinuous does.

    Args:
      env: any environment.

    Returns:
      An `Env` with the same `spec`.

    >>> from rljax.envs import make
    >>> env = clip_actions(make("MountainCarContinuous-v0"))
    >>> state, _ = env.reset(jax.random.key(0))
    >>> round(float(env.step(jax.random.key(1), state, jnp.full(1, 9.0))[1].reward), 6)
    -0.1
    """
    space = env.spec.action_space
    if not isinstance(space, Box):
        return env

    def step(key: Key, state: PyTree, action: Array) -> tuple[PyTree, Step]:
        return env.step(key, state, jnp.clip(action, space.low, space.high))

    return env._replace(step=step)


def scale_actions(env: Env) -> Env:
    """Actions in [-1, 1], clipped to it, stand for all between `low` and `high`.

    action = ((1 - a) low + (1 + a) high) / 2, exact at both ends.

    Args:
      env: with a Box of finite bounds.

    Returns:
      An `Env` whose `spec` says [-1, 1].

    Raises:
      ValueError: if actions are discrete or a bound is infinite.

    >>> from rljax.envs import make
    >>> scale_actions(make("Pendulum-v1")).spec.action_space.high.tolist()
    [1.0]
    """
    spec, low, high = unit_actions(env.spec)

    def step(key: Key, state: PyTree, action: Array) -> tuple[PyTree, Step]:
        action = jnp.clip(action, -1.0, 1.0)
        return env.step(key, state, 0.5 * ((1 - action) * low + (1 + action) * high))

    return env._replace(step=step, spec=spec)


def unit_actions(spec: EnvSpec) -> tuple[EnvSpec, np.ndarray, np.ndarray]:
    """The spec with actions in [-1, 1], and the bounds it had; ValueError if it had none."""
    space = spec.action_space
    if not isinstance(space, Box):
        raise ValueError(f"{spec.name}: {space} cannot be scaled, allowed is a Box")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        bounds = f"{space.low.tolist()} and {space.high.tolist()}"
        raise ValueError(f"{spec.name}: actions between {bounds} cannot be scaled to [-1, 1]")
    limit = np.ones_like(space.high)
    return spec._replace(action_space=Box(-limit, limit)), space.low, space.high


class NormalizedState(NamedTuple):
    env: PyTree
    running_return: Array  # float32 [B]: R after the last step, 0 where that ended an episode
    moments: Moments  # of all R so far: one for the B environments


def normalize_rewards(envs: VectorEnv, *, discount: float) -> VectorEnv:
    """Rewards divided by the standard deviation of the running discounted return.

    R_t = γ R_{t-1} (1 - done_{t-1}) + r_t, done = terminated or truncated: the step that ends an
    episode still belongs to it. The reward is r_t / sqrt(Var(R) + 1e-8), the variance over all
    environments and steps so far, this one included; the mean is not subtracted. The result is
    bounded to ±10: the first reward after many zeros would be as large as the square root of their
    number. As long as all R are equal there is no scale yet and the reward passes undivided, within
    the bound. `episode_return` stays that of the environment.

    Args:
      envs: the environments.
      discount: γ in [0, 1].

    Returns:
      A `VectorEnv` with the statistics in its state; its `reset` starts them anew.

    Raises:
      ValueError: if `discount` is not in [0, 1].

    >>> from rljax.envs import make, vector
    >>> envs = normalize_rewards(vector.vectorize(make("Pendulum-v1"), 2), discount=0.99)
    >>> state, _ = envs.reset(jax.random.key(0))
    >>> draws = jax.tree.map(lambda x: x[0], envs.draw(jax.random.key(1), 1))
    >>> envs.step(draws, state, jnp.zeros((2, 1)))[0].moments.count.item()
    2.0

    Source: Engstrom et al. (2020), "Implementation Matters in Deep Policy Gradients", algorithm 1,
    which neither ends the sum with the episode nor bounds the result.
    """
    check_discount(discount)

    def reset(key: Key) -> tuple[NormalizedState, Array]:
        env_state, observation = envs.reset(key)
        state = NormalizedState(env_state, jnp.zeros(envs.num_envs), init_moments(()))
        return state, observation

    def step(
        draws: PyTree, state: NormalizedState, actions: Array
    ) -> tuple[NormalizedState, Transition]:
        env_state, transition = envs.step(draws, state.env, actions)
        reward, done = transition.reward, transition.terminated | transition.truncated
        running_return = discount * state.running_return + reward
        moments = update_moments(state.moments, running_return)
        var = variance(moments)
        scale = jnp.where(var > 0, jnp.sqrt(var + EPS), 1.0)
        state = NormalizedState(env_state, jnp.where(done, 0.0, running_return), moments)
        return state, transition._replace(reward=jnp.clip(reward / scale, -MAX_REWARD, MAX_REWARD))

    return envs._replace(reset=reset, step=step)


def check_discount(discount: float) -> None:
    if not 0 <= discount <= 1:
        raise ValueError(f"discount is {discount}: it must be in [0, 1]")
