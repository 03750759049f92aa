"""What the kernels for NVIDIA cards share."""
