"""The public function."""

from typing import Any

from jax import Array
from jax.typing import ArrayLike

from kernels_pallas import checks
from kernels_pallas.blocks import vary_like
from kernels_pallas.choose import choose, load
from kernels_pallas.differentiate_kl import differentiable_kl
from kernels_pallas.linear_kl.reference import reference
from kernels_pallas.records import KLStatic

KINDS = ("forward", "reverse")


def linear_kl(
    of_p: tuple[ArrayLike, ArrayLike],
    of_q: tuple[ArrayLike, ArrayLike],
    *,
    kind: str = "forward",
    implementation: str = "auto",
    config: Any = None,
    interpret: Any = False,
) -> Array:
    """Exact KL divergence over the vocabulary of two models, row by row, without their logits.

    "forward": KL(p‖q) = Σ_v p_v (log p_v - log q_v), "reverse": KL(q‖p), in nats, with p and q the
    softmax of hidden · unembedding of each side.

    Differentiable in all four arrays, in reverse mode and once (`reference`: any number of times):
    with g the gradient of a row's KL(p‖q), dz_p = g p (log p - log q - KL) and dz_q = g (q - p).
    2NV(D_p + D_q) flops forward, 6NV(D_p + D_q) backward, and memory for the gradients, a few [N]
    and a few blocks. A model that is not differentiated, such as one held fixed by `stop_gradient`,
    has no gradients made: 2NV(3D_p + D_q) backward if that is q.

    Args:
        of_p: hidden [N, D_p] and unembedding [D_p, V] or [V, D_p] ([D, V] if D = V), float32 or
            bfloat16.
        of_q: the same of the other model; D_q may differ, N, V and the dtype may not.
        kind: "forward" or "reverse".
        implementation: "auto", "reference", "xla", "pallas_tpu" or "pallas_gpu"; see `choose`.
        config: block sizes, as in `linear_token_stats`; None is the implementation's own choice.
        interpret: True runs the Pallas kernels anywhere, slowly; or Pallas's InterpretParams.

    Returns:
        [N] float32.

    Raises:
        ValueError: if shapes or dtypes do not fit, rows are split over explicit mesh axes, config
            is of another implementation, or the kind or implementation is unknown or cannot run.

    Example:
        >>> p = jnp.log(jnp.array([[0.5, 0.5]])), jnp.eye(2)
        >>> q = jnp.log(jnp.array([[0.25, 0.75]])), jnp.eye(2)
        >>> round(linear_kl(p, q).item(), 4)  # ½ log 2 + ½ log ⅔
        0.1438

    Source: the formulas are elementary; the walk over blocks is that of `divergence`.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, got {kind!r}")
    for name, pair in (("of_p", of_p), ("of_q", of_q)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            kind_of = f"{len(pair)}" if isinstance(pair, tuple | list) else type(pair).__name__
            raise ValueError(f"{name} must be 2 arrays (hidden, unembedding), got {kind_of}")
    hidden_p, unembedding_p, transposed_p = checks.require_pair(*of_p, "_p")
    hidden_q, unembedding_q, transposed_q = checks.require_pair(*of_q, "_q")
    num_tokens = unembedding_p.shape[0 if transposed_p else 1]
    if len(hidden_q) != len(hidden_p):
        raise ValueError(
            f"hidden_p and hidden_q must have as many rows, got {len(hidden_p)} and {len(hidden_q)}"
        )
    if (other := unembedding_q.shape[0 if transposed_q else 1]) != num_tokens:
        raise ValueError(
            "unembedding_p and unembedding_q must have one vocabulary, "
            f"got {num_tokens} and {other}"
        )
    checks.require_dtype("hidden_q", hidden_q, hidden_p.dtype)
    chosen = choose(
        *("linear_kl", implementation),
        dtype=hidden_p.dtype,
        shape=(len(hidden_p), hidden_p.shape[1], hidden_q.shape[1], num_tokens),
        interpret=interpret,
    ).implementation
    checks.require_config(chosen, config)
    pairs = ((hidden_p, unembedding_p), (hidden_q, unembedding_q))
    static = KLStatic(transposed_p, transposed_q, config, interpret)
    if kind == "reverse":
        pairs = (pairs[1], pairs[0])
        static = static._replace(transposed_p=transposed_q, transposed_q=transposed_p)
    if chosen == "reference" or not len(hidden_p):
        return reference(*pairs, static)
    checks.require_local(
        hidden_p=hidden_p, unembedding_p=unembedding_p,
        hidden_q=hidden_q, unembedding_q=unembedding_q,
    )  # fmt: skip
    return differentiable_kl(load("linear_kl", chosen), static, *vary_like(pairs, pairs))
