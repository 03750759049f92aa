"""Diagonal Gaussians squashed into a box of actions by tanh, and the squashing alone.

Densities are those of the action that the environment gets, in its own unit. `log_std` as in
`gaussian`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Float, Real

from rljax.ops.checks import Scalar, as_float32, broadcast_trailing, check_same_shape
from rljax.ops.gaussian import gaussian_log_prob, standard_log_prob
from rljax.types import Key


def _bounds(low: ArrayLike, high: ArrayLike, shape: tuple[int, ...]) -> tuple[Array, Array]:
    if not isinstance(low, Tracer) and not isinstance(high, Tracer):
        widths = np.asarray(high, np.float64) - np.asarray(low, np.float64)
        if not np.all((widths > 0) & np.isfinite(widths)):
            raise ValueError(f"low must be below high, both finite, got low {low} and high {high}")
    return broadcast_trailing("low", low, shape), broadcast_trailing("high", high, shape)


def _squash(pre_tanh: Array, low: Array, high: Array) -> Array:
    actions = 0.5 * (high + low) + 0.5 * (high - low) * jnp.tanh(pre_tanh)
    return jnp.clip(actions, low, high)  # the last bit may lie outside


def _log_slope(pre_tanh: Array, half_width: Array) -> Array:
    """log |da/du| summed over the last axis: 1 - tanh² u = 4 / (e^u + e^-u)² never reaches 0."""
    log_one_minus_tanh2 = 2 * (math.log(2) - pre_tanh - jax.nn.softplus(-2 * pre_tanh))
    return jnp.sum(log_one_minus_tanh2 + jnp.log(half_width), axis=-1)


def tanh_gaussian_log_prob(
    mean: Real[ArrayLike, "*S A"],
    log_std: Scalar | Float[ArrayLike, "..."],
    pre_tanh: Real[ArrayLike, "*S A"],
    *,
    low: Scalar | Float[ArrayLike, "..."] = -1.0,
    high: Scalar | Float[ArrayLike, "..."] = 1.0,
) -> Float[Array, "*S"]:
    """Log-density of the action a = low + (high - low)(tanh(u) + 1)/2, with u ~ N(μ, σ²).

    log N(u; μ, σ) - Σ_i log(1 - tanh² u_i) - Σ_i log((high_i - low_i)/2),
    log(1 - tanh² u) = 2 (log 2 - u - softplus(-2u)).

    Args:
        mean: μ [*S, A], any real dtype.
        log_std: log σ, a scalar or of the trailing shape of mean.
        pre_tanh: u [*S, A], the sample before tanh; a itself would have lost it to rounding.
        low: finite lower ends of the actions, a scalar or of the trailing shape of mean.
        high: finite upper ends, likewise, above low.

    Returns:
        [*S] float32.

    Raises:
        ValueError: if the shapes do not fit, or low is not below high (known only outside jit).

    Example:
        >>> u = jnp.zeros((1, 2))  # log N = -log 2π, the slope of the action is 2 in each dimension
        >>> round(tanh_gaussian_log_prob(u, 0.0, u, low=-2.0, high=2.0)[0].item(), 4)
        -3.2242

    Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications (2018), appendix C; the
    scale of the box is ours.
    """
    check_same_shape(mean=mean, pre_tanh=pre_tanh)
    low, high = _bounds(low, high, jnp.shape(mean))
    log_probs = gaussian_log_prob(mean, log_std, pre_tanh)
    return log_probs - _log_slope(jnp.asarray(pre_tanh, jnp.float32), 0.5 * (high - low))


def tanh_squash(
    pre_tanh: Real[ArrayLike, "*S A"],
    *,
    low: Scalar | Float[ArrayLike, "..."] = -1.0,
    high: Scalar | Float[ArrayLike, "..."] = 1.0,
) -> Float[Array, "*S A"]:
    """Real numbers as actions in a box, a = low + (high - low)(tanh(u) + 1)/2.

    What a deterministic policy does with its outputs; of a tanh-Gaussian with mean u it is the
    median, the usual greedy action.

    Args:
        pre_tanh: u [*S, A], any real dtype.
        low: finite lower ends of the actions, a scalar or of the trailing shape of pre_tanh.
        high: finite upper ends, likewise, above low.

    Returns:
        [*S, A] float32, never outside [low, high].

    Raises:
        ValueError: if the shapes do not fit, or low is not below high (known only outside jit).

    Example:
        >>> tanh_squash(jnp.array([-50.0, 0.0, 50.0]), low=-2.0, high=4.0).tolist()
        [-2.0, 1.0, 4.0]
    """
    low, high = _bounds(low, high, jnp.shape(pre_tanh))
    return _squash(jnp.asarray(pre_tanh, jnp.float32), low, high)


def tanh_gaussian_shift(
    noise: Float[ArrayLike, "*S A"],
    mean: Real[ArrayLike, "*S A"],
    log_std: Scalar | Float[ArrayLike, "..."],
    *,
    low: Scalar | Float[ArrayLike, "..."] = -1.0,
    high: Scalar | Float[ArrayLike, "..."] = 1.0,
) -> tuple[Float[Array, "*S A"], Float[Array, "*S"]]:
    """The action in [low, high] that standard normal noise stands for, and its log-density.

    u = μ + σ ε, a = low + (high - low)(tanh(u) + 1)/2, log p(a) as `tanh_gaussian_log_prob`.
    Gradients flow to μ and σ through both results (reparameterised).

    Args:
        noise: ε [*S, A], from `jax.random.normal`.
        mean: μ [*S, A], any real dtype.
        log_std: log σ, a scalar or of the trailing shape of mean.
        low: finite lower ends of the actions, a scalar or of the trailing shape of mean.
        high: finite upper ends, likewise, above low.

    Returns:
        actions [*S, A] and log_probs [*S], float32.

    Raises:
        ValueError: if the shapes do not fit, or low is not below high (known only outside jit).

    Example:
        >>> actions, log_probs = tanh_gaussian_shift(jnp.zeros(1), jnp.zeros(1), 0.0, low=0.0)
        >>> actions.tolist(), round(log_probs.item(), 4)  # log (1/√2π) - log ½
        ([0.5], -0.2258)
    """
    check_same_shape(noise=noise, mean=mean)
    noise, mean = as_float32(noise, mean)
    low, high = _bounds(low, high, mean.shape)
    log_std = broadcast_trailing("log_std", log_std, mean.shape)
    pre_tanh = mean + jnp.exp(log_std) * noise
    # From the noise itself: a tiny σ would be lost in the rounding of (u - μ)/σ.
    log_probs = standard_log_prob(noise, log_std) - _log_slope(pre_tanh, 0.5 * (high - low))
    return _squash(pre_tanh, low, high), log_probs


def tanh_gaussian_sample_and_log_prob(
    key: Key,
    mean: Real[ArrayLike, "*S A"],
    log_std: Scalar | Float[ArrayLike, "..."],
    *,
    low: Scalar | Float[ArrayLike, "..."] = -1.0,
    high: Scalar | Float[ArrayLike, "..."] = 1.0,
) -> tuple[Float[Array, "*S A"], Float[Array, "*S"]]:
    """One action in [low, high] for each mean, and its log-density: `tanh_gaussian_shift` of noise.

    Args:
        key: consumed.
        mean: μ [*S, A], any real dtype.
        log_std: log σ, a scalar or of the trailing shape of mean.
        low: finite lower ends of the actions, a scalar or of the trailing shape of mean.
        high: finite upper ends, likewise, above low.

    Returns:
        actions [*S, A] and log_probs [*S], float32.

    Raises:
        ValueError: if the shapes do not fit, or low is not below high (known only outside jit).

    Example:
        >>> key, mean = jax.random.key(0), jnp.zeros((3, 2))
        >>> actions, log_probs = tanh_gaussian_sample_and_log_prob(key, mean, -1.0, low=0.0)
        >>> actions.shape, log_probs.shape, bool(jnp.all((0 <= actions) & (actions <= 1)))
        ((3, 2), (3,), True)
    """
    noise = jax.random.normal(key, jnp.shape(mean))
    return tanh_gaussian_shift(noise, mean, log_std, low=low, high=high)
