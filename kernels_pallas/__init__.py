"""Kernels for reinforcement learning on language models; imports nothing from rljax."""

from kernels_pallas.linear_token_stats import TokenStats, linear_policy_loss, linear_token_stats

__all__ = ["TokenStats", "linear_policy_loss", "linear_token_stats"]
