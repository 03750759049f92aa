"""Which tokens may be sampled, against a sort in NumPy, and how often they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.llm.filters import filter_logits, keep_until, sample_tokens


def by_sorting(logits, temperature, top_k, top_p):
    """Indices kept, in float64, from a stable sort in descending order."""
    z = np.asarray(logits, np.float64) / temperature
    order = np.argsort(-z, kind="stable")
    if 0 < top_k < len(z):
        order = order[:top_k]
    p = np.exp(z[order] - z[order].max())
    p /= p.sum()
    before = np.cumsum(p) - p
    kept = (before < top_p) | (np.arange(len(p)) == 0) | (top_p >= 1)
    return set(order[kept])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 0.9), (0, 0.31), (5, 1.0), (5, 0.7), (40, 0.97), (99, 0.5), (1, 0.2)]
)
def test_filters_keep_what_a_sort_keeps(temperature, top_k, top_p):
    logits = 2 * np.random.default_rng(top_k).normal(size=(20, 41)).astype(np.float32)
    settings = dict(temperature=temperature, top_k=top_k, top_p=top_p)
    filtered = np.asarray(filter_logits(logits, **settings))
    for row, kept in zip(logits, np.isfinite(filtered)):
        assert set(np.flatnonzero(kept)) == by_sorting(row, **settings)
    scaled = logits / np.float32(temperature)
    np.testing.assert_array_equal(filtered[np.isfinite(filtered)], scaled[np.isfinite(filtered)])


def test_top_k_by_hand():
    """sample-03: exactly k, in the order of the logits; k >= V keeps all."""
    kept = {
        k: np.flatnonzero(np.isfinite(filter_logits(jnp.array([3, 1, 2, 0.0]), top_k=k))).tolist()
        for k in (0, 1, 2, 4, 10)
    }
    assert kept == {0: [0, 1, 2, 3], 1: [0], 2: [0, 2], 4: [0, 1, 2, 3], 10: [0, 1, 2, 3]}


def test_of_equal_logits_the_lower_index_comes_first():
    ties = jnp.array([1.0, 2.0, 1.0, 2.0, 1.0, -0.0, 0.0])
    assert keep_until(ties, jnp.ones(7), 3.0).tolist() == [True, True, False, True] + 3 * [False]
    assert keep_until(ties, jnp.ones(7), 6.0).tolist() == 6 * [True] + [False]
    # Four equal ones, a quarter each: two of them have less than a half before them.
    assert np.isfinite(filter_logits(jnp.zeros(4), top_p=0.5)).tolist() == [
        True,
        True,
        False,
        False,
    ]


def test_tokens_that_were_forbidden_stay_so():
    logits = jnp.array([-jnp.inf, 0.0, -jnp.inf, 1.0])
    for settings in ({}, {"top_k": 3}, {"top_p": 0.9999999}, {"top_k": 3, "top_p": 0.99}):
        filtered = filter_logits(logits, **settings)
        assert np.isfinite(filtered).tolist() == [False, True, False, True]


def test_top_p_at_its_ends():
    logits = jnp.array([0.0, 3.0, -40.0])
    assert np.isfinite(filter_logits(logits, top_p=1.0)).all()
    assert np.isfinite(filter_logits(logits, top_p=0.0)).tolist() == [False, True, False]


def test_temperatures_at_their_ends():
    """The coldest is greedy but for ties, a hot one nearly uniform; nothing is NaN."""
    logits = jnp.array([3.0, 90.0, -90.0, -jnp.inf])
    keys = jax.random.split(jax.random.key(0), 50)
    for temperature, least in ((1e-30, 1), (1e30, 3)):
        filtered = jnp.tile(filter_logits(logits, temperature=temperature), (50, 1))
        tokens, log_probs = sample_tokens(keys, filtered)
        assert len({*np.asarray(tokens).tolist()}) == least
        np.testing.assert_allclose(log_probs, -np.log(least), atol=1e-5)


def test_greedy_keeps_the_first_argmax():
    filtered = filter_logits(jnp.array([[1.0, 5.0, 5.0], [2.0, 0.0, 1.0]]), temperature=0.0)
    assert np.isfinite(filtered).tolist() == [[False, True, False], [True, False, False]]


def test_log_probs_are_those_at_the_temperature():
    """sample-01: log_softmax(logits / T)."""
    logits = filter_logits(jnp.array([2.0, 1.0, 0.0]), temperature=0.5)
    keys = jax.random.split(jax.random.key(0), 200)
    tokens, log_probs = sample_tokens(keys, jnp.tile(logits, (200, 1)))
    expected = np.array([-0.14293162849989968, -2.1429316284998996, -4.1429316284999])
    assert set(np.asarray(tokens)) == {0, 1, 2}
    np.testing.assert_allclose(log_probs, expected[np.asarray(tokens)], atol=1e-6)


@pytest.mark.parametrize("vocab_size", [3, 256, 700])  # below, at and above the size of a block
def test_tokens_are_sampled_in_proportion(vocab_size):
    """Frequencies of 40,000 draws within five deviations of each probability."""
    number = 40_000
    logits = np.random.default_rng(0).normal(size=vocab_size).astype(np.float32)
    logits[vocab_size // 2] = -np.inf
    logits[-1] += 4
    keys = jax.random.split(jax.random.key(3), number)
    tokens, log_probs = jax.jit(
        lambda keys, logits: sample_tokens(keys, jnp.broadcast_to(logits, (number, vocab_size)))
    )(keys, logits)
    exact = logits - np.logaddexp.reduce(logits.astype(np.float64))
    p = np.exp(exact)
    counts = np.bincount(tokens, minlength=vocab_size)
    assert counts[vocab_size // 2] == 0
    deviation = np.sqrt(number * p * (1 - p))
    assert (np.abs(counts - number * p) <= 5 * deviation + 1).all()
    np.testing.assert_allclose(log_probs, exact[np.asarray(tokens)], atol=2e-6)


def test_a_distribution_of_one_token_is_sampled_whatever_the_number():
    logits = jnp.full((1000, 600), -jnp.inf).at[:, 517].set(-80.0)
    tokens, log_probs = sample_tokens(jax.random.split(jax.random.key(0), 1000), logits)
    assert (np.asarray(tokens) == 517).all()
    np.testing.assert_array_equal(log_probs, 0)


def test_any_axes(key):
    logits = jax.random.normal(key, (2, 3, 11))
    tokens, log_probs = sample_tokens(jax.random.split(key, (2, 3)), logits)
    assert tokens.shape == log_probs.shape == (2, 3)
    assert sample_tokens(key, logits[0, 0])[0].shape == ()
    assert filter_logits(logits.astype(jnp.bfloat16), top_k=2, top_p=0.9).dtype == jnp.float32


@pytest.mark.errors
@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p"])
def test_settings_out_of_range(name):
    with pytest.raises(ValueError, match=f"{name} is -1: it must be at least 0"):
        filter_logits(jnp.zeros(3), **{name: -1})


@pytest.mark.errors
@pytest.mark.parametrize(
    "settings",
    [{"temperature": np.nan}, {"temperature": np.inf}, {"temperature": 1e-40}, {"top_p": np.nan}],
    ids=str,
)
def test_settings_that_would_sample_nothing(settings):
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=f"{name} is {value}: it must be at least 0"):
        filter_logits(jnp.zeros(3), **settings)
