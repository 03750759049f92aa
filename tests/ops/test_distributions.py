"""The bundles: every family keeps the same promises, and sampling agrees with log_prob."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import distributions
from rljax.ops.distributions import CATEGORICAL, GAUSSIAN


class MeanAndLogStd(NamedTuple):
    mean: jax.Array
    log_std: jax.Array


LOGITS_P, LOGITS_Q = jnp.array([1.0, -0.5, -jnp.inf, 0.3]), jnp.array([0.2, 0.4, 0.0, -1.0])
MEAN_P, MEAN_Q = jnp.array([0.5, -1.0]), jnp.array([0.0, -0.6])
LOG_STD_P, LOG_STD_Q = jnp.array([-0.3, 0.2]), jnp.array([0.1, 0.0])
N = 20_000


def rows(x):
    return jnp.broadcast_to(x, (N, *x.shape))


FAMILIES = {  # (family, p, q, shape of an action, its dtype)
    "categorical": (CATEGORICAL, rows(LOGITS_P), rows(LOGITS_Q), (), jnp.int32),
    "gaussian": (
        GAUSSIAN,
        (rows(MEAN_P), LOG_STD_P),
        (rows(MEAN_Q), LOG_STD_Q),
        (2,),
        jnp.float32,
    ),
    "gaussian of the state": (
        GAUSSIAN,
        MeanAndLogStd(rows(MEAN_P), rows(LOG_STD_P)),
        MeanAndLogStd(rows(MEAN_Q), rows(LOG_STD_Q)),
        (2,),
        jnp.float32,
    ),
}

# Of one action's noise: one number for each action to choose from, or for each real action.
NOISE_SHAPES = {"categorical": (4,), "gaussian": (2,), "gaussian of the state": (2,)}


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name, key):
    family, p, q, action_shape, dtype = FAMILIES[name]
    noise = family.noise(key, (N, *NOISE_SHAPES[name]))
    assert noise.shape == (N, *NOISE_SHAPES[name])
    assert noise.dtype == jnp.float32
    sample = jax.jit(family.sample)
    actions, mode = sample(noise, p), family.mode(p)
    np.testing.assert_array_equal(sample(noise, p), actions)  # nothing else is random
    np.testing.assert_array_equal(sample(jnp.zeros_like(noise), p), mode)
    for x in (actions, mode):
        assert x.shape == (N, *action_shape)
        assert x.dtype == dtype
    log_probs = family.log_prob(p, actions)
    entropy, kl = family.entropy(p), family.kl(p, q)
    for x in (log_probs, entropy, kl):
        assert x.shape == (N,)
        assert x.dtype == jnp.float32

    # Sample means over 20,000 draws: standard errors below 0.008.
    np.testing.assert_allclose(-np.mean(np.asarray(log_probs, float)), entropy[0], atol=0.04)
    log_ratios = np.asarray(log_probs - family.log_prob(q, actions), float)
    np.testing.assert_allclose(np.mean(log_ratios), kl[0], atol=0.04)
    np.testing.assert_allclose(family.kl(p, p), np.zeros(N), atol=1e-6)
    assert (family.log_prob(p, mode) >= log_probs).all()


def test_gaussian_entropy_has_the_shape_of_the_batch():
    # A log_std without a state dimension is that of every state: H = Σ log σ + log 2πe for A = 2.
    for log_std in (LOG_STD_P, jnp.array(-0.05), -0.05):  # all with Σ log σ = -0.1
        entropy = GAUSSIAN.entropy((jnp.zeros((3, 5, 2)), log_std))
        np.testing.assert_allclose(entropy, np.full((3, 5), 2.7378770664), rtol=1e-6)
    gradient = jax.grad(lambda s: jnp.mean(GAUSSIAN.entropy((jnp.zeros((3, 5, 2)), s))))(LOG_STD_P)
    np.testing.assert_allclose(gradient, np.ones(2), rtol=1e-5)


def test_modes_by_hand():
    logits = jnp.array([[0.0, 2.0, -jnp.inf], [1.0, 0.5, 1.0]])
    assert CATEGORICAL.mode(logits).tolist() == [1, 0]  # the first of equals
    assert GAUSSIAN.mode((jnp.array([[0.5, -2.0]], jnp.bfloat16), 0.0)).tolist() == [[0.5, -2.0]]


def test_every_function_is_importable_from_here():
    for name in distributions.__all__:
        assert hasattr(distributions, name)
