"""Generation needs parameters, the cache and O(B · V): never logits of whole texts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.llm.cache import BLOCK
from rljax.llm.sampler import completion_log_probs, generate
from rljax.nets.transformer import TransformerConfig, make_transformer
from rljax.types import Completions

FLOAT = 4  # bytes


def net_of(vocab_size):
    return make_transformer(TransformerConfig(vocab_size, 2, 16, 4, 2, 4, 24))


def sampler(net, group_size, size, num_rows):
    settings = dict(group_size=group_size, max_new_tokens=size, stop_tokens=(1,), pad_token=0)

    def sample(key, params, prompts):
        # The mask is made here: that of an argument could not be checked while tracing.
        return generate(
            *(key, net, params, prompts, jnp.ones_like(prompts)), **settings, num_rows=num_rows
        )

    return sample


def arrays_in(jaxpr):
    """Shapes of all that is computed, in loops and branches too."""
    for equation in jaxpr.eqns:
        yield from (out.aval.shape for out in equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from arrays_in(inner)


def inputs(net, prompts, length):
    shape = jax.ShapeDtypeStruct((prompts, length), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return key, jax.eval_shape(net.init, jax.random.key(0)), shape


@pytest.mark.parametrize("num_rows", [0, 5])
@pytest.mark.parametrize(("prompts", "length", "size"), [(2, 96, 7), (2, 8, 96), (1, 1024, 5)])
def test_no_array_has_a_vocabulary_for_each_token(prompts, length, size, num_rows):
    """V is a prime, so that it is seen in shapes: beside it stand B rows or D, not L or N."""
    net, group_size = net_of(1009), 3
    sample = sampler(net, group_size, size, num_rows)
    shapes = [*arrays_in(jax.make_jaxpr(sample)(*inputs(net, prompts, length)).jaxpr)]
    rows = num_rows or prompts * group_size
    most = 1280 * max(rows, net.config.model_size)  # a row of V is padded to whole blocks
    with_vocabulary = [s for s in shapes if np.prod(s) > 1009 and {1009, 1280, 256} & {*s}]
    assert len(with_vocabulary) > 10
    assert max(np.prod(s) for s in with_vocabulary) <= most
    scores = prompts * net.config.num_heads * min(2 * BLOCK, length) * length
    cache = 2 * (rows * size + (rows + prompts) * length) * 2 * 2 * 4
    assert max(np.prod(s) for s in shapes) <= max(most, scores, cache)


def compiled_bytes(vocab_size=509, prompts=2, length=64, group_size=3, size=32, num_rows=0):
    net = net_of(vocab_size)
    lowered = jax.jit(sampler(net, group_size, size, num_rows)).lower(*inputs(net, prompts, length))
    return lowered.compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [0, 3])
def test_what_is_allocated_grows_as_it_should(num_rows):
    """By what the compiler says: with V by a few rows of logits, with N and L by their caches."""
    few = compiled_bytes(num_rows=num_rows)
    rows = num_rows or 6
    more = compiled_bytes(vocab_size=509 + 4096, num_rows=num_rows)
    assert more - few <= 10 * rows * 4096 * FLOAT
    token = 2 * 2 * 2 * 4 * FLOAT  # layers, keys and values, KV heads, K
    longer = compiled_bytes(size=32 + 1024, num_rows=num_rows)
    assert longer - few <= 1024 * rows * (4 * token + 4 * 4 * FLOAT)
    # A prompt's activations count too: [L, F] and [BLOCK, L] scores for each of 4 heads.
    deeper = compiled_bytes(length=1024, num_rows=num_rows)
    activations = 8 * 24 + 3 * 4 * BLOCK
    assert deeper <= few + 1024 * (4 * (rows + 2) * token + 2 * activations * FLOAT)


@pytest.mark.parametrize("top_k", [0, 5])
def test_scoring_holds_blocks_of_logits(top_k):
    """`completion_log_probs` makes nothing with V; with a filter, [N, V] of one completion."""
    net, size = net_of(4099), 40
    tokens = jnp.zeros((2, 3, size), jnp.int32)
    completions = Completions(
        tokens, tokens == 0, jnp.zeros(tokens.shape), tokens[..., 0], tokens[..., 0] == 0
    )
    _, params, _ = inputs(net, 2, 8)
    prompts = np.ones((2, 8), int), np.ones((2, 8))
    jaxpr = jax.make_jaxpr(
        lambda params: completion_log_probs(
            *(net, params, *prompts, completions), stop_tokens=(), top_k=top_k
        )
    )(params)
    with_vocabulary = [np.prod(s) for s in arrays_in(jaxpr.jaxpr) if 4099 in s]
    assert max(with_vocabulary, default=0) == (size * 4099 if top_k else 0)
