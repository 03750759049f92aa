"""Updates of whole parameter trees."""

import jax
import jax.numpy as jnp

from rljax.ops.checks import Scalar, check_same_shape
from rljax.types import PyTree


def polyak_update(params: PyTree, target_params: PyTree, *, rate: Scalar) -> PyTree:
    """Moves target parameters a little way towards the trained ones.

    target <- rate · params + (1 - rate) · target, so after n steps towards fixed params the
    target holds 1 - (1 - rate)^n of them. rate = 1 is a hard copy.

    Args:
        params: the trained parameters, a tree of arrays; unchanged.
        target_params: the same tree; keep it in float32, bfloat16 cannot move by 0.5% of itself.
        rate: in [0, 1], a scalar.

    Returns:
        The new target tree in the dtypes of target_params; leaves that are not floating (counters,
        PRNG keys) are taken from params.

    Raises:
        ValueError: if the trees or the shapes of two leaves differ.

    Example:
        >>> online, target = {"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([0.0, 4.0])}
        >>> polyak_update(online, target, rate=0.5)["w"].tolist()
        [0.5, 3.0]

    Source: Lillicrap et al., 2016 (DDPG), algorithm 1.
    """

    def move(online, target):
        check_same_shape(params=online, target_params=target)
        online, target = jnp.asarray(online), jnp.asarray(target)
        if not jnp.issubdtype(target.dtype, jnp.floating):
            return online
        rate32 = jnp.asarray(rate, jnp.float32)
        mixed = rate32 * online.astype(jnp.float32) + (1.0 - rate32) * target.astype(jnp.float32)
        return mixed.astype(target.dtype)

    return jax.tree.map(move, params, target_params)
