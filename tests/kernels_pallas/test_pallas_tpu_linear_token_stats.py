"""The TPU kernels, interpreted, against float64 in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernels_pallas.linear_token_stats import pallas_tpu
from kernels_pallas.mosaic import Blocks, Config
from kernels_pallas.records import Static

SMALL = Config(*[Blocks(32, 256, 128)] * 3)


def case(num, width, size, *, dtype="float32", transposed=False, bias=False, seed=0, scale=1.0):
    """Inputs as JAX arrays, and the same numbers in float64 with the unembedding [D, V]."""
    rng = np.random.default_rng(seed)
    hidden = jnp.asarray(rng.normal(size=(num, width)), dtype)
    unembedding = jnp.asarray(rng.normal(size=(width, size)) * scale, dtype)
    bias = jnp.asarray(rng.normal(size=size), jnp.float32) if bias else None
    tokens = jnp.asarray(rng.integers(0, size, num), jnp.int32)
    inputs = (hidden, unembedding.T if transposed else unembedding, tokens, None, bias)
    exact = [None if x is None else np.asarray(x, np.float64) for x in (hidden, unembedding, bias)]
    return inputs, exact


def statistics(exact, tokens, inverse_temperature=1.0, softcap=None):
    """(logits, log p, entropy, logsumexp) in float64; tokens may be outside."""
    hidden, unembedding, bias = exact
    logits = hidden @ unembedding + (0.0 if bias is None else bias)
    capped = logits if softcap is None else softcap * np.tanh(logits / softcap)
    z = capped * inverse_temperature
    peak = z.max(1, keepdims=True)
    logsumexp = peak + np.log(np.exp(z - peak).sum(1, keepdims=True))
    log_p = z - logsumexp
    p = np.exp(log_p)
    entropy = -np.sum(p * np.where(p > 0, log_p, 0.0), 1)
    return z, log_p, entropy, logsumexp[:, 0]


def gradients(exact, tokens, abc, inverse_temperature=1.0, softcap=None):
    """Of p (a + b log p) + 1[v = token] c per logit, by hand, in float64."""
    hidden, unembedding, _ = exact
    z, log_p, *_ = statistics(exact, tokens, inverse_temperature, softcap)
    a, b, c = (np.asarray(x, np.float64)[:, None] for x in abc)
    p = np.exp(log_p)
    dz = p * (a + b * np.where(p > 0, log_p, 0.0))
    dz += c * (np.arange(z.shape[1]) == np.asarray(tokens)[:, None])
    dz *= inverse_temperature
    if softcap is not None:
        dz *= 1.0 - np.square(z / (softcap * inverse_temperature))
    return dz @ unembedding.T, hidden.T @ dz, dz.sum(0)


def run_both(inputs, static, inverse_temperature=1.0, abc=None):
    """Forward and backward pass in one compiled call."""
    tau = jnp.float32(inverse_temperature)
    num = inputs[0].shape[0]
    if abc is None:
        rng = np.random.default_rng(7)
        abc = [jnp.asarray(rng.normal(size=num), jnp.float32) for _ in range(3)]
        if inputs[3] is not None:
            abc = [jnp.where(inputs[3], x, 0.0) for x in abc]

    @jax.jit
    def both(inputs, tau, abc):
        stats = pallas_tpu.forward(*inputs, tau, static)
        a, b, c = abc
        log_sum = jnp.where(stats.log_sum == -jnp.inf, 0.0, stats.log_sum)
        b = b if static.entropy else None
        return stats, pallas_tpu.backward(*inputs, tau, stats.peak, log_sum, a, b, c, static)

    stats, grads = jax.tree.map(np.asarray, both(inputs, tau, abc))
    return stats, grads, abc


def compare(inputs, exact, static, inverse_temperature=1.0, rows=slice(None)):
    """Everything against float64; returns what was computed."""
    stats, grads, abc = run_both(inputs, static, inverse_temperature)
    tokens = np.asarray(inputs[2])
    z, _, entropy, logsumexp = statistics(exact, tokens, inverse_temperature, static.softcap)
    chosen = z[np.arange(len(tokens)), np.clip(tokens, 0, z.shape[1] - 1)]
    chosen = np.where((tokens >= 0) & (tokens < z.shape[1]), chosen, 0.0)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose((stats.peak + stats.log_sum)[rows], logsumexp[rows], **close)
    np.testing.assert_allclose(stats.chosen[rows], chosen[rows], **close)
    if static.entropy:
        np.testing.assert_allclose(stats.entropy[rows], entropy[rows], **close)
    if not static.entropy:
        abc = (abc[0], jnp.zeros_like(abc[0]), abc[2])
    expected = gradients(exact, tokens, abc, inverse_temperature, static.softcap)
    if static.transposed:
        expected = (expected[0], expected[1].T, expected[2])
    for ours, theirs in zip(grads, expected):
        if ours is not None:
            # dz and the sum are rounded to the inputs' dtype: 8 bits in bfloat16.
            size = np.abs(theirs).max()
            bound = 1e-5 if ours.dtype == np.float32 and exact_inputs(inputs) else 2.0**-7
            np.testing.assert_allclose(np.float64(ours), theirs, rtol=bound, atol=bound * size)
    return stats, grads


def exact_inputs(inputs):
    return inputs[0].dtype == jnp.float32


@pytest.mark.parametrize("size", [1, 127, 128, 129, 1000])
@pytest.mark.parametrize("transposed", [False, True])
def test_ragged_vocabulary_and_rows(size, transposed):
    inputs, exact = case(37, 24, size, transposed=transposed, bias=True)
    compare(inputs, exact, Static(transposed, None, True, SMALL, True), 0.7)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_softcap_entropy_and_dtype(softcap, entropy, dtype):
    inputs, exact = case(64, 32, 512, dtype=dtype)
    compare(inputs, exact, Static(False, softcap, entropy, SMALL, True), 1.3)


@pytest.mark.parametrize("transposed", [False, True])
def test_masked_rows_are_never_read(transposed):
    """Whole blocks of them, first, between and last, and single ones; all NaN."""
    num = 32 * 4
    (hidden, unembedding, tokens, _, bias), exact = case(
        num, 24, 300, transposed=transposed, bias=True
    )
    mask = np.ones(num, bool)
    mask[:32] = mask[64:96] = False
    mask[[40, 127]] = False
    poisoned = jnp.where(mask[:, None], hidden, jnp.nan)
    wild = jnp.where(mask, tokens, 2**30)
    inputs = (poisoned, unembedding, wild, jnp.asarray(mask), bias)
    static = Static(transposed, None, True, SMALL, True)
    stats, grads, abc = run_both(inputs, static)
    assert all((np.asarray(x)[~mask] == 0).all() for x in stats)
    assert (grads[0][~mask] == 0).all()
    expected = gradients([exact[0] * mask[:, None], *exact[1:]], tokens, abc)
    expected = (expected[0], expected[1].T if transposed else expected[1], expected[2])
    for ours, theirs in zip(grads, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


def test_nothing_to_do():
    inputs, _ = case(64, 24, 300)
    inputs = (*inputs[:3], jnp.zeros(64, bool), None)
    stats, grads, _ = run_both(inputs, Static(False, None, True, SMALL, True))
    assert all((np.asarray(x) == 0).all() for x in (*stats, *grads[:2]))


def test_forbidden_tokens_count_nothing():
    """-inf in whole blocks of the vocabulary, the first too, and huge negative logits."""
    (hidden, unembedding, tokens, mask, bias), exact = case(33, 24, 700, bias=True)
    forbidden = np.r_[0:300, 512:700]
    bias, exact[2] = bias.at[forbidden].set(-jnp.inf), exact[2].copy()
    exact[2][forbidden] = -np.inf
    tokens = jnp.clip(tokens, 300, 511).at[0].set(5)
    static = Static(False, None, True, SMALL, True)
    inputs = (hidden, unembedding, tokens, mask, bias)
    stats, _ = compare(inputs, exact, static)
    assert stats.chosen[0] == -np.inf


def test_a_row_with_nothing_but_minus_infinity():
    (hidden, unembedding, tokens, mask, _), _ = case(3, 24, 300)
    bias = jnp.full(300, -jnp.inf)
    inputs = (hidden, unembedding, tokens, mask, bias)
    stats, grads, _ = run_both(inputs, Static(False, None, True, SMALL, True))
    assert (stats.log_sum == -np.inf).all()
    assert all(np.isfinite(x).all() for x in grads)


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mode", ["eager", "on_wait"])
def test_no_races_on_two_cores(mode, transposed):
    inputs, exact = case(64, 16, 300, transposed=transposed, bias=True)
    interpret = pltpu.InterpretParams(
        detect_races=True,
        dma_execution_mode=mode,
        num_cores_or_threads=2,
        uninitialized_memory="nan",
    )
    try:
        compare(inputs, exact, Static(transposed, None, True, SMALL, interpret))
        assert not races_found()
    finally:
        pltpu.reset_tpu_interpret_mode_state()


def races_found():
    """What the interpreter of jax 0.10 leaves behind; later ones raise."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    races = getattr(interpret_pallas_call, "races", None)
    return races is not None and races.races_found
