"""Log-probabilities of completions once more, by the forward pass that a learner uses."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Integer, Shaped

from rljax.llm import decoding
from rljax.llm.settings import keeps_all_tokens, make_settings
from rljax.ops.log_probs import linear_token_stats
from rljax.types import Array, Completions, LanguageNet, Params


def completion_log_probs(
    net: LanguageNet,
    params: Params,
    prompt_tokens: Integer[ArrayLike, "P L"],
    prompt_mask: Shaped[ArrayLike, "P L"],
    completions: Completions,
    *,
    stop_tokens: Any,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_new_tokens: int = 0,
    implementation: str = "auto",
) -> Array:
    """The sampler's log-probabilities once more, by the forward pass that a learner uses.

    Where the sampler drew from all tokens, without their logits: a filter needs these.

    Args:
        net, params: the model.
        prompt_tokens, prompt_mask: [P, L], as they were given to `generate`.
        completions: what it returned.
        stop_tokens, temperature, top_k, top_p, min_new_tokens: as they were.
        implementation: of `linear_token_stats`, where no filter is on.

    Returns:
        [P, G, N] float32, 0 where the completions' mask is.
    """
    tokens, mask = check_prompts(prompt_tokens, prompt_mask, net.config.vocab_size)
    num, group, size = completions.tokens.shape
    settings = make_settings(
        net,
        group_size=group,
        max_new_tokens=size,
        stop_tokens=stop_tokens,
        pad_token=0,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_new_tokens=min_new_tokens,
    )
    generated = completions.tokens.reshape(-1, size)
    rows = jnp.concatenate([jnp.repeat(tokens, group, axis=0), generated], axis=1)
    rows_mask = jnp.concatenate(
        [jnp.repeat(mask, group, axis=0), completions.mask.reshape(-1, size)], axis=1
    )
    first = tokens.shape[1] - 1  # the position that predicts the first token generated
    hidden = net.hidden(params, rows, mask=rows_mask)[:, first:]
    matrix = net.unembedding(params)
    if matrix.dtype != jnp.float16 and keeps_all_tokens(settings, net.config.vocab_size):
        stats = linear_token_stats(
            hidden,
            matrix.T if matrix.shape[0] == matrix.shape[1] else matrix,  # square is read as [D, V]
            rows[:, first:],
            temperature=temperature,
            mask=rows_mask[:, first:],
            entropy=False,
            implementation=implementation,
        )
        return stats.log_probs.reshape(num, group, size)

    def score(inputs: tuple[Array, Array]) -> Array:  # one completion: [N, V] at a time
        hidden, tokens = inputs
        logits = decoding.sampled_logits(net.unembed(params, hidden), jnp.arange(size), settings)
        chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
        return chosen - jax.nn.logsumexp(logits, axis=-1)

    log_probs = jax.lax.map(score, (hidden[:, :-1], generated)).reshape(num, group, size)
    return jnp.where(completions.mask, log_probs, 0.0)


def check_prompts(tokens: Any, mask: Any, vocab_size: int) -> tuple[Array, Array]:
    tokens, mask = jnp.asarray(tokens), jnp.asarray(mask) != 0
    if tokens.ndim != 2 or tokens.shape != mask.shape:
        raise ValueError(
            f"prompt_tokens are {tokens.shape} and prompt_mask {mask.shape}: both must be [P, L]"
        )
    if 0 in tokens.shape:
        raise ValueError(
            f"prompt_tokens are {tokens.shape}: there must be one prompt and one token"
        )
    if not isinstance(mask, Tracer) and not bool(mask[:, -1].all()):
        row = int(jnp.argmin(mask[:, -1]))
        raise ValueError(f"prompt {row} has no token at its end: prompts are padded on the left")
    if not isinstance(tokens, Tracer) and not isinstance(mask, Tracer):
        outside = mask & ((tokens < 0) | (tokens >= vocab_size))
        if bool(outside.any()):
            token = int(tokens[outside][0])
            raise ValueError(
                f"prompt token {token} is outside the vocabulary, 0 ... {vocab_size - 1}"
            )
    return tokens.astype(jnp.int32), mask
