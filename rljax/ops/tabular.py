"""Exact answers on tabular problems, to hold learned values and policies against."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Real

from rljax.ops.checks import Scalar


def _check_model(transitions: ArrayLike, rewards: ArrayLike, discount: Scalar) -> None:
    shape = jnp.shape(transitions)
    if len(shape) != 3 or shape[0] != shape[2] or jnp.shape(rewards) != shape[:2]:
        raise ValueError(
            "transitions must have shape [S, A, S] and rewards [S, A], "
            f"got transitions {shape} and rewards {jnp.shape(rewards)}"
        )
    if not isinstance(discount, Tracer) and not 0 <= np.asarray(discount) < 1:
        raise ValueError(f"discount must be in [0, 1), got {discount}")
    if not isinstance(transitions, Tracer):
        rows = np.asarray(transitions, np.float64)
        sums = rows.sum(axis=-1)
        wrong = ~((rows.min(axis=-1) >= 0) & (np.abs(sums - 1) <= 1e-4))  # NaN is wrong as well
        if wrong.any():
            state, action = np.argwhere(wrong)[0]
            raise ValueError(
                "each row of transitions must be non-negative with sum 1, got sum "
                f"{sums[state, action]:g} and minimum {rows[state, action].min():g} "
                f"for state {state} and action {action}"
            )


def value_iteration(
    transitions: Real[ArrayLike, "S A S"],
    rewards: Real[ArrayLike, "S A"],
    *,
    discount: Scalar,
    tolerance: Scalar = 1e-6,
    max_iterations: int = 10_000,
) -> tuple[Float[Array, "S"], Float[Array, "S A"], Int[Array, "S"]]:
    """The optimal values and policy of a tabular problem whose model is known.

    V ← max_a Q(·, a), Q(s, a) = r(s, a) + γ Σ_s' P(s' | s, a) V(s'), from V = 0, until no value
    moves by more than `tolerance`. Then max |V - V*| <= tolerance·γ/(1 - γ), and the values of the
    greedy policy lie within twice that, besides float32 rounding of about 1e-7·max|V|/(1 - γ).

    Args:
        transitions: P(s' | s, a) [S, A, S], each row non-negative with sum 1. A state that ends
            the episode leads to itself with reward 0.
        rewards: r [S, A], expected on leaving s by a.
        discount: γ, 0 <= γ < 1.
        tolerance: in the unit of the values.
        max_iterations: the bound above holds only where fewer were enough.

    Returns:
        values V [S] and q_values Q [S, A], float32, and policy [S] int32, the action of the
        largest Q, the lowest index among equals.

    Raises:
        ValueError: for other shapes, and (known only outside jit) for a discount outside [0, 1)
            or rows that are no probabilities.

    Example:
        >>> stay_or_go = jnp.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
        >>> rewards = jnp.array([[0.0, 0.0], [1.0, 0.0]])  # staying in state 1 pays
        >>> values, _, policy = value_iteration(stay_or_go, rewards, discount=0.5)
        >>> values.round(3).tolist(), policy.tolist()
        ([1.0, 2.0], [1, 0])

    Source: Sutton and Barto, Reinforcement Learning (2018), equation 4.10; the bound: Puterman,
    Markov Decision Processes (1994), theorem 6.3.1.
    """
    _check_model(transitions, rewards, discount)
    transitions = jnp.asarray(transitions, jnp.float32)
    rewards = jnp.asarray(rewards, jnp.float32)

    def backup(values: Array) -> Array:
        expected = jnp.einsum("sat,t->sa", transitions, values, precision=jax.lax.Precision.HIGHEST)
        return rewards + discount * expected

    def moving(state):
        iteration, values, previous = state
        moved = jnp.any(jnp.abs(values - previous) > tolerance)
        return (iteration < max_iterations) & ((iteration == 0) | moved)

    def iterate(state):
        iteration, values, _ = state
        return iteration + 1, jnp.max(backup(values), axis=1), values

    zeros = jnp.zeros(rewards.shape[0], jnp.float32)
    _, values, _ = jax.lax.while_loop(moving, iterate, (jnp.int32(0), zeros, zeros))
    q_values = backup(values)
    return jnp.max(q_values, axis=1), q_values, jnp.argmax(q_values, axis=1).astype(jnp.int32)
