"""What hidden states become besides logits: a value or a reward of each position."""

import jax
import jax.numpy as jnp

from rljax.types import Array, Key, Net, Params


def make_scalar_head(model_size: int, *, scale: float = 0.0) -> Net:
    """`apply(params, hidden [*S, D])` -> [*S] float32.

    A value head reads every position; a reward head is the same, read at the last real token
    (`ops.masked.last_index`).

    Args:
      model_size: D.
      scale: the weights' deviation is scale / √D; 0, so that all values are 0 at first, is what
        critics begin with.

    Raises:
      ValueError: if D < 1.

    >>> head = make_scalar_head(4)
    >>> head.apply(head.init(jax.random.key(0)), jnp.ones((2, 3, 4))).shape
    (2, 3)
    """
    if model_size < 1:
        raise ValueError(f"model_size is {model_size}: it must be at least 1")

    def init(key: Key) -> Params:
        weights = scale * model_size**-0.5 * jax.random.normal(key, (model_size,))
        return {"weights": weights, "bias": jnp.zeros(())}

    def apply(params: Params, hidden: Array) -> Array:
        values = jnp.matmul(
            hidden, params["weights"].astype(hidden.dtype), preferred_element_type=jnp.float32
        )
        return values + params["bias"].astype(jnp.float32)

    return Net(init, apply)
