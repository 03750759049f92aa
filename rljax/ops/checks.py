"""Checks of shapes at trace time; they cost nothing once a function is compiled."""

import jax.numpy as jnp
from jax.typing import ArrayLike


def check_same_shape(**arrays: ArrayLike | None) -> None:
    """Raises unless all arrays have one shape; None stands for an argument not given.

    Broadcasting is no excuse: `[T, 1]` against `[T]` would silently become `[T, T]`.

    Args:
        **arrays: arrays of any dtype under the names that the caller's user knows.

    Raises:
        ValueError: naming the first argument, the one that differs and both shapes.

    Example:
        >>> check_same_shape(rewards=jnp.ones((3, 2)), values=jnp.zeros((3, 2)), mask=None)
    """
    shapes = {name: jnp.shape(array) for name, array in arrays.items() if array is not None}
    for name, shape in shapes.items():
        first = next(iter(shapes))
        if shape != shapes[first]:
            raise ValueError(
                f"{first} and {name} must have the same shape, "
                f"got {first} {shapes[first]} and {name} {shape}"
            )


def check_shape(name: str, array: ArrayLike, *allowed: tuple[int, ...]) -> None:
    """Raises unless the shape of `array` is one of `allowed`.

    Args:
        name: what the caller's user calls the array.
        array: of any dtype.
        *allowed: the shapes it may have.

    Raises:
        ValueError: naming the array, the allowed shapes and the one it has.

    Example:
        >>> check_shape("discount", 0.99, (), (3, 2))
    """
    if jnp.shape(array) not in allowed:
        wanted = " or ".join(str(shape) for shape in allowed)
        raise ValueError(f"{name} must have shape {wanted}, got {jnp.shape(array)}")
