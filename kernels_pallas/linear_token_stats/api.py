"""The public function: arguments checked, an implementation chosen, one call of it."""

from typing import Any, NamedTuple

from jax.typing import ArrayLike

from kernels_pallas import checks
from kernels_pallas.choose import choose, load
from kernels_pallas.linear_token_stats.differentiate import Inputs, differentiable_stats
from kernels_pallas.linear_token_stats.reference import reference
from kernels_pallas.records import Static, TokenStats


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
    vocab_axis: str | None = None,
    implementation: str = "auto",
    config: Any = None,
    interpret: Any = False,
) -> TokenStats:
    """Log-probability of each row's token, entropy and normaliser, without the logits [N, V].

    z = hidden · unembedding + bias, then softcap · tanh(z / softcap), then z / temperature;
    logsumexp = log Σ_v exp z_v, log_probs = z_token - logsumexp, entropy = logsumexp - Σ_v p_v z_v.

    Differentiable in hidden, unembedding and bias, in reverse mode and once (`reference`: any
    number of times), with p = exp(z - logsumexp) and g_* the gradients of the three results:

        dz_v = p_v (g_logsumexp - g_log_probs - g_entropy (log p_v + entropy))
               + 1[v = token] g_log_probs

    2NDV flops forward and 6NDV backward (`pallas_tpu`: 8NDV). Forward the unembedding is read once
    per block of rows ("xla": 1024), backward hidden and its gradient once per block of the
    vocabulary ("xla": 512; `pallas_*` choose by the chip). Beyond arguments and gradients the
    memory is a few [N], a few blocks, hidden transposed and its gradient in float32, and for
    bfloat16 in "xla" the gradient of the unembedding once more: 4 to 8 bytes per number of hidden
    and at most 2 per number of the unembedding. Logits, sums and results are float32 whatever
    comes in. Held constant: the temperature.

    Rows that are split over devices belong into `shard_map`: under `jit` alone XLA gathers them,
    and every device computes all of them.

    Args:
        hidden: [N, D], float32 or bfloat16.
        unembedding: [D, V], or [V, D]; read as [D, V] if D = V. Of hidden's dtype. Neither layout
            is copied.
        tokens: [N] integers in [0, V), of any width. Others have log-probability -inf, without
            gradient; entropy and logsumexp do not depend on the token.
        temperature: above 0, a scalar, may be traced.
        softcap: above 0 and finite, not traced; None is none.
        bias: [V]; -inf forbids a token (not with a softcap, which bounds it like any other number).
            A row in which all are forbidden has log_probs and logsumexp -inf, entropy 0 and no
            gradient.
        mask: [N], bool or 0/1; rows with 0 give 0 in every field and no gradient, may be NaN, and
            cost nothing.
        entropy: False leaves the entropy out.
        vocab_axis: inside `shard_map`, the mesh axis along which the vocabulary is split:
            unembedding and bias are this device's V / K columns, tokens count over all of them.
            Costs two all-reduces of a few [N], and one of the gradient of hidden.
        implementation: "auto", "reference", "xla", "pallas_tpu" or "pallas_gpu"; see `choose`.
        config: block sizes: `Blocks` of "xla", `tpu.mosaic.Config` of "pallas_tpu",
            `gpu.blocks.GpuBlocks` of "pallas_gpu"; None is the implementation's own choice.
        interpret: True runs the Pallas kernels anywhere, slowly, and in `shard_map` only with
            check_vma=False; or Pallas's InterpretParams.

    Returns:
        TokenStats of float32 [N]; entropy is None with entropy=False.

    Raises:
        ValueError: if shapes or dtypes do not fit, temperature or softcap is not above 0,
            vocab_axis is no axis of a `shard_map` around the call, rows are split over explicit
            mesh axes, config is of another implementation, or the implementation is unknown or
            cannot run here.

    Example:
        >>> stats = linear_token_stats(jnp.zeros((1, 3)), jnp.ones((3, 4)), jnp.array([2]))
        >>> jnp.exp(stats.log_probs).tolist(), round(stats.entropy.item(), 4)
        ([0.25], 1.3863)

    Source: the formulas are elementary. That logits need not be kept: Wijmans et al. (2024), "Cut
    your losses in large-vocabulary language models"; entropy and shards are ours.
    """
    call = prepare(
        *(hidden, unembedding, tokens, temperature, softcap, bias, mask),
        *(entropy, implementation, config, interpret),
    )
    return run(call, vocab_axis)


class Call(NamedTuple):
    """Checked arguments, and the implementation that gets them."""

    implementation: str
    static: Static
    inputs: Inputs


def prepare(
    hidden: ArrayLike,
    unembedding: ArrayLike,
    tokens: ArrayLike,
    temperature: ArrayLike,
    softcap: float | None,
    bias: ArrayLike | None,
    mask: ArrayLike | None,
    entropy: bool,
    implementation: str,
    config: Any,
    interpret: Any,
) -> Call:
    rows, matrix, transposed = checks.require_pair(hidden, unembedding)
    num_rows, width = rows.shape
    num_tokens = matrix.shape[0 if transposed else 1]
    chosen = choose(
        *("linear_token_stats", implementation),
        dtype=rows.dtype,
        shape=(num_rows, width, num_tokens),
        interpret=interpret,
    ).implementation
    checks.require_config(chosen, config)
    inputs = (
        rows,
        matrix,
        checks.require_tokens(tokens, num_rows),
        None if mask is None else checks.require_mask(mask, num_rows),
        None if bias is None else checks.require_bias(bias, num_tokens),
        1.0 / checks.require_positive("temperature", temperature),
    )
    if chosen != "reference":
        names = "hidden", "unembedding", "tokens", "mask", "bias"
        checks.require_local(**dict(zip(names, inputs)))
    static = Static(transposed, checks.require_softcap(softcap), entropy, config, interpret)
    return Call(chosen if num_rows else "reference", static, inputs)


def run(call: Call, vocab_axis: str | None) -> TokenStats:
    checks.require_axis(vocab_axis)
    if call.implementation == "reference":
        return reference(*call.inputs, call.static, vocab_axis)
    module = load("linear_token_stats", call.implementation)
    return differentiable_stats(module, call.static, vocab_axis, call.inputs)
