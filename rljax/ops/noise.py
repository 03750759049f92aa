"""Exploration: how drawn noise turns what a policy says into what it does.

Nothing here draws: the noise comes first, from `jax.random` in bulk for many steps. Schedules are
functions of the step.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Real, Shaped

from rljax.ops.checks import (
    Scalar,
    as_float32,
    broadcast_trailing,
    check_more_axes,
    check_same_shape,
    check_shape,
)


def noisy_actions(
    noise: Real[ArrayLike, "*S A"],
    actions: Real[ArrayLike, "*S A"],
    *,
    std: Scalar | Float[ArrayLike, "..."],
    low: Scalar | Float[ArrayLike, "..."],
    high: Scalar | Float[ArrayLike, "..."],
    clip: Scalar | None = None,
) -> Float[Array, "*S A"]:
    """Actions with noise on them, kept in their box.

    a' = bound(a + bound(σ ε, -c·σ₁, c·σ₁), low, high), where the inner bound is there with `clip` c
    only and σ₁ = (high - low)/2. σ too counts in half-widths of the box: 0.1 is as much for actions
    in [-2, 2] as for those in [-1, 1].

    Args:
        noise: ε [*S, A]: `jax.random.normal` for independent noise, or the state of
            `ornstein_uhlenbeck` with std=1.
        actions: a [*S, A], in the box.
        std: σ >= 0, a scalar or of the trailing shape; 0.1 in the paper, to act.
        low: finite lower ends of the actions, a scalar or of the trailing shape.
        high: finite upper ends, likewise, above low.
        clip: c >= 0, for the target actor's actions in TD3 (σ = 0.2, c = 0.5); None sets no bound.

    Returns:
        [*S, A] float32 in [low, high].

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> noise, actions = jnp.array([1.0, -9.0]), jnp.array([0.5, 1.5])
        >>> noisy_actions(noise, actions, std=0.25, low=-2.0, high=2.0).tolist()
        [1.0, -2.0]
        >>> noisy_actions(noise, actions, std=0.25, low=-2.0, high=2.0, clip=0.5).tolist()
        [1.0, 0.5]

    Source: Fujimoto, van Hoof and Meger (2018), Addressing Function Approximation Error in
    Actor-Critic Methods, section 5.3 and algorithm 1; the unit of σ and c is ours.
    """
    check_same_shape(noise=noise, actions=actions)
    noise, actions = as_float32(noise, actions)
    low = broadcast_trailing("low", low, actions.shape)
    high = broadcast_trailing("high", high, actions.shape)
    noise = broadcast_trailing("std", std, actions.shape) * noise
    if clip is not None:
        bound = jnp.asarray(clip, jnp.float32)
        noise = jnp.clip(noise, -bound, bound)
    return jnp.clip(actions + 0.5 * (high - low) * noise, low, high)


def ornstein_uhlenbeck(
    noise: Real[ArrayLike, "*S A"],
    state: Real[ArrayLike, "*S A"],
    restart: Shaped[ArrayLike, "*S"],
    *,
    theta: Scalar,
    std: Scalar,
    dt: Scalar,
) -> Float[Array, "*S A"]:
    """One step of noise that drifts, and falls back to 0.

    x' = x - θ x dt + σ √dt ε, from x = 0 where an episode begins. Far from its beginning x has the
    standard deviation σ √(dt / (1 - (1 - θ dt)²)), about σ / √(2θ), and the correlation
    (1 - θ dt)^k with itself k steps later.

    Args:
        noise: ε [*S, A], from `jax.random.normal`.
        state: x [*S, A]: what the last call returned, zeros at first.
        restart: [*S], bool or 0/1: the step that is taken now is the first of its episode, that is,
            the one before was terminated or truncated.
        theta: θ > 0, the pull to 0 per unit of time, with θ dt < 2; 0.15 in the paper.
        std: σ >= 0, the spread of the increments of one unit of time; 0.2 in the paper.
        dt: the time that one step takes, > 0; 1 in the paper. Much code has 0.01, which makes the
            noise of neighbouring steps all but equal, and no smaller in the long run.

    Returns:
        the next state x' [*S, A] float32, which is also the noise of this step.

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> noise, state = jnp.array([[1.0], [1.0]]), jnp.array([[2.0], [2.0]])
        >>> restart = jnp.array([False, True])
        >>> ornstein_uhlenbeck(noise, state, restart, theta=0.5, std=0.25, dt=1.0).tolist()
        [[1.25], [0.25]]

    Source: Lillicrap et al. (2016), Continuous Control with Deep Reinforcement Learning, section 7;
    Uhlenbeck and Ornstein (1930). The steps are Euler's, as in the code of the former.
    """
    check_same_shape(noise=noise, state=state)
    check_more_axes(1, state=state, restart=restart)
    noise, state = as_float32(noise, state)
    first = jnp.broadcast_to((jnp.asarray(restart) != 0)[..., None], state.shape)
    state = jnp.where(first, 0.0, state)
    theta, std, dt = as_float32(theta, std, dt)
    return state - theta * dt * state + std * jnp.sqrt(dt) * noise


def linear_decay(
    step: Shaped[ArrayLike, "*S"], *, start: Scalar, end: Scalar, steps: Scalar
) -> Float[Array, "*S"]:
    """A number that goes from `start` to `end` in a straight line and stays there.

    start + (end - start) · min(step / steps, 1).

    Args:
        step: [*S], >= 0, any real dtype; an integer beyond 2^31 is fine where its dtype holds it.
        start: the value at step 0.
        end: the value from step `steps` on, exactly.
        steps: > 0.

    Returns:
        [*S] float32.

    Raises:
        ValueError: if steps is a number that is not above 0.

    Example:
        >>> linear_decay(jnp.array([0, 50, 100, 999]), start=1.0, end=0.5, steps=100).tolist()
        [1.0, 0.75, 0.5, 0.5]
    """
    if isinstance(steps, int | float) and not steps > 0:
        raise ValueError(f"steps must be above 0, got {steps}")
    step, start, end, steps = as_float32(step, start, end, steps)
    fraction = jnp.clip(step / steps, 0.0, 1.0)
    return start * (1.0 - fraction) + end * fraction


def epsilon_greedy(
    noise: Float[ArrayLike, "*S 2"],
    q_values: Real[ArrayLike, "*S A"],
    *,
    epsilon: Scalar | Float[ArrayLike, "..."],
) -> Int[Array, "*S"]:
    """The best action, or with probability ε any of all A, the best one included.

    a = ⌊A ν⌋ if u < ε, else argmax_a Q(s, a).

    Args:
        noise: (u, ν) [*S, 2], from `jax.random.uniform`, in [0, 1).
        q_values: Q(s, ·) [*S, A], any real dtype.
        epsilon: ε in [0, 1], a scalar or of the trailing shape of noise without its last axis.

    Returns:
        [*S] int32 in 0 ... A-1.

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> noise, q_values = jnp.array([[0.0, 0.9], [0.5, 0.9]]), jnp.array([[4.0, 1.0, 2.0]] * 2)
        >>> epsilon_greedy(noise, q_values, epsilon=0.1).tolist()
        [2, 0]

    Source: Watkins (1989), Learning from Delayed Rewards, chapter 7.
    """
    shape, num_actions = jnp.shape(q_values)[:-1], jnp.shape(q_values)[-1]
    check_shape("noise", noise, (*shape, 2))
    (noise,) = as_float32(noise)
    anything = jnp.floor(noise[..., 1] * num_actions).astype(jnp.int32)
    anything = jnp.minimum(anything, num_actions - 1)  # the product may round up to A
    best = jnp.argmax(jnp.asarray(q_values, jnp.float32), axis=-1).astype(jnp.int32)
    explore = noise[..., 0] < broadcast_trailing("epsilon", epsilon, shape)
    return jnp.where(explore, anything, best)
