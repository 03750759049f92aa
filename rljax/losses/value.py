"""The loss of a value function, with PPO's optional clip around the values it had at sampling."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real, Shaped

from rljax.ops.checks import Scalar, check_same_shape
from rljax.ops.masked import keep, masked_mean
from rljax.types import Metrics


def value_loss(
    values: Real[ArrayLike, "*S"],
    targets: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    *,
    behaviour_values: Real[ArrayLike, "*S"] | None = None,
    clip: Scalar | None = None,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Half the mean squared error; with `clip` the larger of the clipped and the unclipped error.

    loss = Σ_i ½ max((V_i - y_i)², (clip(V_i, V⁰_i - ε, V⁰_i + ε) - y_i)²) / denominator, over the
    unmasked i. The targets y and the behaviour values V⁰ are held constant.

    Args:
        values: V [*S], float.
        targets: y [*S], float.
        mask: [*S], bool or 0/1; None keeps everything.
        behaviour_values: V⁰ [*S], float: the values stored when the batch was sampled, not
            recomputed; read only with `clip`.
        clip: ε >= 0, in the unit of values; None is no clipping.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics `loss/value` (the same number) and, with `clip`,
        `value/clip_fraction` (share of the values outside their band).

    Raises:
        ValueError: if the shapes differ, or `clip` is given without `behaviour_values`.

    Example:
        >>> value_loss(jnp.array([1.0, 3.0]), jnp.array([2.0, 3.0]))[0].item()
        0.25

    Source: Schulman et al. (2017), Proximal Policy Optimization Algorithms, equation 9; the clip is
    that paper's published code, not its text.
    """
    check_same_shape(values=values, targets=targets, mask=mask, behaviour_values=behaviour_values)
    values, targets = keep(values, mask), jax.lax.stop_gradient(keep(targets, mask))
    error = jnp.square(values - targets)
    metrics = {}
    if clip is not None:
        if behaviour_values is None:
            raise ValueError(f"clip={clip} needs behaviour_values to clip around, got None")
        behaviour_values = jax.lax.stop_gradient(keep(behaviour_values, mask))
        low, high = behaviour_values - clip, behaviour_values + clip
        clipped_error = jnp.square(jnp.clip(values, low, high) - targets)
        # A select, not maximum: that would halve the gradient of a value on the edge of its band.
        error = jnp.where(clipped_error > error, clipped_error, error)
        outside = (values < low) | (values > high)
        metrics["value/clip_fraction"] = masked_mean(outside, mask, denominator=denominator)
    loss = 0.5 * masked_mean(error, mask, denominator=denominator)
    return loss, {"loss/value": loss, **metrics}
