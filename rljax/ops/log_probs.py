"""Log-probabilities of tokens under a language model, and what else its distributions give.

The shift by one happens here and nowhere else: position t - 1 predicts token t, so rows of L tokens
give L - 1 numbers, and a token mask [B, L] goes with them as mask[:, 1:].
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Integer, Shaped

from kernels_pallas import TokenStats
from kernels_pallas import linear_kl as linear_kl_of_rows
from kernels_pallas import linear_token_stats as linear_token_stats_of_rows
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
    mask: Shaped[ArrayLike, "B L"] | None = None,
    entropy: bool = True,
    implementation: str = "auto",
) -> TokenStats:
    """Log-probability, entropy and normaliser of every token but the first, from hidden states.

    With z = hidden[:, t-1] · unembedding / temperature for token t: logsumexp = log Σ_v exp z_v,
    log_probs = z_token - logsumexp, entropy = logsumexp - Σ_v p_v z_v.

    Args:
        hidden: [B, L, D], float32 or bfloat16; the last position is not used.
        unembedding: [D, V] (or [V, D]; if D = V it is read as [D, V]), of hidden's dtype.
        tokens: [B, L] integers in [0, V); others have log-probability -inf.
        temperature: above 0, that of the sampler; held constant.
        mask: [B, L], bool or 0/1, of tokens; where it is 0, results are 0 without gradient.
        entropy: False leaves the entropy out.
        implementation: "auto", "reference", "xla", "pallas_tpu" or "pallas_gpu", as in
            `kernels_pallas.linear_token_stats`. The logits exist in "reference" only.

    Returns:
        TokenStats(log_probs, entropy, logsumexp), each [B, L - 1] float32; entropy may be None.

    Raises:
        ValueError: if shapes or dtypes do not fit, or the implementation is unknown or cannot run.

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
    if mask is not None:
        check_shape("mask", mask, jnp.shape(tokens))
        mask = (jnp.asarray(mask) != 0)[:, 1:].reshape(-1)
    predicting, predicted = jnp.asarray(hidden)[:, :-1], jnp.asarray(tokens)[:, 1:]
    stats = linear_token_stats_of_rows(
        predicting.reshape(-1, predicting.shape[-1]),
        unembedding,
        predicted.reshape(-1),
        temperature=temperature,
        mask=mask,
        entropy=entropy,
        implementation=implementation,
    )
    return jax.tree.map(lambda x: x.reshape(predicted.shape), stats)


def linear_kl(
    hidden: Float[ArrayLike, "B L D"],
    unembedding: Float[ArrayLike, "_ _"],
    ref_hidden: Float[ArrayLike, "B L E"],
    ref_unembedding: Float[ArrayLike, "_ _"],
    *,
    kind: str = "forward",
    implementation: str = "auto",
) -> Float[Array, "B L-1"]:
    """Exact KL(policy‖reference) of every token but the first, over the whole vocabulary.

    With p and q the softmax of hidden[:, t-1] · unembedding of each model, "forward":
    Σ_v p_v (log p_v - log q_v), "reverse": Σ_v q_v (log q_v - log p_v). What the estimates of
    `kl_estimate` average to over the policy's tokens, without their noise. Both models get
    gradients: hold the reference fixed with `stop_gradient`.

    Args:
        hidden: [B, L, D], float32 or bfloat16; the last position is not used.
        unembedding: [D, V] (or [V, D]; if D = V it is read as [D, V]), of hidden's dtype.
        ref_hidden: [B, L, E] of the reference; E may differ from D.
        ref_unembedding: [E, V] or [V, E], likewise.
        kind: "forward" or "reverse".
        implementation: as in `linear_token_stats`.

    Returns:
        [B, L - 1] float32; mask it with mask[:, 1:].

    Raises:
        ValueError: if shapes or dtypes do not fit, or the kind or implementation is unknown.

    Example:
        >>> policy, reference = jnp.log(jnp.array([[[0.5, 0.5]] * 2, [[0.25, 0.75]] * 2]))[:, None]
        >>> round(linear_kl(policy, jnp.eye(2), reference, jnp.eye(2)).item(), 4)
        0.1438
    """
    for name, x in (("hidden", hidden), ("ref_hidden", ref_hidden)):
        if jnp.ndim(x) != 3:
            raise ValueError(f"{name} must be [B, L, D], got shape {jnp.shape(x)}")
    rows = jnp.shape(hidden)[:2]
    check_shape("ref_hidden", ref_hidden, (*rows, jnp.shape(ref_hidden)[2]))
    of_policy, of_reference = (
        jnp.asarray(x)[:, :-1].reshape(-1, jnp.shape(x)[2]) for x in (hidden, ref_hidden)
    )
    divergence = linear_kl_of_rows(
        (of_policy, unembedding),
        (of_reference, ref_unembedding),
        kind=kind,
        implementation=implementation,
    )
    return divergence.reshape(rows[0], rows[1] - 1)
