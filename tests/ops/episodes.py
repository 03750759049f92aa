"""Random episodes for the tests of returns and advantages."""

import numpy as np

SHAPES = [(6,), (7, 3), (4, 2, 2)]


def episodes(seed, shape, ends=0.25):
    """Random rewards, values and flags; now and then a step is both terminated and truncated."""
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, *shape)) * 2
    terminated, truncated = rng.random((2, *shape)) < ends
    return rewards, values, next_values, terminated, truncated


def columns(*arrays):
    """The arrays as float64 [T, N] and the shape to give results back in."""
    flat = [np.asarray(array).reshape(len(array), -1) for array in arrays]
    return flat, np.asarray(arrays[0]).shape
