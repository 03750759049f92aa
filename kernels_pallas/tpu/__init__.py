"""What the kernels for TPUs share."""
