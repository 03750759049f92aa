"""What the kernels compute, in float64 NumPy, with the gradients from their formulas."""

from typing import NamedTuple

import numpy as np


class Stats(NamedTuple):
    log_probs: np.ndarray
    entropy: np.ndarray
    logsumexp: np.ndarray


def log_softmax(z):
    """log p and logsumexp of rows that have a finite logit."""
    peak = z.max(1, keepdims=True)
    log_sum = np.log(np.exp(z - peak).sum(1, keepdims=True))
    return z - peak - log_sum, (peak + log_sum)[:, 0]


def times_log(p, log_p):
    return np.where(p > 0, p * np.where(p > 0, log_p, 0.0), 0.0)


def stats_of(z, tokens):
    log_p, logsumexp = log_softmax(z)
    chosen = log_p[np.arange(len(z)), tokens]
    return Stats(chosen, -times_log(np.exp(log_p), log_p).sum(1), logsumexp)


def slope_of_stats(z, tokens, g):
    """Gradient of Σ g·stats by the logits z."""
    log_p, _ = log_softmax(z)
    p = np.exp(log_p)
    entropy = -times_log(p, log_p).sum(1)
    onehot = np.arange(z.shape[1])[None] == tokens[:, None]
    dz = g.log_probs[:, None] * (onehot - p) + g.logsumexp[:, None] * p
    return dz - g.entropy[:, None] * (times_log(p, log_p) + p * entropy[:, None])


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

    def scale(self, dz):
        """How large the terms are whose sums `pull` is: what rounding is to be measured by."""
        dx = np.abs(dz) / self.temperature
        return dx @ np.abs(self.unembedding).T, np.abs(self.hidden).T @ dx, dx.sum(0)


def divergence(z_p, z_q):
    """KL(p‖q), and its gradients by both logits."""
    (log_p, _), (log_q, _) = log_softmax(z_p), log_softmax(z_q)
    p, q = np.exp(log_p), np.exp(log_q)
    terms = np.where(p > 0, p * (np.where(p > 0, log_p, 0) - np.where(p > 0, log_q, 0)), 0.0)
    kl = terms.sum(1)
    return kl, terms - p * kl[:, None], q - p
