"""The definitions in float64 numpy, for tests of the GPU kernels."""

import numpy as np


def softmax(z):
    """Probabilities and logarithms; a row of nothing but -inf has probabilities 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        peak = z.max(axis=1, keepdims=True)
        z = np.where(np.isneginf(peak), -np.inf, z - peak)
        total = np.exp(z).sum(axis=1, keepdims=True)
        p = np.exp(z) / np.where(total == 0, 1, total)
        log_p = z - np.log(total)
    return p, np.where(p > 0, log_p, 0.0)


def token_stats(z, tokens):
    """logsumexp, the token's logit (0 outside of the vocabulary), entropy."""
    p, log_p = softmax(z)
    with np.errstate(divide="ignore"):
        peak = z.max(axis=1)
        peak = np.where(np.isneginf(peak), 0.0, peak)
        logsumexp = peak + np.log(np.exp(z - peak[:, None]).sum(axis=1))
    inside = (tokens >= 0) & (tokens < z.shape[1])
    chosen = z[np.arange(len(z)), np.where(inside, tokens, 0)]
    return logsumexp, np.where(inside, chosen, 0.0), -(p * log_p).sum(axis=1)


def logits_gradient(z, tokens, a, b, c):
    """p (a + b log p) + 1[v = token] c."""
    p, log_p = softmax(z)
    one_hot = np.arange(z.shape[1])[None, :] == tokens[:, None]
    return p * (a[:, None] + b[:, None] * log_p) + one_hot * c[:, None]


def kl(z_p, z_q):
    (p, log_p), (_, log_q) = softmax(z_p), softmax(z_q)
    return (p * (log_p - log_q)).sum(axis=1)


def kl_gradients(z_p, z_q, g):
    (p, log_p), (q, log_q) = softmax(z_p), softmax(z_q)
    apart = kl(z_p, z_q)[:, None]
    return g[:, None] * p * (log_p - log_q - apart), g[:, None] * (q - p)


def assert_close(ours, right, tolerance):
    """Differences are at most the tolerance times the largest number of the right answer."""
    ours = np.asarray(ours, np.float64)
    scale = max(np.abs(right).max(), 1e-3)
    np.testing.assert_allclose(ours / scale, right / scale, rtol=0, atol=tolerance)
