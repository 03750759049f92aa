"""Low-rank adapters as functions on a transformer's parameters.

The adapters are a tree of their own, so that training them alone is differentiating with respect to
it: `loss(merge(params, adapters, scale=s))`, the parameters held constant.

Hu et al. (2021), "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rljax.types import Array, Key, Params

TARGETS = ("qkv", "out", "gate", "up", "down")
INPUT_AXES = {"out": 3}  # of a weight [N, *outputs, *inputs]; the others have one


def init_lora(
    key: Key, params: Params, *, rank: int, targets: Sequence[str] = TARGETS
) -> dict[str, dict[str, Array]]:
    """Adapters that change nothing yet: b is zero.

    Args:
      key: consumed.
      params: of a transformer, with stacked layers.
      rank: r, at least 1.
      targets: which weights of the layers get adapters.

    Returns:
      {name: {"a": [N, r, inputs], "b": [N, outputs, r]}} in the weights' dtype.

    Raises:
      ValueError: if the rank is below 1, or there is no such weight.
    """
    if rank < 1:
        raise ValueError(f"rank is {rank}: it must be at least 1")
    if unknown := [name for name in targets if name not in TARGETS]:
        raise ValueError(f"{unknown[0]!r} cannot have adapters: {', '.join(TARGETS)} can")
    adapters = {}
    for name, name_key in zip(targets, jax.random.split(key, len(targets))):
        weight = params["layers"][name]
        number, outputs, inputs = _sizes(name, weight)
        a = inputs**-0.5 * jax.random.normal(name_key, (number, rank, inputs))
        b = jnp.zeros((number, outputs, rank), weight.dtype)
        adapters[name] = {"a": a.astype(weight.dtype), "b": b}
    return adapters


def merge(params: Params, adapters: dict[str, dict[str, Array]], *, scale: float) -> Params:
    """The parameters with W + scale · b a for every W that has adapters; -scale takes them out.

    The paper's scale is α / r.
    """
    layers = dict(params["layers"])
    for name, adapter in adapters.items():
        change = jnp.matmul(adapter["b"], adapter["a"], preferred_element_type=jnp.float32)
        weight = layers[name]
        merged = weight.astype(jnp.float32) + scale * change.reshape(weight.shape)
        layers[name] = merged.astype(weight.dtype)
    return {**params, "layers": layers}


def _sizes(name: str, weight: Array) -> tuple[int, int, int]:
    """N, the product of the output axes, that of the input axes."""
    axes = INPUT_AXES.get(name, 1)
    shape = weight.shape
    return shape[0], math.prod(shape[1:-axes]), math.prod(shape[-axes:])
