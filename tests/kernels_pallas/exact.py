"""What the kernels compute, in float64 NumPy, with the gradients from their formulas.

All logits are finite here: a token that is forbidden is left out by the test.
"""

from typing import NamedTuple

import numpy as np


class Stats(NamedTuple):
    log_probs: np.ndarray
    entropy: np.ndarray
    logsumexp: np.ndarray


def log_softmax(z):
    """log p and logsumexp."""
    peak = z.max(1, keepdims=True)
    log_sum = np.log(np.exp(z - peak).sum(1, keepdims=True))
    return z - peak - log_sum, (peak + log_sum)[:, 0]


def stats_of(z, tokens):
    log_p, logsumexp = log_softmax(z)
    return Stats(log_p[np.arange(len(z)), tokens], -(np.exp(log_p) * log_p).sum(1), logsumexp)


def slope_of_stats(z, tokens, g):
    """Gradient of Σ g·stats by the logits z."""
    log_p, _ = log_softmax(z)
    p, entropy = np.exp(log_p), stats_of(z, tokens).entropy
    onehot = np.arange(z.shape[1])[None] == tokens[:, None]
    dz = g.log_probs[:, None] * (onehot - p) + g.logsumexp[:, None] * p
    return dz - g.entropy[:, None] * p * (log_p + entropy[:, None])


def terms_of_stats(z, tokens, g):
    """How large the terms are whose sum `slope_of_stats` is."""
    log_p, _ = log_softmax(z)
    terms = sum(np.abs(x) for x in g)[:, None] * np.exp(log_p) * (1 + np.abs(log_p))
    terms[np.arange(len(z)), tokens] += np.abs(g.log_probs)
    return terms


def divergence(z_p, z_q):
    """KL(p‖q), and its gradients by both logits."""
    (log_p, _), (log_q, _) = log_softmax(z_p), log_softmax(z_q)
    p, q = np.exp(log_p), np.exp(log_q)
    kl = (p * (log_p - log_q)).sum(1)
    return kl, p * (log_p - log_q - kl[:, None]), q - p


def terms_of_divergence(z_p, z_q):
    """How large the terms of both gradients are."""
    (log_p, _), (log_q, _) = log_softmax(z_p), log_softmax(z_q)
    p, q = np.exp(log_p), np.exp(log_q)
    ratio = np.abs(log_p - log_q)
    return p * (1 + ratio + (p * ratio).sum(1, keepdims=True)), q + p


def assert_within(got, want, terms, relative=1e-5):
    """Each number is off by no more than `relative` of the size of the terms that it is a sum of.

    A result in bfloat16 is rounded once more.
    """
    got = np.asarray(got)
    allowed = relative * terms + 1e-12
    if got.dtype.name == "bfloat16":
        allowed = allowed + 2.0**-8 * np.abs(want)
    error = np.abs(got.astype(np.float64) - want)
    assert np.isfinite(error).all()
    worst = np.unravel_index(np.argmax(error / allowed), error.shape)
    assert error[worst] <= allowed[worst], (worst, got[worst], want[worst], terms[worst])


class Problem(NamedTuple):
    """Logits z = softcap tanh((h W + bias) / softcap) / temperature."""

    hidden: np.ndarray
    unembedding: np.ndarray  # [D, V]
    bias: np.ndarray
    softcap: float | None = None
    temperature: float = 1.0

    def logits(self):
        x = self.hidden @ self.unembedding + self.bias[None]
        if self.softcap is not None:
            x = self.softcap * np.tanh(x / self.softcap)
        return x / self.temperature

    def pull(self, dz):
        """Gradients of hidden, unembedding and bias, from those of the logits."""
        if self.softcap is not None:
            x = self.hidden @ self.unembedding + self.bias[None]
            dz = dz * (1 - np.tanh(x / self.softcap) ** 2)
        dx = dz / self.temperature
        return dx @ self.unembedding.T, self.hidden.T @ dx, dx.sum(0)

    def sizes(self, terms):
        """How large the terms of these are, from those of the gradient of the logits."""
        dx = terms / self.temperature
        return dx @ np.abs(self.unembedding).T, np.abs(self.hidden).T @ dx, dx.sum(0)
