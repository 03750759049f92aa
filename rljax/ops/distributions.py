"""Distributions over actions: all functions in one place, and the families as bundles.

A policy network returns `params`; a `Distribution` says what they mean:

    CATEGORICAL  params = logits [*S, A], actions int32 [*S]
    GAUSSIAN     params = (mean [*S, A], log_std), actions float32 [*S, A]
"""

import jax
import jax.numpy as jnp

from rljax.ops.categorical import (
    categorical_entropy,
    categorical_expectation,
    categorical_kl,
    categorical_log_prob,
    categorical_sample,
    gumbel_max,
    mask_logits,
)
from rljax.ops.checks import broadcast_trailing
from rljax.ops.gaussian import (
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_prob,
    gaussian_sample,
    gaussian_shift,
)
from rljax.ops.tanh_gaussian import (
    tanh_gaussian_log_prob,
    tanh_gaussian_sample_and_log_prob,
    tanh_gaussian_shift,
    tanh_squash,
)
from rljax.types import Distribution

__all__ = [
    "CATEGORICAL",
    "GAUSSIAN",
    "categorical_entropy",
    "categorical_expectation",
    "categorical_kl",
    "categorical_log_prob",
    "categorical_sample",
    "gaussian_entropy",
    "gaussian_kl",
    "gaussian_log_prob",
    "gaussian_sample",
    "gaussian_shift",
    "gumbel_max",
    "mask_logits",
    "tanh_gaussian_log_prob",
    "tanh_gaussian_sample_and_log_prob",
    "tanh_gaussian_shift",
    "tanh_squash",
]


def _broadcast_gaussian_entropy(params):
    """A state-independent log_std [A] still gives one entropy for each state."""
    mean, log_std = params
    return gaussian_entropy(broadcast_trailing("log_std", log_std, jnp.shape(mean)))


CATEGORICAL = Distribution(
    noise=jax.random.gumbel,
    sample=gumbel_max,
    log_prob=categorical_log_prob,
    entropy=categorical_entropy,
    kl=categorical_kl,
    mode=lambda logits: jnp.argmax(logits, axis=-1).astype(jnp.int32),
)

GAUSSIAN = Distribution(
    noise=jax.random.normal,
    sample=lambda noise, params: gaussian_shift(noise, *params),
    log_prob=lambda params, actions: gaussian_log_prob(params[0], params[1], actions),
    entropy=_broadcast_gaussian_entropy,
    kl=lambda params_p, params_q: gaussian_kl(*params_p, *params_q),
    mode=lambda params: jnp.asarray(params[0], jnp.float32),
)
