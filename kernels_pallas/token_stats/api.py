"""The public function on logits, and its gradient."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from kernels_pallas import checks
from kernels_pallas.blocks import vary_like
from kernels_pallas.choose import choose, load
from kernels_pallas.outputs import coefficients, token_stats_of
from kernels_pallas.records import Static, TokenStats
from kernels_pallas.token_stats.reference import stats_of_logits

Inputs = tuple[Array, Array, Array]


def token_stats(
    logits: ArrayLike,
    tokens: ArrayLike,
    *,
    temperature: ArrayLike = 1.0,
    implementation: str = "auto",
    interpret: Any = False,
) -> TokenStats:
    """Log-probability of each row's token, entropy and normaliser of logits that exist.

    z = logits / temperature; logsumexp = log Σ_v exp z_v, log_probs = z_token - logsumexp,
    entropy = logsumexp - Σ_v p_v z_v.

    Differentiable in logits, in reverse mode and once (`reference`: any number of times), with
    p = exp(z - logsumexp) and g_* the gradients of the three results:

        dlogits_v = (p_v (g_logsumexp - g_log_probs - g_entropy (log p_v + entropy))
                     + 1[v = token] g_log_probs) / temperature

    About 8NV flops and as many bytes as the logits have forward, twice these bytes backward;
    nothing of size [N, V] is made but the gradient. Held constant: the temperature.

    Args:
        logits: [N, V], float32 or bfloat16; -inf forbids a token. A row of nothing but -inf has
            log_probs and logsumexp -inf, entropy 0 and no gradient.
        tokens: [N] integers in [0, V); others have log-probability -inf, without gradient.
        temperature: above 0, a scalar, may be traced.
        implementation: "auto", "reference", "xla", "pallas_tpu" or "pallas_gpu"; see `choose`.
        interpret: True runs the Pallas kernels anywhere, slowly; or Pallas's InterpretParams.

    Returns:
        TokenStats of float32 [N].

    Raises:
        ValueError: if shapes or dtypes do not fit, temperature is not above 0, or the
            implementation is unknown or cannot run here.

    Example:
        >>> logits = jnp.array([[0.0, 0.0, -jnp.inf]])
        >>> [round(x.item(), 4) for x in token_stats(logits, jnp.array([1]))]  # log 2 = .6931
        [-0.6931, 0.6931, 0.6931]

    Source: the formulas are elementary; the walk over blocks is that of `online`.
    """
    logits = checks.require_matrix("logits", logits, "[N, V]")
    tokens = checks.require_tokens(tokens, len(logits))
    inverse = lax.stop_gradient(1.0 / checks.require_positive("temperature", temperature))
    chosen = choose(
        "token_stats", implementation, dtype=logits.dtype, shape=logits.shape, interpret=interpret
    ).implementation
    if chosen == "reference" or not len(logits):
        return stats_of_logits(logits.astype(jnp.float32) * inverse, tokens)
    checks.require_local(logits=logits, tokens=tokens)
    inputs = (vary_like(logits, logits, tokens, inverse), tokens, inverse)
    return _stats(load("token_stats", chosen), Static(False, None, True, None, interpret), inputs)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _stats(implementation: Any, static: Static, inputs: Inputs) -> TokenStats:
    return _forward(implementation, static, inputs)[0]


def _forward(implementation: Any, static: Static, inputs: Inputs) -> Any:
    logits, tokens, inverse_temperature = inputs
    inside = (tokens >= 0) & (tokens < logits.shape[1])
    shard = implementation.forward(logits, tokens, inverse_temperature, static)
    stats = token_stats_of(shard, inside, None)
    return stats, (inputs, shard.peak, shard.log_sum, stats)


def _backward(implementation: Any, static: Static, saved: Any, gradients: TokenStats) -> tuple[Any]:
    inputs, peak, log_sum, stats = saved
    log_sum = jnp.where(log_sum == -jnp.inf, 0.0, log_sum)
    of_rows = coefficients(stats, gradients, None)
    return ((implementation.backward(*inputs, peak, log_sum, *of_rows, static), None, None),)


_stats.defvjp(_forward, _backward)
