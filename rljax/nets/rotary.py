"""Rotary positions and the ways to stretch them beyond the length a model was trained on."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from rljax.types import Array


class RopeScaling(NamedTuple):
    """How the frequencies are changed; named and meant as in Hugging Face's `rope_scaling`.

    linear: all are divided by `factor`.
    llama3: those with wavelengths above original_max_positions / low_freq_factor are, those below
      original_max_positions / high_freq_factor stay, with a ramp between.
    yarn: the ramp goes over dimensions, from `beta_fast` to `beta_slow` turns within
      original_max_positions; cosines and sines are scaled by `attention_factor`.
    """

    kind: str  # "linear", "llama3" or "yarn"
    factor: float
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None  # yarn; None: 0.1 ln(factor) + 1
    truncate: bool = True  # yarn: the ramp's ends are rounded outwards to whole dimensions


KINDS = ("linear", "llama3", "yarn")


def check_scaling(scaling: RopeScaling | None) -> None:
    """Raises a ValueError for a kind that is not known, or numbers out of range."""
    if scaling is None:
        return
    if scaling.kind not in KINDS:
        raise ValueError(f"rope_scaling is {scaling.kind!r}: it must be one of {', '.join(KINDS)}")
    if scaling.factor < 1:
        raise ValueError(f"rope_scaling.factor is {scaling.factor}: it must be at least 1")
    if scaling.kind != "linear" and scaling.original_max_positions < 1:
        raise ValueError(
            f"rope_scaling.original_max_positions is {scaling.original_max_positions}: "
            f"{scaling.kind} needs at least 1"
        )


def frequencies(head_size: int, theta: float, scaling: RopeScaling | None) -> tuple[Array, float]:
    """Radians per position [K / 2] float32, and the factor of cosines and sines.

    f_i = θ^(-2i/K), changed by `scaling`.

    >>> frequencies(4, 100.0, None)[0].round(3).tolist()
    [1.0, 0.10000000149011612]
    """
    plain = theta ** -(np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    if scaling is None:
        return jnp.asarray(plain, jnp.float32), 1.0
    slow = plain / scaling.factor
    if scaling.kind == "linear":
        return jnp.asarray(slow, jnp.float32), 1.0
    length = scaling.original_max_positions
    if scaling.kind == "llama3":
        turns = length * plain / (2 * np.pi)  # within the original length
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return jnp.asarray(kept * plain + (1 - kept) * slow, jnp.float32), 1.0

    def dimension(turns: float) -> float:
        """Where a frequency makes so many turns within the original length."""
        return head_size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_size - 1)
    width = (last - first) or 0.001
    kept = 1 - np.clip((np.arange(head_size // 2) - first) / width, 0.0, 1.0)
    factor = scaling.attention_factor
    factor = 0.1 * math.log(scaling.factor) + 1.0 if factor is None else factor
    return jnp.asarray(kept * plain + (1 - kept) * slow, jnp.float32), factor


def rotation(positions: Array, frequencies: Array, factor: float) -> tuple[Array, Array]:
    """Cosines and sines [B, T, K / 2] float32 for positions [B, T]."""
    angles = positions.astype(jnp.float32)[..., None] * frequencies[None, None]
    return factor * jnp.cos(angles), factor * jnp.sin(angles)


def rotate(x: Array, cosines: Array, sines: Array) -> Array:
    """Turns the pairs (x_i, x_{i + K/2}) of the heads of x [B, T, ..., K]; float32 within.

    Su et al. (2021), "RoFormer: Enhanced Transformer with Rotary Position Embedding", 3.4.2.
    """
    between = tuple(range(2, x.ndim - 1))
    cosines, sines = (jnp.expand_dims(a, between) for a in (cosines, sines))
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
