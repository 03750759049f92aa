"""Losses whose gradient is formed in the forward pass, against the same loss of the definition."""

from functools import cache, partial
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas import Blocks, linear_policy_loss, linear_token_stats

INF, NAN = np.inf, np.nan
N, D, V = 13, 5, 29
SCALES = MappingProxyType({"softcap": 3.0, "temperature": 0.7})


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    hidden, matrix, bias = (np.float32(rng.normal(size=s)) for s in ((N, D), (D, V), (V,)))
    aux = {"advantages": np.float32(rng.normal(size=N)), "old": np.float32(rng.normal(size=N) - 3)}
    return hidden, matrix, bias, rng.integers(0, V, N), aux


def ppo(log_prob, entropy, aux, coefficient):
    ratio = jnp.exp(log_prob - aux["old"])
    clipped = jnp.clip(ratio, 0.8, 1.2)
    gain = jnp.minimum(ratio * aux["advantages"], clipped * aux["advantages"])
    return -gain - coefficient * entropy


def by_definition(given, tokens, mask):
    hidden, matrix, bias, aux, coefficient, denominator = given
    stats = linear_token_stats(
        *(hidden, matrix, tokens), bias=bias, mask=mask, implementation="reference", **SCALES
    )
    aux = jax.tree.map(lambda x: jnp.where(mask != 0, x, 0.0), aux)
    losses = ppo(stats.log_probs, stats.entropy, aux, coefficient)
    return 3.0 * jnp.sum(jnp.where(mask != 0, losses, 0.0)) / denominator


def by_kernel(given, tokens, mask, options=MappingProxyType({}), transposed=False):
    hidden, matrix, bias, aux, coefficient, denominator = given

    def loss(log_prob, entropy, aux):  # closes over a traced number
        return ppo(log_prob, entropy, aux, coefficient)

    value, _ = linear_policy_loss(
        *(hidden, matrix.T if transposed else matrix, tokens, aux, loss),
        bias=bias, mask=mask, denominator=denominator, **SCALES, **options,
    )  # fmt: skip
    return 3.0 * value  # an incoming gradient that is not 1


@cache
def graded(function):
    return jax.jit(jax.value_and_grad(function))


WAYS = {
    "reference": partial(by_kernel, options={"implementation": "reference"}),
    "xla": partial(by_kernel, options={"config": Blocks(4, 8)}),
    "xla, [V, D]": partial(by_kernel, options={"config": Blocks(4, 8)}, transposed=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_value_and_every_gradient(way):
    hidden, matrix, bias, tokens, aux = arrays()
    for kept in (np.ones(N), np.arange(N) % 3 != 1, np.zeros(N)):
        given = (
            np.where(kept[:, None] != 0, hidden, np.float32(NAN)),
            *(matrix, bias),
            {name: np.where(kept != 0, x, np.float32(NAN)) for name, x in aux.items()},
            *(np.float32(0.1), np.float32(7.0)),
        )
        value, slopes = graded(WAYS[way])(given, tokens, 1 * (kept != 0))
        want, want_slopes = graded(by_definition)(given, tokens, 1 * (kept != 0))
        np.testing.assert_allclose(value, want, rtol=1e-5)
        for x, y in zip(jax.tree.leaves(slopes), jax.tree.leaves(want_slopes)):
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


def test_kernel_03_weights_of_any_sign_reach_the_gradient():
    # w (softmax - onehot), as in test_linear_token_stats; and all of it times 2.
    logits = jnp.array([[1.0, 0.0, -1.0], [0.5, 0.5, 0.0], [0.0, 2.0, 1.0]])
    weights = jnp.array([2.0, 0.0, -0.5])

    @jax.jit
    @partial(jax.grad, argnums=(0, 1))
    def slopes(logits, weights, mask):
        each = lambda log_prob, _, weight: -weight * log_prob  # noqa: E731
        return 2 * linear_policy_loss(
            logits, jnp.eye(3), np.array([0, 2, 1]), weights, each, mask=mask, entropy=False
        )[0]  # fmt: skip

    want = np.array([[-0.6695181, 0.4894569, 0.1800611], [0, 0, 0],
                     [-0.0450153, 0.1673795, -0.1223642]])  # fmt: skip
    slope, of_weights = slopes(logits, weights, np.array([1, 1, 1]))
    np.testing.assert_allclose(slope, 2 * want, rtol=1e-5, atol=1e-6)
    nll = [0.4076059644443804, 1.4580200879470335, 0.4076059644443804]
    np.testing.assert_allclose(of_weights, 2 * np.array(nll), rtol=1e-5)
    want[2] = 0
    slope, _ = slopes(logits, weights, np.array([1, 1, 0]))
    np.testing.assert_allclose(slope, 2 * want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(slope[2], 0.0)


def test_statistics_come_along_and_integers_may_be_in_aux():
    hidden, matrix, bias, tokens, _ = arrays()
    kinds = np.arange(N) % 2

    def loss(hidden):
        def each(log_prob, entropy, aux):
            return jnp.where(aux["kind"] == 0, -log_prob, entropy)

        return linear_policy_loss(hidden, matrix, tokens, {"kind": kinds}, each, bias=bias)

    def plain(hidden):
        stats = linear_token_stats(hidden, matrix, tokens, bias=bias, implementation="reference")
        return jnp.sum(jnp.where(kinds == 0, -stats.log_probs, stats.entropy)), stats

    of_ours, of_plain = (jax.value_and_grad(x, has_aux=True) for x in (loss, plain))
    (value, stats), slope = jax.jit(of_ours)(hidden)
    (want, want_stats), want_slope = jax.jit(of_plain)(hidden)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(loss)(hidden)[0], want, rtol=1e-5)
    for x, y in zip(stats, want_stats):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(slope, want_slope, rtol=1e-4, atol=1e-5)


def test_bfloat16_gradients_are_summed_in_float32():
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(610, 16)), jnp.bfloat16)
    matrix = jnp.asarray(rng.normal(size=(64, 16)) / 4, jnp.bfloat16)  # [V, D]
    tokens = rng.integers(0, 64, 610)

    def ours(hidden, matrix):
        each = lambda log_prob, entropy, _: -log_prob  # noqa: E731
        return linear_policy_loss(hidden, matrix, tokens, None, each, config=Blocks(100, 64))[0]

    def exact(hidden, matrix):
        stats = linear_token_stats(hidden, matrix, tokens, implementation="reference")
        return -jnp.sum(stats.log_probs)

    got = jax.jit(jax.grad(ours, (0, 1)))(hidden, matrix)
    want = jax.jit(jax.grad(exact, (0, 1)))(*(x.astype(jnp.float32) for x in (hidden, matrix)))
    for x, y in zip(got, want):
        assert x.dtype == jnp.bfloat16
        error = np.linalg.norm(x.astype(jnp.float32) - y) / np.linalg.norm(y)
        assert error < 2**-8, error


