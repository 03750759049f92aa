"""Faults that samplers were reported with, on models whose logits are known without computing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.llm.sampler import completion_log_probs, generate
from rljax.nets.transformer import TransformerConfig, make_transformer
from rljax.sharding import make_mesh
from rljax.types import Completions, LanguageNet

CONFIG = TransformerConfig(50, 1, 4, 1, 1, 2, 4)
PARAMS = make_transformer(CONFIG).init(jax.random.key(0))  # which most of the nets do not use


def net_of(logits) -> LanguageNet:
    """A net whose logits [B, T, V], of 50 tokens, are `logits(tokens, positions)`."""

    def forward(params, tokens, positions, attend, memory):
        return logits(tokens, positions), memory

    def hidden(params, tokens, *, mask):
        return logits(tokens, jnp.cumsum(mask, axis=1) - 1)

    return make_transformer(CONFIG)._replace(
        hidden=hidden,
        forward=forward,
        unembed=lambda params, x: x,
        unembedding=lambda params: jnp.eye(50),
    )


@pytest.mark.parametrize("num_rows", [0, 2])
def test_positions_go_on_after_the_real_tokens(num_rows):
    """sample-05: prompts of 3, 5 and 1 real tokens; each model says the position it is fed with.

    The first token comes from the last prompt position, 2, 4 and 0; then 3, 4 and 5, 6 and 1, 2
    are fed, not those after the padded length.
    """
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    net = net_of(lambda tokens, positions: 9.0 * jax.nn.one_hot(positions, 50))
    completions = generate(
        *(jax.random.key(0), net, PARAMS, mask + 7, mask),
        **dict(group_size=2, max_new_tokens=3, stop_tokens=(), pad_token=0, temperature=0.0),
        num_rows=num_rows,
    )
    expected = np.array([[2, 3, 4], [4, 5, 6], [0, 1, 2]])
    np.testing.assert_array_equal(completions.tokens, expected[:, None].repeat(2, axis=1))


def test_a_token_is_scored_by_the_position_before_it():
    """shift-01: of tokens 3, 1 | 0, 2 the completion's are scored by logits 1 and 2."""
    logits = jnp.full((4, 50), -1e9)
    logits = logits.at[:, :4].set(
        jnp.array(
            [[0.2, 1.0, -0.5, 0.0], [0.7, -0.3, 0.1, 0.4], [-1.0, 0.0, 0.5, 2.0], [3.0, 0, 0, 0]]
        )
    )
    net = net_of(lambda tokens, positions: logits[positions])
    tokens = jnp.array([[[0, 2]]])
    ones = jnp.ones((1, 1), bool)
    completions = Completions(
        tokens, jnp.ones(tokens.shape, bool), jnp.zeros(tokens.shape), 2 * ones.astype(int), ones
    )
    scored = completion_log_probs(
        net, PARAMS, jnp.array([[3, 1]]), jnp.ones((1, 2)), completions, stop_tokens=()
    )
    np.testing.assert_allclose(scored[0, 0], [-0.977389329985018, -1.842349582389822], atol=1e-6)


def test_members_of_a_group_differ_on_any_number_of_devices():
    """sample-09: one prompt, 8 completions of 16 uniform tokens of 50: none equals another."""
    net = net_of(lambda tokens, positions: jnp.zeros((*tokens.shape, 50)))

    def sample(key, devices):
        completions = generate(
            *(jax.random.key(key), net, PARAMS, jnp.array([[3]]), jnp.ones((1, 1))),
            **dict(group_size=8, max_new_tokens=16, stop_tokens=(), pad_token=0),
            mesh=make_mesh(devices),
        )
        return np.asarray(completions.tokens)

    one = sample(0, 1)
    assert len(np.unique(one[0], axis=0)) == 8
    for devices in (2, 4):
        np.testing.assert_array_equal(sample(0, devices), one)
    assert (sample(1, 1) != one).any(axis=-1).all()


@pytest.mark.parametrize("num_rows", [0, 3])
def test_completions_stand_with_their_prompt(num_rows):
    """group-04: repeated, not tiled: each completion repeats what its own prompt ends with."""
    net = net_of(lambda tokens, positions: 9.0 * jax.nn.one_hot(tokens, 50))
    completions = generate(
        *(jax.random.key(0), net, PARAMS, jnp.array([[5], [6], [7]]), jnp.ones((3, 1))),
        **dict(group_size=2, max_new_tokens=2, stop_tokens=(), pad_token=0, temperature=0.0),
        num_rows=num_rows,
    )
    assert completions.tokens[..., 0].tolist() == [[5, 5], [6, 6], [7, 7]]


def test_what_stands_on_padding_changes_nothing():
    """mask-01: whatever tokens stand where the mask is 0."""
    net = make_transformer(CONFIG)
    params = net.init(jax.random.key(0))
    mask = np.array([[0, 0, 1, 1], [1, 1, 1, 1]])
    tokens = np.array([[0, 0, 5, 6], [7, 8, 9, 10]])

    def sample(params, tokens):
        return generate(
            *(jax.random.key(0), net, params, tokens, mask),
            **dict(group_size=2, max_new_tokens=4, stop_tokens=(), pad_token=0),
        )

    clean, other = sample(params, tokens), sample(params, np.where(mask, tokens, 33))
    jax.tree.map(np.testing.assert_array_equal, clean, other)
