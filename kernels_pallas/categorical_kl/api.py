"""The public function on logits."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from kernels_pallas import checks
from kernels_pallas.blocks import vary_like
from kernels_pallas.categorical_kl.reference import divergence
from kernels_pallas.choose import choose, load
from kernels_pallas.differentiate_kl import differentiable_kl
from kernels_pallas.records import KLStatic


def categorical_kl(
    logits_p: ArrayLike,
    logits_q: ArrayLike,
    *,
    implementation: str = "auto",
    interpret: Any = False,
) -> Array:
    """KL(p‖q) = Σ_v p_v (log p_v - log q_v) of each row, in nats, from logits that exist.

    Differentiable in both, in reverse mode and once (`reference`: any number of times): with g the
    gradient of a row's divergence, dlogits_p = g p (log p - log q - KL), dlogits_q = g (q - p).
    About 10NV flops and as many bytes as both logits have forward, twice these bytes backward;
    nothing of size [N, V] is made but the gradients.

    Args:
        logits_p: [N, V], float32 or bfloat16; -inf is probability 0, and adds nothing.
        logits_q: [N, V], of the same dtype, likewise.
        implementation: "auto", "reference", "xla", "pallas_tpu" or "pallas_gpu"; see `choose`.
        interpret: True runs the Pallas kernels anywhere, slowly; or Pallas's InterpretParams.

    Returns:
        [N] float32; +inf, with gradient 0, where a token has a logit of -inf in q and not in p. A
        row of nothing but -inf in p has 0.

    Raises:
        ValueError: if shapes or dtypes do not fit, or the implementation is unknown or cannot run
            here.

    Example:
        >>> p, q = jnp.array([[0.0, -jnp.inf]]), jnp.array([[0.0, 0.0]])
        >>> round(categorical_kl(p, q).item(), 4), categorical_kl(q, p).item()
        (0.6931, inf)

    Source: the formulas are elementary; the walk over blocks is that of `divergence`.
    """
    logits_p = checks.require_matrix("logits_p", logits_p, "[N, V]")
    logits_q = checks.require_matrix("logits_q", logits_q, "[N, V]")
    checks.require_shape("logits_q", logits_q, logits_p.shape)
    checks.require_dtype("logits_q", logits_q, logits_p.dtype)
    chosen = choose(
        *("categorical_kl", implementation),
        dtype=logits_p.dtype,
        shape=logits_p.shape,
        interpret=interpret,
    ).implementation
    if chosen == "reference" or not len(logits_p):
        return divergence(logits_p.astype(jnp.float32), logits_q.astype(jnp.float32))
    checks.require_local(logits_p=logits_p, logits_q=logits_q)
    inputs = vary_like((logits_p, logits_q), logits_p, logits_q)
    static = KLStatic(False, False, None, interpret)
    return differentiable_kl(load("categorical_kl", chosen), static, *inputs)