def test_loss_closes_over_traced_integers():
    hidden, matrix, _, tokens, aux = arrays()

    def losses(hidden, total):
        """With the step in the loss, in a loop that is differentiated as a whole."""

        def step(carry, number):
            each = lambda log_prob, _, weight: -log_prob * weight * number  # noqa: E731
            return carry + total(hidden, each), None

        return jax.lax.scan(jax.checkpoint(step), 0.0, jnp.arange(3))[0]

    def ours(hidden, each):
        return linear_policy_loss(hidden, matrix, tokens, aux["old"], each, entropy=False)[0]

    def plain(hidden, each):
        stats = linear_token_stats(hidden, matrix, tokens, implementation="reference")
        return jnp.sum(each(stats.log_probs, None, aux["old"]))

    got, want = (
        jax.jit(jax.grad(losses), static_argnums=1)(hidden, total) for total in (ours, plain)
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    with jax.checking_leaks():
        jax.eval_shape(jax.grad(lambda x: ours(x, lambda *y: x[0, 0] * y[0])), hidden)


REFUSED = {
    "a mean": (lambda lp, h, a: jnp.mean(lp * a), "it reduces over tokens with reduce_sum"),
    "whitening": (lambda lp, h, a: lp * (a - a.mean()) / a.std(), "it reduces over tokens"),
    "a maximum": (lambda lp, h, a: lp - jnp.max(lp), "it reduces over tokens with reduce_max"),
    "a median": (lambda lp, h, a: jnp.median(lp), "it reduces over tokens"),
    "neighbours": (lambda lp, h, a: lp[1:] - lp[:-1], "it raised IndexError"),
    "a softmax": (lambda lp, h, a: jax.nn.softmax(lp * a), "must be elementwise"),
    "whole arrays": (lambda lp, h, a: lp * jnp.ones(N), r"it returned shape \(13,\)"),
    "two results": (lambda lp, h, a: (lp, h), r"it returned shape \(\(\), \(\)\)"),
    "an integer": (lambda lp, h, a: 3, "it returned int32"),
}  # fmt: skip


@pytest.mark.errors
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_elementwise_is_refused(name):
    hidden, matrix, _, tokens, aux = arrays()
    loss, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as error:
        linear_policy_loss(hidden, matrix, tokens, aux["advantages"], loss)
    assert "\n" not in str(error.value)


def test_what_is_elementwise_is_not_refused():
    hidden, matrix, _, tokens, _ = arrays()
    rounded = lambda lp, h, a: jax.lax.reduce_precision(lp, 8, 7)  # noqa: E731
    for loss in (rounded, lambda *_: 0.0):
        jax.eval_shape(
            lambda x, loss=loss: linear_policy_loss(x, matrix, tokens, None, loss), hidden
        )


@pytest.mark.errors
def test_aux_must_have_a_number_for_each_token():
    hidden, matrix, _, tokens, aux = arrays()
    with pytest.raises(ValueError, match=r"aux\['old'\] must have shape \(13,\), got \(13, 1\)"):
        linear_policy_loss(hidden, matrix, tokens, {"old": aux["old"][:, None]}, lambda *_: 0.0)
    with pytest.raises(ValueError, match="denominator must be above 0, got 0"):
        linear_policy_loss(hidden, matrix, tokens, aux, lambda lp, h, a: lp, denominator=0)
