"""Which tokens may be sampled, and sampling one of them.

Nothing here sorts: what a sort would say is found by bisection over the values, whose cost does not
grow with the logarithm of the vocabulary and which needs no second array of indices.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from rljax.types import Array, Key

COLDEST = 1e-30  # logits divided by less would no longer be finite
BLOCK = 256  # tokens whose masses are summed before a place among the sums is sought


def check_filter(temperature: float, top_k: int, top_p: float) -> None:
    """Raises a ValueError of one line for a setting out of range."""
    if temperature != 0 and not COLDEST <= temperature < math.inf:
        raise ValueError(
            f"temperature is {temperature}: it must be at least 0 (0: greedy), finite, and not "
            f"below {COLDEST} otherwise"
        )
    if not top_k >= 0:
        raise ValueError(f"top_k is {top_k}: it must be at least 0 (0: all)")
    if not top_p >= 0:
        raise ValueError(f"top_p is {top_p}: it must be at least 0 (1 or more: all)")


def filter_logits(
    logits: Float[ArrayLike, "*S V"],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Float[Array, "*S V"]:
    """Logits of the distribution that is sampled: divided by the temperature, -inf where dropped.

    First the temperature, then exactly `top_k` tokens are kept, then of these the smallest number
    of most probable ones whose mass reaches `top_p`: a token is kept while the mass strictly before
    it is below that. Of equal logits the lower index comes first.

    Args:
        logits: [*S, V], any floating dtype; -inf is allowed.
        temperature: at least 0; 0 keeps the first argmax only.
        top_k: at least 0; 0, or V and more, keeps all.
        top_p: at least 0; the most probable token is always kept, and 1 or more keeps all.

    Returns:
        [*S, V] float32.

    Raises:
        ValueError: if a setting is out of range.

    Example:
        >>> filter_logits(jnp.array([3.0, 1.0, 2.0]), top_k=2).tolist()
        [3.0, -inf, 2.0]

    Source: Holtzman et al. (2020), "The Curious Case of Neural Text Degeneration", section 3.1
    (top-p); Fan et al. (2018), "Hierarchical Neural Story Generation", section 5 (top-k).
    """
    check_filter(temperature, top_k, top_p)
    logits = jnp.asarray(logits).astype(jnp.float32)
    if temperature == 0:
        first = jnp.argmax(logits, axis=-1, keepdims=True)
        return jnp.where(_indices(logits) == first, logits, -jnp.inf)
    logits /= temperature
    if 0 < top_k < logits.shape[-1]:
        kept = keep_until(logits, jnp.ones_like(logits), float(top_k))
        logits = jnp.where(kept, logits, -jnp.inf)
    if top_p < 1:
        kept = keep_until(logits, jax.nn.softmax(logits, axis=-1), max(top_p, 1e-30))
        logits = jnp.where(kept, logits, -jnp.inf)
    return logits


def keep_until(values: Array, weights: Array, limit: float) -> Array:
    """Bool [*S, V]: true while the weights strictly before, in descending order, are below `limit`.

    Of equal values the lower index comes first; the weights of equal values are equal.

    >>> keep_until(jnp.array([1.0, 3.0, 1.0]), jnp.ones(3), 2.0).tolist()
    [True, True, False]
    """
    order = _ordered(values)  # int32, in the order of the values

    def before(threshold: Array) -> Array:
        return jnp.sum(jnp.where(order > threshold[..., None], weights, 0.0), axis=-1)

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # before(low) >= limit > before(high)
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        enough = before(middle) < limit
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    top = jnp.max(order, axis=-1)
    bottom = jnp.min(order, axis=-1) - 1
    _, last = jax.lax.fori_loop(0, 32, halve, (bottom, top))  # the smallest value that is kept
    tied = order == last[..., None]
    rank = jnp.cumsum(tied, axis=-1) - tied
    mass = before(last)[..., None] + rank * weights
    return (order > last[..., None]) | (tied & (mass < limit))


def sample_tokens(
    keys: Key, logits: Float[Array, "*S V"]
) -> tuple[Int[Array, "*S"], Float[Array, "*S"]]:
    """One token of each row by its own key, and its log-probability.

    The cumulative distribution is inverted at one uniform number per row, first over sums of blocks
    of tokens and then within one block: V random numbers for each token would cost more than the
    rest of a decoding step on a CPU.

    Args:
        keys: [*S] keys, consumed.
        logits: [*S, V], float32, -inf where a token must not be drawn; one at least is finite.

    Returns:
        tokens [*S] int32, log_probs [*S] float32.

    Example:
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> sample_tokens(keys, jnp.array([[0.0, -jnp.inf], [-jnp.inf, 5.0]]))[0].tolist()
        [0, 1]
    """
    shape, vocab_size = logits.shape[:-1], logits.shape[-1]
    size = min(BLOCK, vocab_size)
    padding = [(0, 0)] * len(shape) + [(0, -vocab_size % size)]
    peak = jnp.max(logits, axis=-1, keepdims=True)
    masses = jnp.pad(jnp.exp(logits - peak), padding).reshape(*shape, -1, size)
    sums = jnp.cumsum(jnp.sum(masses, axis=-1), axis=-1)
    total = sums[..., -1]
    uniform = jax.vmap(jax.random.uniform)(keys.reshape(-1)).reshape(shape)
    wanted = (uniform * total)[..., None]

    block = _first(sums > wanted, sums > 0)
    before = jnp.where(block > 0, _take(sums, jnp.maximum(block - 1, 0)), 0.0)
    chosen = jnp.take_along_axis(masses, block[..., None, None], axis=-2)[..., 0, :]
    within = before[..., None] + jnp.cumsum(chosen, axis=-1)
    place = _first((within > wanted) & (chosen > 0), chosen > 0)
    tokens = block * size + place
    log_probs = _take(logits, tokens) - peak[..., 0] - jnp.log(total)
    return tokens.astype(jnp.int32), log_probs


def _first(wanted: Array, allowed: Array) -> Array:
    """The first index where `wanted`; where rounding left none, the last that is allowed."""
    last = wanted.shape[-1] - 1 - jnp.argmax(allowed[..., ::-1], axis=-1)
    return jnp.where(jnp.any(wanted, axis=-1), jnp.argmax(wanted, axis=-1), last)


def _take(values: Array, index: Array) -> Array:
    return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def _indices(values: Array) -> Array:
    return jax.lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)


def _ordered(values: Array) -> Array:
    """Float32 to int32 with the same order; -0.0 and 0.0 are one value."""
    bits = jax.lax.bitcast_convert_type(values + 0.0, jnp.int32)
    return jnp.where(bits < 0, jnp.int32(-(2**31)) - bits, bits)
