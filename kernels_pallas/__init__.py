"""Kernels for reinforcement learning on language models; imports nothing from rljax.

linear_token_stats  log-probability, entropy and normaliser from hidden states, and losses of them
linear_kl           exact KL divergence of two models from their hidden states
token_stats         the statistics of logits that exist
categorical_kl      the divergence of logits that exist

What they share:
checks      arguments, at trace time
choose      which implementation a call gets, and why
records     what the parts of a kernel hand each other
blocks      walking over blocks of rows and of the vocabulary
online      a softmax over blocks, one after the other
divergence  the same for a divergence
outputs     from a forward pass to the statistics, and from their gradients to those of logits
mosaic*     what the TPU kernels (pallas_tpu.py) are made of
gpu_*       what the GPU kernels (pallas_gpu.py) are made of

Commands: bench, autotune, gpu_check, and aot, which compiles for chips that are not here.
"""

from kernels_pallas.categorical_kl import categorical_kl
from kernels_pallas.choose import Choice, choose
from kernels_pallas.linear_kl import linear_kl
from kernels_pallas.linear_token_stats import TokenStats, linear_policy_loss, linear_token_stats
from kernels_pallas.records import Blocks
from kernels_pallas.token_stats import token_stats

__all__ = [
    "Blocks",
    "Choice",
    "TokenStats",
    "categorical_kl",
    "choose",
    "linear_kl",
    "linear_policy_loss",
    "linear_token_stats",
    "token_stats",
]
