"""Pallas kernels for reinforcement learning on language models; imports nothing from rljax."""
