"""Losses of tokens, given the hidden states: the public function."""

from typing import Any

import jax
from jax import Array, lax
from jax.typing import ArrayLike

from kernels_pallas.blocks import vary_over, varying_axes
from kernels_pallas.checks import require_positive
from kernels_pallas.linear_token_stats.api import prepare, run
from kernels_pallas.linear_token_stats.elementwise import (
    LossFn,
    check_aux,
    check_loss,
    total_loss,
)
from kernels_pallas.linear_token_stats.gradient_in_forward import total_and_stats
from kernels_pallas.records import TokenStats


def linear_policy_loss(
    hidden: ArrayLike,
    unembedding: ArrayLike,
    tokens: ArrayLike,
    aux: Any,
    loss_fn: LossFn,
    *,
    denominator: ArrayLike = 1.0,
    temperature: ArrayLike = 1.0,
    softcap: float | None = None,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    entropy: bool = True,
    vocab_axis: str | None = None,
    implementation: str = "auto",
    config: Any = None,
    interpret: Any = False,
) -> tuple[Array, TokenStats]:
    """A loss that is a sum over tokens, with its gradient for the price of one forward pass more.

    loss = Σ_n mask_n loss_fn(log_probs_n, entropy_n, aux_n) / denominator

    with the statistics of `linear_token_stats`. `loss_fn` gets the numbers of one token, under
    `vmap`. Differentiable in reverse mode and once, in hidden, unembedding, bias, aux, denominator
    and what loss_fn closes over. With f' and f'' the derivatives of loss_fn by its log-probability
    and entropy, and g the gradient of the sum,

        dz_v = g (1[v = token] f' - p_v (f' + f'' (log p_v + entropy)))

    Only g is not known in the forward pass, and it is one number. With "xla" and without vocab_axis
    6NDV flops, and memory for the gradients in float32, hidden once more and the logits of a block
    of rows: [512, V] float32 on a CPU, [2048, V] elsewhere. Blocks of rows read the unembedding,
    and add to its gradient, once each. Otherwise the costs are those of `linear_token_stats`.

    Args:
        hidden, unembedding, tokens: as in `linear_token_stats`.
        aux: a pytree of arrays [N], such as advantages and behaviour log-probabilities.
        loss_fn: (log_prob [], entropy [] or None, aux of scalars) -> loss [], float. It may close
            over numbers and tables, traced or not, but not over arrays [N]: these are what aux is
            for. Tokens that are not in the vocabulary have a log-probability of -inf: mask them.
        denominator: above 0, a scalar, may be traced: the number of tokens in the whole batch, so
            that micro-batches add up.
        temperature, softcap, bias, mask, vocab_axis, interpret: as in `linear_token_stats`.
        entropy: False leaves it out, and loss_fn gets None.
        implementation: "auto" is "xla", whose products run at full speed on every platform.
        config: `Blocks` of "xla"; of the statistics' kernel for others.

    Returns:
        loss, float32 [], and the TokenStats it was made of, without gradient, for metrics.

    Raises:
        ValueError: as `linear_token_stats`; if a leaf of aux is not [N], or the denominator is not
            a number above 0; if loss_fn is not elementwise: it does not take scalars, does not give
            one number, or reduces one.

    Example:
        >>> hidden, unembedding, tokens = jnp.zeros((2, 3)), jnp.ones((3, 4)), jnp.array([0, 1])
        >>> advantages = jnp.array([1.0, 3.0])
        >>> loss, _ = linear_policy_loss(hidden, unembedding, tokens, advantages,
        ...     lambda log_prob, entropy, advantage: -advantage * log_prob, denominator=2)
        >>> round(loss.item(), 4)  # 2 log 4
        2.7726

    Source: gradients in the forward pass: Hsu et al. (2024), "Liger Kernel: efficient Triton
    kernels for LLM training", for the cross-entropy; here for any loss of this form, and with the
    incoming gradient.
    """
    call = prepare(
        *(hidden, unembedding, tokens, temperature, softcap, bias, mask, entropy),
        *("xla" if implementation == "auto" else implementation, config, interpret),
    )
    num_rows = len(call.inputs[0])
    denominator = require_positive("denominator", denominator)
    aux = check_aux(aux, num_rows)
    axes = varying_axes(call.inputs, aux) - {vocab_axis}
    loss_of_one, consts, axes = check_loss(loss_fn, entropy, aux, axes)
    aux = vary_over(aux, axes)
    if call.implementation == "xla" and vocab_axis is None and num_rows:
        inputs = vary_over(call.inputs, axes)
        both: Any = total_and_stats(loss_of_one, call.static, inputs, aux, consts)
        total, stats = both
    else:
        stats = vary_over(run(call, vocab_axis), axes)
        total = total_loss(loss_of_one, stats, call.inputs[3], aux, consts)
    return total / denominator, jax.tree.map(lax.stop_gradient, stats)
