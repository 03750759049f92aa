"""Integers that int32 does not hold, and JAX with 64 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas import (
    categorical_kl,
    linear_kl,
    linear_policy_loss,
    linear_token_stats,
    token_stats,
)


@pytest.mark.parametrize("far", [2**32 + 3, -(2**32) + 3, 2**63 - 1])
def test_tokens_far_outside_the_vocabulary_do_not_wrap_around(far):
    tokens = np.array([3, far])
    for given in (tokens, tokens.tolist()):
        log_probs = linear_token_stats(np.zeros((2, 5), np.float32), np.eye(5), given).log_probs
        np.testing.assert_allclose(log_probs, [-np.log(5), -np.inf], rtol=1e-6)
    with jax.enable_x64(True):
        log_probs = jax.jit(lambda x: token_stats(jnp.zeros((2, 5), "float32"), x)[0])(tokens)
        np.testing.assert_allclose(log_probs, [-np.log(5), -np.inf], rtol=1e-6)


@pytest.mark.parametrize("implementation", ["reference", "xla", "pallas_tpu", "pallas_gpu"])
def test_results_are_float32_where_jax_has_float64(implementation):
    """The programs are made, not run: an array of the wrong type raises there."""
    options = {"implementation": implementation, "interpret": True}
    hidden, logits = np.ones((6, 16), np.float32), np.ones((6, 40), np.float32)
    matrix, tokens = np.ones((16, 40), np.float32), np.arange(6)

    def everything(hidden, matrix, logits):
        stats = linear_token_stats(hidden, matrix, tokens, mask=tokens > 2, **options)
        loss, _ = linear_policy_loss(hidden, matrix, tokens, tokens, lambda x, y, z: x * y + z,
                                     **options)  # fmt: skip
        kls = (linear_kl((hidden, matrix), (hidden, matrix), **options),
               categorical_kl(logits, 2 * logits, **options))  # fmt: skip
        found = (*stats, *token_stats(logits, tokens, **options), *kls, loss)
        return sum(x.sum() for x in found), found

    with jax.enable_x64(True):
        program = jax.value_and_grad(everything, (0, 1, 2), has_aux=True)
        (_, found), gradients = jax.eval_shape(program, hidden, matrix, logits)
    assert {x.dtype.name for x in (*found, *gradients)} == {"float32"}
