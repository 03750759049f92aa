"""Random arrays whose masked elements hold the worst there is."""

import numpy as np

POISONS = [np.nan, np.inf, -np.inf, 3e38]


def poisoned_inputs(num, seed, shapes=((5,), (2, 3, 4)), offset=0.0):
    """Random x with its masked elements poisoned, the mask, and the kept elements in float64."""
    rng = np.random.default_rng(seed)
    for i in range(num):
        shape = shapes[i % len(shapes)]
        clean = (rng.normal(size=shape) * rng.choice([0.1, 1.0, 50.0]) + offset).astype(np.float32)
        mask = rng.random(shape) < rng.choice([0.3, 0.7])
        mask.flat[rng.integers(mask.size)] = True
        x = np.where(mask, clean, rng.choice(POISONS, shape)).astype(np.float32)
        yield x, mask, clean.astype(np.float64)
