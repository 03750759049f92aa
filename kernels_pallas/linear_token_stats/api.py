"""The public function: argument checks, layout of the unembedding, choice of implementation."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from kernels_pallas.linear_token_stats.reference import TokenStats, reference

IMPLEMENTATIONS = ("auto", "reference")


def _require_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")


def linear_token_stats(
    hidden: ArrayLike,
    unembedding: ArrayLike,
    tokens: ArrayLike,
    *,
    temperature: ArrayLike = 1.0,
    softcap: float | None = None,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    entropy: bool = True,
    implementation: str = "auto",
) -> TokenStats:
    """Log-probability of each row's token, entropy and normaliser, straight from hidden states.

    z = hidden · unembedding + bias, then softcap · tanh(z / softcap), then z / temperature;
    logsumexp = log Σ_v exp z_v, log_probs = z_token - logsumexp, entropy = logsumexp - Σ_v p_v z_v.

    Args:
        hidden: [N, D], float32 or bfloat16.
        unembedding: [D, V], or [V, D]; read as [D, V] if D = V.
        tokens: [N] integers in [0, V).
        temperature: above 0, a scalar, may be traced.
        softcap: above 0; None is none.
        bias: [V]; -inf forbids a token.
        mask: [N], bool or 0/1; rows with 0 give 0 in every field and no gradient, and may be NaN.
        entropy: False leaves the entropy out.
        implementation: "auto" or "reference".

    Returns:
        TokenStats of float32 [N]; entropy is None with entropy=False.

    Raises:
        ValueError: if shapes do not fit, temperature or softcap is not above 0, or the
            implementation is unknown.

    Example:
        >>> stats = linear_token_stats(jnp.zeros((1, 3)), jnp.ones((3, 4)), jnp.array([2]))
        >>> jnp.exp(stats.log_probs).tolist(), round(stats.entropy.item(), 4)
        ([0.25], 1.3863)
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {IMPLEMENTATIONS}, got {implementation!r}")
    for name, number in (("temperature", temperature), ("softcap", softcap)):
        if isinstance(number, int | float) and number <= 0:
            raise ValueError(f"{name} must be above 0, got {number}")
    hidden, unembedding, tokens = jnp.asarray(hidden), jnp.asarray(unembedding), jnp.asarray(tokens)
    if hidden.ndim != 2:
        raise ValueError(f"hidden must be [N, D], got shape {hidden.shape}")
    num_rows, width = hidden.shape
    if unembedding.ndim != 2 or width not in unembedding.shape:
        raise ValueError(
            f"unembedding must be [D, V] or [V, D] with D = {width}, got {unembedding.shape}"
        )
    unembedding = unembedding if unembedding.shape[0] == width else unembedding.T
    _require_shape("tokens", tokens, (num_rows,))
    if bias is not None:
        bias = jnp.asarray(bias)
        _require_shape("bias", bias, (unembedding.shape[1],))
    if mask is not None:
        mask = jnp.asarray(mask) != 0
        _require_shape("mask", mask, (num_rows,))
    temperature = jnp.asarray(temperature, jnp.float32)
    _require_shape("temperature", temperature, ())
    return reference(hidden, unembedding, tokens, mask, bias, temperature, softcap, entropy)
