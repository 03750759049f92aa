"""Log-probabilities of tokens under a language model.

The shift by one happens here and nowhere else: position t - 1 predicts token t, so rows of L tokens
give L - 1 numbers, and a token mask [B, L] goes with them as mask[:, 1:].
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Integer

from kernels_pallas.linear_token_stats import TokenStats
from kernels_pallas.linear_token_stats import linear_token_stats as linear_token_stats_of_rows
from rljax.ops.checks import Scalar, check_shape


def _check_temperature(temperature: Scalar) -> None:
    check_shape("temperature", temperature, ())
    if isinstance(temperature, int | float) and temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")


def token_log_probs(
    logits: Float[ArrayLike, "B L V"],
    tokens: Integer[ArrayLike, "B L"],
    *,
    temperature: Scalar = 1.0,
) -> Float[Array, "B L-1"]:
    """Log-probability of every token but the first, given those before it.

    y[:, t-1] = log_softmax(logits[:, t-1] / temperature)[tokens[:, t]].

    Args:
        logits: [B, L, V], any floating dtype; the last position is not used.
        tokens: [B, L] integers in [0, V).
        temperature: above 0, that of the sampler.

    Returns:
        [B, L - 1] float32; mask it with mask[:, 1:].

    Raises:
        ValueError: if tokens are not [B, L] or the temperature is not above 0.

    Example:
        >>> logits = jnp.log(jnp.array([[[0.25, 0.75], [0.5, 0.5]]]))
        >>> jnp.exp(token_log_probs(logits, jnp.array([[0, 1]]))).round(4).tolist()
        [[0.75]]
    """
    _check_temperature(temperature)
    if jnp.ndim(logits) != 3:
        raise ValueError(f"logits must be [B, L, V], got shape {jnp.shape(logits)}")
    check_shape("tokens", tokens, jnp.shape(logits)[:2])
    logits = jnp.asarray(logits)[:, :-1].astype(jnp.float32) / temperature
    chosen = jnp.take_along_axis(logits, jnp.asarray(tokens)[:, 1:, None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def linear_token_stats(
    hidden: Float[ArrayLike, "B L D"],
    unembedding: Float[ArrayLike, "_ _"],
    tokens: Integer[ArrayLike, "B L"],
    *,
    temperature: Scalar = 1.0,
    implementation: str = "auto",
) -> TokenStats:
    """Log-probability, entropy and normaliser of every token but the first, from hidden states.

    With z = hidden[:, t-1] · unembedding / temperature for token t: logsumexp = log Σ_v exp z_v,
    log_probs = z_token - logsumexp, entropy = logsumexp - Σ_v p_v z_v.

    Args:
        hidden: [B, L, D], float32 or bfloat16; the last position is not used.
        unembedding: [D, V] (or [V, D]; if D = V it is read as [D, V]).
        tokens: [B, L] integers in [0, V).
        temperature: above 0, that of the sampler.
        implementation: "auto" or "reference".

    Returns:
        TokenStats(log_probs, entropy, logsumexp), each [B, L - 1] float32.

    Raises:
        ValueError: if shapes do not fit, or the implementation is unknown.

    Example:
        >>> hidden, unembedding = jnp.zeros((1, 3, 5)), jnp.ones((5, 4))
        >>> stats = linear_token_stats(hidden, unembedding, jnp.array([[0, 1, 2]]))
        >>> jnp.exp(stats.log_probs).tolist()
        [[0.25, 0.25]]
    """
    _check_temperature(temperature)
    if jnp.ndim(hidden) != 3:
        raise ValueError(f"hidden must be [B, L, D], got shape {jnp.shape(hidden)}")
    check_shape("tokens", tokens, jnp.shape(hidden)[:2])
    predicting, predicted = jnp.asarray(hidden)[:, :-1], jnp.asarray(tokens)[:, 1:]
    stats = linear_token_stats_of_rows(
        predicting.reshape(-1, predicting.shape[-1]),
        unembedding,
        predicted.reshape(-1),
        temperature=temperature,
        implementation=implementation,
    )
    return jax.tree.map(lambda x: x.reshape(predicted.shape), stats)
