"""Diagonal Gaussians over real actions [A]; `tanh_gaussian` has those squashed into a box.

`log_std` is the logarithm of the standard deviation (not of the variance): a scalar, or of the
trailing shape of `mean`. The standard deviation must be a normal float32, |log_std| < 80.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real

from rljax.ops.checks import Scalar, broadcast_trailing, check_same_shape
from rljax.types import Key

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def standard_log_prob(z: Float[Array, "*S A"], log_std: Float[Array, "*S A"]) -> Float[Array, "*S"]:
    """Log-density of actions that are given by their noise, a = μ + σ z.

    Σ_i (-½ z_i² - log σ_i - ½ log 2π).

    Args:
        z: (a - μ) / σ [*S, A], float32; a σ below the rounding of μ loses it on the way to a.
        log_std: log σ [*S, A], float32.

    Returns:
        [*S] float32.

    Example:
        >>> round(standard_log_prob(jnp.zeros((1, 2)), jnp.zeros((1, 2)))[0].item(), 4)
        -1.8379
    """
    return jnp.sum(-0.5 * jnp.square(z) - log_std - _HALF_LOG_2PI, axis=-1)


def gaussian_log_prob(
    mean: Real[ArrayLike, "*S A"],
    log_std: Scalar | Float[ArrayLike, "..."],
    actions: Real[ArrayLike, "*S A"],
) -> Float[Array, "*S"]:
    """Log-density of each action vector.

    Σ_i (-½ z_i² - log σ_i - ½ log 2π), z = (a - μ) / σ.

    Args:
        mean: μ [*S, A], any real dtype.
        log_std: log σ, a scalar or of the trailing shape of mean.
        actions: a [*S, A], any real dtype.

    Returns:
        [*S] float32.

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> round(gaussian_log_prob(jnp.zeros((1, 2)), 0.0, jnp.zeros((1, 2)))[0].item(), 4)
        -1.8379
    """
    check_same_shape(mean=mean, actions=actions)
    mean = jnp.asarray(mean, jnp.float32)
    log_std = broadcast_trailing("log_std", log_std, mean.shape)
    z = (jnp.asarray(actions, jnp.float32) - mean) * jnp.exp(-log_std)
    return standard_log_prob(z, log_std)


def gaussian_entropy(log_std: Real[ArrayLike, "*S A"]) -> Float[Array, "*S"]:
    """Differential entropy in nats, H = Σ_i (log σ_i + ½ log 2πe).

    Args:
        log_std: log σ [*S, A], any real dtype; a state-independent [A] gives one number.

    Returns:
        [*S] float32.

    Raises:
        ValueError: for a scalar, which does not say how many dimensions there are.

    Example:
        >>> round(gaussian_entropy(jnp.array([-1.0, 1.0])).item(), 4)  # log 2πe
        2.8379
    """
    log_std = jnp.asarray(log_std, jnp.float32)
    if log_std.ndim == 0:
        raise ValueError(f"log_std must have shape [*S, A], got {log_std.shape}")
    return jnp.sum(log_std + (_HALF_LOG_2PI + 0.5), axis=-1)


def gaussian_kl(
    mean_p: Real[ArrayLike, "*S A"],
    log_std_p: Scalar | Float[ArrayLike, "..."],
    mean_q: Real[ArrayLike, "*S A"],
    log_std_q: Scalar | Float[ArrayLike, "..."],
) -> Float[Array, "*S"]:
    """KL(p‖q) in nats between diagonal Gaussians.

    Σ_i (log σ_q - log σ_p + (σ_p² + (μ_p - μ_q)²) / (2 σ_q²) - ½).
    Both sides get gradients: hold the old policy fixed with `stop_gradient`.

    Args:
        mean_p: μ_p [*S, A], any real dtype.
        log_std_p: log σ_p, a scalar or of the trailing shape of the means.
        mean_q: μ_q [*S, A].
        log_std_q: log σ_q, likewise.

    Returns:
        [*S] float32.

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> gaussian_kl(jnp.array([1.0, 2.0]), 0.0, jnp.array([0.0, 2.0]), 0.0).item()
        0.5
    """
    check_same_shape(mean_p=mean_p, mean_q=mean_q)
    mean_p, mean_q = jnp.asarray(mean_p, jnp.float32), jnp.asarray(mean_q, jnp.float32)
    log_std_p = broadcast_trailing("log_std_p", log_std_p, mean_p.shape)
    log_std_q = broadcast_trailing("log_std_q", log_std_q, mean_q.shape)
    log_var_ratio = 2 * (log_std_p - log_std_q)
    z = (mean_p - mean_q) * jnp.exp(-log_std_q)
    # expm1: the terms of order one must cancel exactly, for a trust region lives on a KL of 0.001.
    return 0.5 * jnp.sum(jnp.expm1(log_var_ratio) - log_var_ratio + jnp.square(z), axis=-1)


def gaussian_sample(
    key: Key, mean: Real[ArrayLike, "*S A"], log_std: Scalar | Float[ArrayLike, "..."]
) -> Float[Array, "*S A"]:
    """One action vector for each mean, a = μ + σ ε with ε ~ N(0, 1).

    Gradients flow to μ and σ (reparameterised): add `stop_gradient` for a score function.

    Args:
        key: consumed.
        mean: μ [*S, A], any real dtype.
        log_std: log σ, a scalar or of the trailing shape of mean.

    Returns:
        [*S, A] float32.

    Raises:
        ValueError: if log_std does not fit.

    Example:
        >>> gaussian_sample(jax.random.key(0), jnp.zeros((4, 2)), -1.0).shape
        (4, 2)
    """
    return gaussian_shift(jax.random.normal(key, jnp.shape(mean)), mean, log_std)


def gaussian_shift(
    noise: Float[ArrayLike, "*S A"],
    mean: Real[ArrayLike, "*S A"],
    log_std: Scalar | Float[ArrayLike, "..."],
) -> Float[Array, "*S A"]:
    """μ + σ ε: a sample of N(μ, σ²) if ε is standard normal noise.

    Args:
        noise: ε [*S, A], from `jax.random.normal`.
        mean: μ [*S, A], any real dtype.
        log_std: log σ, a scalar or of the trailing shape of mean.

    Returns:
        [*S, A] float32.

    Raises:
        ValueError: if the shapes differ or log_std does not fit.

    Example:
        >>> gaussian_shift(jnp.array([2.0]), jnp.array([1.0]), 0.0).tolist()
        [3.0]
    """
    check_same_shape(noise=noise, mean=mean)
    mean = jnp.asarray(mean, jnp.float32)
    return mean + jnp.exp(broadcast_trailing("log_std", log_std, mean.shape)) * noise
