"""Estimates of KL(policy‖reference) from log-probabilities of actions that the policy sampled.

The divergence itself: `distributions.categorical_kl`, and `log_probs.linear_kl` of language models.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real

from rljax.ops.checks import check_same_shape

KL_KINDS = ("k1", "k2", "k3", "k3_unbiased")
MAX_LOG_RATIO = 20.0  # exp(20) = 4.9e8: large enough to hurt, small enough to add up in float32


def kl_estimate(
    log_probs: Real[ArrayLike, "*S"], ref_log_probs: Real[ArrayLike, "*S"], *, kind: str
) -> Float[Array, "*S"]:
    """KL(policy‖reference), estimated for each sampled action.

    With d = log_probs - ref_log_probs, and b(d) = d bounded to ±20:

        k1           d                    unbiased, may be negative
        k2           d² / 2               biased, its gradient is the unbiased one
        k3           exp(-b(d)) - 1 + d   unbiased, never negative where |d| <= 20
        k3_unbiased  the value of k3, the gradient d ∇log_probs of k2

    Averaged over the policy's own samples, d ∇log_probs is ∇KL(policy‖reference); the gradient of
    k1 averages to 0 and that of k3 to ∇KL(reference‖policy). For a sequence of actions this is
    the divergence of each action given the states visited, not of the states.
    Held constant: ref_log_probs. Beyond the bound exp is a constant and k3 has the slope of d.

    Args:
        log_probs: [*S] of the sampled actions under the policy, finite.
        ref_log_probs: [*S] of the same actions under the reference, finite.
        kind: one of `KL_KINDS`.

    Returns:
        [*S] float32.

    Raises:
        ValueError: for an unknown kind, or if the shapes differ.

    Example:
        >>> kl_estimate(jnp.array([-1.0, -2.0]), jnp.array([-1.5, -1.0]), kind="k1").tolist()
        [0.5, -1.0]

    Source: k1 to k3: Schulman, Approximating KL Divergence (2020). The bound is ours.
    """
    if kind not in KL_KINDS:
        raise ValueError(f"kind must be one of {', '.join(KL_KINDS)}, got {kind!r}")
    check_same_shape(log_probs=log_probs, ref_log_probs=ref_log_probs)
    log_probs = jnp.asarray(log_probs, jnp.float32)
    d = log_probs - jax.lax.stop_gradient(jnp.asarray(ref_log_probs, jnp.float32))
    if kind == "k1":
        return d
    if kind == "k2":
        return jnp.square(d) / 2
    k3 = jnp.expm1(-jnp.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO)) + d
    if kind == "k3":
        return k3
    zero = log_probs - jax.lax.stop_gradient(log_probs)  # its gradient is not 0
    return jax.lax.stop_gradient(k3) + jax.lax.stop_gradient(d) * zero
