"""The categorical distribution against float64 sums over all actions, with -inf logits as well."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.distributions import (
    categorical_entropy,
    categorical_expectation,
    categorical_kl,
    categorical_log_prob,
    categorical_sample,
    gumbel_max,
    mask_logits,
)

INF = np.inf


def probabilities(logits):
    """softmax in float64, row by row, of the live actions only."""
    logits = np.asarray(logits, np.float64)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def random_logits(seed, scale):
    return (scale * np.random.default_rng(seed).normal(size=(5, 4))).astype(np.float32)


def grad_of_sum(f):
    return jax.jit(jax.grad(lambda x: jnp.sum(f(x))))


def test_entropy_by_hand():
    # p = softmax([1, 0, -1]) = [.6652, .2447, .0900]; H = -Σ p log p; dH/dz_i = -p_i (log p_i + H).
    logits = jnp.array([1.0, 0.0, -1.0])
    np.testing.assert_allclose(categorical_entropy(logits), 0.8323955818, rtol=1e-6)
    gradient = [-0.2825874511, 0.1407703575, 0.1418170936]
    np.testing.assert_allclose(grad_of_sum(categorical_entropy)(logits), gradient, atol=1e-6)


def test_expectation_by_hand():
    # p = (¼, ¾): E = ¼·8 + ¾·4 = 5; dE/dz_i = p_i (x_i - E) = ±¾; dE/dx = p. A third action that
    # cannot be taken may have any value.
    x = jnp.array([8.0, 4.0])
    for extra in ([], [0.0], [np.nan], [INF]):
        logits = jnp.concatenate([jnp.array([0.0, np.log(3.0)]), jnp.full(len(extra), -INF)])
        value, (to_logits, to_values) = jax.value_and_grad(categorical_expectation, (0, 1))(
            logits, jnp.concatenate([x, jnp.array(extra, jnp.float32)])
        )
        zeros = [0.0] * len(extra)
        np.testing.assert_allclose(value, 5.0, rtol=1e-6)
        np.testing.assert_allclose(to_logits, [0.75, -0.75, *zeros], rtol=1e-6)
        np.testing.assert_allclose(to_values, [0.25, 0.75, *zeros], rtol=1e-6)


def test_expectation_against_float64():
    for scale in (1.0, 30.0):
        logits, values = random_logits(2, scale), random_logits(3, 5.0)
        wanted = np.sum(probabilities(logits) * values, axis=-1)
        np.testing.assert_allclose(categorical_expectation(logits, values), wanted, rtol=1e-5)
    assert categorical_expectation(jnp.full((1, 2), -INF), jnp.full((1, 2), np.nan))[0] == 0.0


def test_masked_actions_by_hand():
    # Over the live actions: log softmax([2, 0.5]) = -log(1 + e^-1.5), and 1.5 less.
    logits = mask_logits(jnp.array([2, -1, 0.5]), jnp.array([1, 0, 1]))
    log_probs = categorical_log_prob(jnp.broadcast_to(logits, (3, 3)), jnp.arange(3))
    np.testing.assert_allclose(log_probs, [-0.2014132780, -INF, -1.7014132780], rtol=1e-6)


def test_values_and_gradients_against_float64():
    actions = np.array([0, 3, 1, 2, 3])

    @jax.jit
    def values_and_gradients(logits, other):
        return (
            (categorical_log_prob(logits, actions), categorical_entropy(logits)),
            categorical_kl(logits, other),
            grad_of_sum(lambda z: categorical_log_prob(z, actions))(logits),
            grad_of_sum(categorical_entropy)(logits),
            grad_of_sum(lambda z: categorical_kl(z, other))(logits),
            grad_of_sum(lambda z: categorical_kl(logits, z))(other),
        )

    for scale in (0.1, 1.0, 10.0):
        logits, other = random_logits(1, scale), random_logits(2, scale)
        p, q = probabilities(logits), probabilities(other)
        log_prob = np.log(p)[np.arange(5), actions]
        entropy = -np.sum(p * np.log(p), axis=-1)
        kl = np.sum(p * np.log(p / q), axis=-1)
        expected = (
            (log_prob, entropy),
            kl,
            np.eye(4)[actions] - p,  # d log p_a/dz_i = [i = a] - p_i
            -p * (np.log(p) + entropy[:, None]),  # dH/dz_i = -p_i (log p_i + H)
            p * (np.log(p / q) - kl[:, None]),  # dKL/dz_i = p_i (log p_i/q_i - KL) on p's side
            q - p,  # and q_i - p_i on q's
        )
        for actual, exact in zip(values_and_gradients(logits, other), expected):
            np.testing.assert_allclose(actual, exact, rtol=2e-5, atol=1e-6 * max(scale, 1))


def test_masking_equals_leaving_the_actions_out():
    raw, other, mask = random_logits(3, 2.0), random_logits(4, 2.0), np.array([1, 0, 1, 1])
    masks = jnp.broadcast_to(mask, raw.shape)

    def values_and_gradients(quantities):
        sums = lambda *args: jnp.stack([jnp.sum(x) for x in quantities(*args)])  # noqa: E731
        return jax.jit(lambda *args: (quantities(*args), jax.jacrev(sums)(*args)))

    @values_and_gradients
    def masked(z, other):
        z, other = mask_logits(z, masks), mask_logits(other, masks)
        log_probs = categorical_log_prob(z, jnp.array([0, 2, 3, 0, 3]))
        return log_probs, categorical_entropy(z), categorical_kl(z, other)

    @values_and_gradients
    def left_out(z, other):
        log_probs = categorical_log_prob(z, jnp.array([0, 1, 2, 0, 2]))
        return log_probs, categorical_entropy(z), categorical_kl(z, other)

    values, gradients = left_out(raw[:, mask == 1], other[:, mask == 1])
    for poison in (7.0, np.nan, INF, -INF, -1e30):
        raw[:, 1] = other[:, 1] = poison
        masked_values, masked_gradients = masked(raw, other)
        np.testing.assert_allclose(masked_values, values, rtol=1e-6, atol=1e-7)
        kept = np.asarray(masked_gradients)[..., mask == 1]
        np.testing.assert_allclose(kept, gradients, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(masked_gradients[..., 1], np.zeros((3, 5)))


@pytest.mark.parametrize("dtype", [bool, np.int32, np.float32, jnp.bfloat16])
def test_mask_of_any_dtype(dtype):
    masked = mask_logits(jnp.array([[1.0, 2.0]]), jnp.array([[1, 0]]).astype(dtype))
    np.testing.assert_array_equal(masked, [[1.0, -INF]])


def test_kl_where_probabilities_are_zero():
    certain, even = jnp.array([0.0, -INF]), jnp.array([0.0, 0.0])
    cases = [
        (certain, certain, 0.0),  # 0 log 0/0 = 0
        (certain, even, np.log(2.0)),
        (even, certain, INF),  # p > 0 where q = 0
        (jnp.array([-INF, 0.0]), certain, INF),
        (jnp.array([1.0, 1.0, -INF]), jnp.array([0.0, 0.0, -INF]), 0.0),
    ]
    value_and_gradients = jax.jit(jax.value_and_grad(categorical_kl, argnums=(0, 1)))
    for p, q, expected in cases:
        value, gradients = value_and_gradients(p, q)
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)
        assert np.isfinite(gradients).all()
    # In a batch, an infinite row leaves the others alone.
    rows = categorical_kl(jnp.stack([even, certain]), jnp.stack([certain, even]))
    np.testing.assert_allclose(rows, [INF, np.log(2.0)], rtol=1e-6)


def test_log_prob_of_a_forbidden_action_has_no_gradient():
    logits, actions = jnp.array([[0.3, -INF, 1.0]]), jnp.array([1])
    assert categorical_log_prob(logits, actions)[0] == -INF
    gradient = grad_of_sum(lambda z: categorical_log_prob(z, actions))(logits)
    np.testing.assert_array_equal(gradient, np.zeros((1, 3)))


def test_row_without_any_live_action():
    dead = jnp.full((1, 3), -INF)
    action = jnp.array([1])
    assert categorical_log_prob(dead, action)[0] == -INF
    assert categorical_entropy(dead)[0] == 0
    assert categorical_kl(dead, jnp.zeros((1, 3)))[0] == 0
    for f in (
        lambda z: categorical_log_prob(z, action),
        categorical_entropy,
        lambda z: categorical_kl(z, z),
        lambda z: categorical_kl(z, jnp.zeros((1, 3))),
    ):
        np.testing.assert_array_equal(grad_of_sum(f)(dead), np.zeros((1, 3)))


def test_huge_logits_neither_overflow_nor_lose_the_rest():
    # -3e38 less 3e38 overflows to -inf: the action is as dead as one of logit -inf.
    logits = jnp.array([[1e4, 1e4 - 1, -3e38], [3e38, -3e38, 0.0], [-1e30, -1e30, -3e38]])
    # Row 0 is softmax([1, 0]), row 1 certain, row 2 even between two.
    entropy = [0.5822031098, 0.0, np.log(2.0)]
    np.testing.assert_allclose(categorical_entropy(logits), entropy, rtol=1e-6)
    log_probs = categorical_log_prob(logits, jnp.array([0, 0, 1]))
    np.testing.assert_allclose(log_probs, [-0.3132616875, 0.0, -np.log(2.0)], rtol=1e-6)
    assert np.isfinite(grad_of_sum(categorical_entropy)(logits)).all()
    np.testing.assert_allclose(categorical_kl(logits, logits), np.zeros(3), atol=1e-7)


def test_nan_is_not_taken_for_a_forbidden_action():
    logits = jnp.array([[0.0, jnp.nan, 1.0]])
    assert np.isnan(categorical_log_prob(logits, jnp.array([0]))).all()
    assert np.isnan(categorical_entropy(logits)).all()
    assert np.isnan(categorical_kl(logits, jnp.zeros((1, 3)))).all()


def test_sampling_frequencies_and_forbidden_actions(key):
    # Standard error of a frequency over 20,000 draws: at most 0.0035.
    logits = jnp.broadcast_to(jnp.array([2.0, -INF, 0.5, -INF]), (20_000, 4))
    actions = np.asarray(categorical_sample(key, logits))
    assert actions.dtype == np.int32
    frequencies = np.bincount(actions, minlength=4) / len(actions)
    np.testing.assert_allclose(frequencies[[0, 2]], [0.8175744762, 0.1824255238], atol=0.02)
    np.testing.assert_array_equal(frequencies[[1, 3]], 0.0)


def test_rows_are_sampled_independently(key):
    logits = jnp.zeros((2, 4000, 2))
    first, second = np.asarray(categorical_sample(key, logits))
    assert abs(np.mean(first == second) - 0.5) < 0.05


def test_gumbel_max_by_hand():
    # z + g = 1.5, 1.25, 2 | -inf, -3, 0.5: noise decides, but not for what has no chance.
    noise = jnp.array([[0.5, 2.25, -1.0], [100.0, -3.0, 0.25]])
    logits = jnp.array([[1.0, -1.0, 3.0], [-INF, 0.0, 0.25]])
    actions = gumbel_max(noise, logits)
    assert actions.tolist() == [2, 2]
    assert actions.dtype == jnp.int32
    assert gumbel_max(noise, jnp.zeros((2, 3))).tolist() == [1, 0]
    assert gumbel_max(noise[0], logits[0]).tolist() == 2  # without a batch
    assert gumbel_max(jnp.zeros((1, 2)), jnp.array([[-INF, -INF]])).tolist() == [0]


def test_float32_whatever_comes_in_and_under_jit():
    logits, other = jnp.array([[1.0, -0.5, 2.0]]), jnp.array([[0.5, 0.25, -1.0]])
    for f in (
        lambda z, _: mask_logits(z, np.array([[True, False, True]])),
        lambda z, _: categorical_log_prob(z, np.array([2], np.int8)),
        lambda z, _: categorical_entropy(z),
        categorical_kl,
    ):
        expected = f(logits, other)
        for cast in (lambda x: x.astype(jnp.bfloat16), lambda x: np.asarray(x, np.float64)):
            result = f(cast(logits), cast(other))
            assert result.dtype == jnp.float32
            np.testing.assert_array_equal(result, expected)
        np.testing.assert_allclose(jax.jit(f)(logits, other), expected, rtol=1e-6)


@pytest.mark.errors
def test_shapes_must_fit():
    logits = jnp.zeros((5, 3))
    for shape in [(5, 1), (3,), (), (5, 3)]:
        with pytest.raises(ValueError, match=r"actions must have shape \(5,\), got"):
            categorical_log_prob(logits, jnp.zeros(shape, int))
    for shape in [(5, 1), (3,), (5, 4)]:
        with pytest.raises(ValueError, match=r"\(5, 3\)"):
            categorical_kl(logits, jnp.zeros(shape))
        with pytest.raises(ValueError, match=r"\(5, 3\)"):
            mask_logits(logits, jnp.zeros(shape))
        with pytest.raises(ValueError, match=r"noise \(.*\) and logits \(5, 3\)"):
            gumbel_max(jnp.zeros(shape), logits)
