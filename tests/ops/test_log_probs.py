"""Token log-probabilities and the reference kernel against enumeration and float64 NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas
from rljax.ops import log_probs as ops

token_log_probs = jax.jit(ops.token_log_probs)
linear_token_stats = jax.jit(ops.linear_token_stats, static_argnames="implementation")
row_stats = jax.jit(
    kernels_pallas.linear_token_stats, static_argnames=("softcap", "entropy", "implementation")
)
NAN, INF = np.nan, np.inf
LOGITS = np.array(
    [[[0.2, 1.0, -0.5, 0.0], [0.7, -0.3, 0.1, 0.4], [-1.0, 0.0, 0.5, 2.0], [3.0, 0.0, 0.0, 0.0]]]
)
TOKENS = np.array([[3, 1, 0, 2]])


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_logits_are_shifted_once():
    # Row 0 scores token 1: 1 - ln(e^.2 + e^1 + e^-.5 + e^0) = -.7131158; row 1 scores token 0:
    # .7 - ln(e^.7 + e^-.3 + e^.1 + e^.4) = -.9773893; row 2 token 2: .5 - ln(...) = -1.8423496.
    log_probs = token_log_probs(LOGITS, TOKENS)
    np.testing.assert_allclose(log_probs, [[-0.71311576, -0.97738933, -1.84234958]], rtol=1e-6)
    # Prompt of two tokens: the mask goes along as mask[:, 1:], and keeps the last two.
    mask = np.array([[0, 0, 1, 1]])[:, 1:]
    np.testing.assert_allclose(log_probs[mask == 1], [-0.97738933, -1.84234958], rtol=1e-6)
    np.testing.assert_allclose(-log_probs.mean(), 1.17761822, rtol=1e-6)


def test_the_last_logits_and_the_first_token_do_not_matter():
    other = LOGITS.copy()
    other[:, -1] = NAN
    first = np.array([[0, 1, 0, 2]])
    np.testing.assert_array_equal(token_log_probs(other, first), token_log_probs(LOGITS, TOKENS))
    grad = jax.grad(lambda x: jnp.sum(token_log_probs(x, TOKENS)))(jnp.float32(LOGITS))
    np.testing.assert_array_equal(grad[0, -1], np.zeros(4))
    assert (np.asarray(grad)[0, :-1] != 0).all()


def test_probabilities_of_all_sequences_add_up_to_one():
    # A policy that looks at the token before: 3 tokens, 4 positions, 27 continuations of token 1.
    table = np.random.default_rng(0).normal(size=(3, 3)) * 3
    tokens = np.array([(1, *rest) for rest in itertools.product(range(3), repeat=3)])
    log_probs = token_log_probs(table[tokens], tokens)
    np.testing.assert_allclose(np.exp(log_probs.sum(1)).sum(), 1.0, rtol=1e-5)


def test_temperature_divides_the_logits():
    # softmax(4, 2, 0): 4 - ln(e^4 + e^2 + 1) = -.14293163; halves of the logits' differences
    # doubled: -2.14293163, -4.14293163.
    logits = np.broadcast_to([2.0, 1.0, 0.0], (3, 2, 3))
    tokens = np.array([[0, 0], [0, 1], [0, 2]])
    expected = [[-0.14293163], [-2.14293163], [-4.14293163]]
    np.testing.assert_allclose(
        token_log_probs(logits, tokens, temperature=0.5), expected, rtol=1e-5
    )
    stats = linear_token_stats(logits, np.eye(3), tokens, temperature=0.5)
    np.testing.assert_allclose(stats.log_probs, expected, rtol=1e-5)


def test_forbidden_tokens_and_huge_logits_are_exact_with_finite_gradients():
    logits = np.array([[[1e4, -1e4, 0.0], [-INF, 0.0, 0.0], [0.0, 0.0, 0.0]]], np.float32)
    tokens = np.array([[0, 1, 2]])
    log_probs = token_log_probs(logits, tokens)
    np.testing.assert_allclose(log_probs, [[-2e4, -np.log(2)]], rtol=1e-6)
    grad = jax.grad(lambda x: jnp.sum(token_log_probs(x, tokens)))(logits)
    # onehot - softmax: (0, 1, 0) - (1, 0, 0), then (0, 0, 1) - (0, 1/2, 1/2).
    np.testing.assert_allclose(grad, [[[-1, 1, 0], [0, -0.5, 0.5], [0, 0, 0]]], atol=1e-6)
    assert token_log_probs(logits, np.array([[0, 0, 0]]))[0, 1] == -INF


def test_one_token_has_no_log_prob():
    assert token_log_probs(np.ones((2, 1, 3)), np.zeros((2, 1), int)).shape == (2, 0)
    stats = linear_token_stats(np.ones((2, 1, 3)), np.ones((3, 4)), np.zeros((2, 1), int))
    assert {field.shape for field in stats} == {(2, 0)}


def test_bfloat16_in_float32_out():
    logits = jnp.asarray(LOGITS, jnp.bfloat16)
    log_probs = token_log_probs(logits, TOKENS)
    assert log_probs.dtype == jnp.float32
    np.testing.assert_array_equal(log_probs, token_log_probs(logits.astype(jnp.float32), TOKENS))
    stats = linear_token_stats(logits, jnp.eye(4, dtype=jnp.bfloat16), TOKENS)
    assert {field.dtype for field in stats} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(stats.log_probs, log_probs, rtol=1e-6)


def random_rows(seed, num_rows=6, width=5, vocabulary=7):
    rng = np.random.default_rng(seed)
    hidden, unembedding = rng.normal(size=(num_rows, width)), rng.normal(size=(width, vocabulary))
    return hidden, unembedding, rng.integers(0, vocabulary, num_rows), rng.normal(size=vocabulary)


def stats_by_hand(logits, tokens):
    """From the probabilities of a float64 softmax, entropy as -Σ p log p."""
    log_p = log_softmax(logits)
    p = np.exp(log_p)
    normaliser = np.log(np.exp(logits).sum(-1))
    return log_p[np.arange(len(tokens)), tokens], -(p * log_p).sum(-1), normaliser


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"softcap": 1.5}, {"bias": True}])
def test_row_stats_equal_numpy(options):
    for seed in range(4):
        hidden, unembedding, tokens, bias = random_rows(seed)
        logits = hidden @ unembedding
        if "bias" in options:
            options = {"bias": bias}
            logits = logits + bias
        if "softcap" in options:
            logits = 1.5 * np.tanh(logits / 1.5)
        logits = logits / options.get("temperature", 1.0)
        expected = stats_by_hand(logits, tokens)
        for matrix in (unembedding, unembedding.T):
            stats = row_stats(hidden, matrix, tokens, **options)
            assert stats._fields == ("log_probs", "entropy", "logsumexp")
            for got, want in zip(stats, expected):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        plain = row_stats(hidden, unembedding, tokens, entropy=False, **options)
        assert plain.entropy is None
        np.testing.assert_allclose(plain.log_probs, stats.log_probs, rtol=1e-5)


def test_a_square_unembedding_is_read_as_width_by_vocabulary():
    hidden, unembedding, tokens, _ = random_rows(0, width=7)
    expected = stats_by_hand(hidden @ unembedding, tokens)
    stats = row_stats(hidden, unembedding, tokens)
    np.testing.assert_allclose(stats.log_probs, expected[0], rtol=1e-4)


def test_a_forbidden_token_has_no_share_in_the_entropy():
    # Logits 0, 0, -inf: p = 1/2, 1/2, 0; entropy ln 2.
    bias = np.array([0.0, 0.0, -INF])

    def stats(hidden):
        return row_stats(hidden, np.eye(3), np.array([0]), bias=bias)

    got = stats(np.zeros((1, 3)))
    np.testing.assert_allclose([x[0] for x in got], np.log([0.5, 2, 2]), rtol=1e-6)
    grad = jax.grad(lambda h: stats(h).log_probs[0] + 3 * stats(h).entropy[0])(jnp.zeros((1, 3)))
    np.testing.assert_allclose(grad, [[0.5, -0.5, 0.0]], atol=1e-6)


def test_weights_of_any_sign_reach_the_gradient():
    # d/dz Σ w (-log p) = w (softmax - onehot). Row 0: 2·(.66524, .24473, .09003) - 2·(1, 0, 0);
    # row 1 has weight 0; row 2: -.5·(.09003, .66524, .24473) + .5·(0, 1, 0).
    logits = jnp.array([[1.0, 0.0, -1.0], [0.5, 0.5, 0.0], [0.0, 2.0, 1.0]])
    tokens, weights = np.array([0, 2, 1]), np.array([2.0, 0.0, -0.5], np.float32)

    def loss(logits, mask=None):
        return -jnp.sum(weights * row_stats(logits, np.eye(3), tokens, mask=mask).log_probs)

    expected = np.array(
        [
            [-0.6695181, 0.4894569, 0.1800611],
            [0.0, 0.0, 0.0],
            [-0.0450153, 0.1673795, -0.1223642],
        ]
    )
    np.testing.assert_allclose(jax.grad(loss)(logits), expected, rtol=1e-5, atol=1e-6)
    expected[2] = 0.0
    masked = jax.grad(loss)(logits, np.array([1, 1, 0]))
    np.testing.assert_allclose(masked, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(masked[2], 0.0)


@pytest.mark.parametrize("garbage", [NAN, INF, 1e30])
def test_masked_rows_may_be_anything(garbage):
    hidden, unembedding, tokens, _ = random_rows(1)
    mask = np.array([1, 0, 1, 1, 0, 1])
    poisoned = np.where(mask[:, None] != 0, hidden, garbage)
    wrong = np.where(mask != 0, tokens, 10**6)

    def total(hidden, unembedding):
        stats = row_stats(hidden, unembedding, wrong, mask=mask)
        return sum(jnp.sum(jnp.sin(field)) for field in stats), stats

    grads, stats = jax.grad(total, (0, 1), has_aux=True)(
        jnp.float32(poisoned), jnp.float32(unembedding)
    )
    kept = row_stats(hidden[mask != 0], unembedding, tokens[mask != 0])
    for got, want in zip(stats, kept):
        np.testing.assert_allclose(got[mask != 0], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got[mask == 0], 0.0)
    np.testing.assert_array_equal(grads[0][mask == 0], 0.0)
    assert np.isfinite(grads[0]).all()
    clean = jax.grad(lambda u: total(jnp.where(mask[:, None] != 0, hidden, 0.0), u)[0])
    np.testing.assert_allclose(grads[1], clean(jnp.float32(unembedding)), rtol=1e-5)


@pytest.mark.parametrize("field", ["log_probs", "entropy", "logsumexp"])
def test_gradients_equal_finite_differences(field):
    hidden, unembedding, tokens, _ = random_rows(2, num_rows=2, width=3, vocabulary=4)
    index = ["log_probs", "entropy", "logsumexp"].index(field)

    def by_hand(hidden):
        logits = 2.0 * np.tanh(hidden @ unembedding / 2.0) / 0.7
        return stats_by_hand(logits, tokens)[index].sum()

    slopes = np.zeros(hidden.shape)
    for where in np.ndindex(hidden.shape):
        step = np.zeros(hidden.shape)
        step[where] = 1e-6
        slopes[where] = (by_hand(hidden + step) - by_hand(hidden - step)) / 2e-6

    def ours(hidden):
        stats = row_stats(hidden, unembedding, tokens, softcap=2.0, temperature=0.7)
        return jnp.sum(getattr(stats, field))

    np.testing.assert_allclose(jax.grad(ours)(jnp.float32(hidden)), slopes, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("implementation", ["auto", "reference", "xla"])
def test_hidden_states_give_the_same_as_their_logits(implementation):
    rng = np.random.default_rng(5)
    hidden, unembedding = rng.normal(size=(2, 4, 3)), rng.normal(size=(3, 6))
    tokens = rng.integers(0, 6, (2, 4))
    logits = hidden @ unembedding
    stats = linear_token_stats(
        hidden, unembedding, tokens, temperature=0.8, implementation=implementation
    )
    expected = token_log_probs(logits, tokens, temperature=0.8)
    np.testing.assert_allclose(stats.log_probs, expected, rtol=1e-4, atol=1e-5)
    flat = stats_by_hand(logits[:, :-1].reshape(-1, 6) / 0.8, tokens[:, 1:].ravel())
    for got, want in zip(stats, flat):
        np.testing.assert_allclose(got, want.reshape(2, 3), rtol=1e-4, atol=1e-5)


def test_a_mask_of_tokens_goes_along_with_the_shift():
    rng = np.random.default_rng(6)
    hidden, unembedding = rng.normal(size=(2, 4, 3)), rng.normal(size=(3, 6))
    tokens, mask = rng.integers(0, 6, (2, 4)), np.array([[1, 1, 0, 1], [0, 0, 1, 1]])
    poisoned = hidden.copy()
    poisoned[0, 1] = poisoned[1, 0] = NAN  # what would predict masked tokens
    stats = ops.linear_token_stats(poisoned, unembedding, tokens, mask=mask, entropy=False)
    plain = ops.linear_token_stats(hidden, unembedding, tokens)
    assert stats.entropy is None
    want = np.where(mask[:, 1:] != 0, plain.log_probs, 0.0)
    np.testing.assert_allclose(stats.log_probs, want, rtol=1e-5)


@pytest.mark.parametrize("kind", ["forward", "reverse"])
def test_divergence_of_two_models_by_enumeration(kind):
    rng = np.random.default_rng(7)
    hidden, ref_hidden = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 5))
    matrix, ref_matrix = rng.normal(size=(3, 6)), rng.normal(size=(6, 5))
    log_p = log_softmax(hidden @ matrix)[:, :-1]
    log_q = log_softmax(ref_hidden @ ref_matrix.T)[:, :-1]
    if kind == "reverse":
        log_p, log_q = log_q, log_p
    got = ops.linear_kl(hidden, matrix, ref_hidden, ref_matrix, kind=kind)
    np.testing.assert_allclose(got, (np.exp(log_p) * (log_p - log_q)).sum(-1), rtol=1e-4)
    same = ops.linear_kl(hidden, matrix, hidden, matrix, kind=kind)
    np.testing.assert_allclose(same, np.zeros((2, 3)), atol=1e-6)


def test_eager_equals_jit():
    np.testing.assert_allclose(
        ops.token_log_probs(LOGITS, TOKENS), token_log_probs(LOGITS, TOKENS), rtol=1e-6
    )
    hidden, unembedding, tokens, bias = random_rows(4)
    eager = kernels_pallas.linear_token_stats(hidden, unembedding, tokens, bias=bias)
    jitted = row_stats(hidden, unembedding, tokens, bias=bias)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), eager, jitted)


@pytest.mark.errors
def test_bad_input_raises():
    with pytest.raises(ValueError, match=r"tokens must have shape \(1, 4\), got \(1, 3\)"):
        ops.token_log_probs(LOGITS, TOKENS[:, 1:])
    with pytest.raises(ValueError, match=r"logits must be \[B, L, V\], got shape \(4, 4\)"):
        ops.token_log_probs(LOGITS[0], TOKENS[0])
    with pytest.raises(ValueError, match=r"hidden must be \[B, L, D\], got shape \(4, 4\)"):
        ops.linear_token_stats(LOGITS[0], np.eye(4), TOKENS[0])
    with pytest.raises(ValueError, match=r"tokens must have shape \(1, 4\), got \(4,\)"):
        ops.linear_token_stats(LOGITS, np.eye(4), TOKENS[0])
    for temperature in (0, -1.0):
        with pytest.raises(ValueError, match=f"temperature must be above 0, got {temperature}"):
            ops.token_log_probs(LOGITS, TOKENS, temperature=temperature)
        with pytest.raises(ValueError, match=f"temperature must be above 0, got {temperature}"):
            ops.linear_token_stats(LOGITS, np.eye(4), TOKENS, temperature=temperature)
    with pytest.raises(ValueError, match=r"'pallas_tpu' cannot run: it needs a tpu and this is a"):
        ops.linear_token_stats(LOGITS, np.eye(4), TOKENS, implementation="pallas_tpu")
    with pytest.raises(ValueError, match=r"mask must have shape \(1, 4\), got \(1, 3\)"):
        ops.linear_token_stats(LOGITS, np.eye(4), TOKENS, mask=np.ones((1, 3)))
    with pytest.raises(ValueError, match=r"hidden must be \[B, L, D\], got shape \(4, 4\)"):
        ops.linear_kl(LOGITS[0], np.eye(4), LOGITS, np.eye(4))
    with pytest.raises(ValueError, match=r"ref_hidden must have shape .*, got \(1, 3, 4\)"):
        ops.linear_kl(LOGITS, np.eye(4), LOGITS[:, 1:], np.eye(4))


@pytest.mark.errors
def test_bad_rows_raise():
    hidden, unembedding, tokens, bias = random_rows(0)
    stats = kernels_pallas.linear_token_stats
    with pytest.raises(ValueError, match=r"hidden must be \[N, D\], got shape \(5,\)"):
        stats(hidden[0], unembedding, tokens)
    with pytest.raises(ValueError, match=r"with D = 5, got \(4, 7\)"):
        stats(hidden, unembedding[1:], tokens)
    with pytest.raises(ValueError, match=r"tokens must have shape \(6,\), got \(6, 1\)"):
        stats(hidden, unembedding, tokens[:, None])
    with pytest.raises(ValueError, match=r"mask must have shape \(6,\), got \(6, 1\)"):
        stats(hidden, unembedding, tokens, mask=np.ones((6, 1)))
    with pytest.raises(ValueError, match=r"bias must have shape \(7,\), got \(6,\)"):
        stats(hidden, unembedding, tokens, bias=bias[1:])
    with pytest.raises(ValueError, match=r"temperature must have shape \(\), got \(6,\)"):
        stats(hidden, unembedding, tokens, temperature=np.ones(6))
    with pytest.raises(ValueError, match=r"softcap must be above 0, got 0\.0"):
        stats(hidden, unembedding, tokens, softcap=0.0)
