"""What a function does with its arguments first, at trace time: check shapes, go to float32."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real

Scalar = float | int | Real[ArrayLike, ""]  # a hyper-parameter, traced or not


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


def check_more_axes(num_axes: int, /, **arrays: ArrayLike) -> None:
    """Raises unless the first array has the shape of the second and `num_axes` axes more.

    Args:
        num_axes: of the first array behind those that it shares, such as 1 for actions.
        **arrays: two arrays of any dtype under the names that the caller's user knows.

    Raises:
        ValueError: naming both arrays, their shapes and the number of axes.

    Example:
        >>> check_more_axes(1, q_values=jnp.ones((3, 2, 4)), actions=jnp.zeros((3, 2), int))
    """
    (name, shape), (other, leading) = ((name, jnp.shape(x)) for name, x in arrays.items())
    if len(shape) != len(leading) + num_axes or shape[: len(leading)] != leading:
        raise ValueError(
            f"{name} must have the shape of {other} and {num_axes} more axes, "
            f"got {name} {shape} and {other} {leading}"
        )


def broadcast_trailing(
    name: str, x: Scalar | Real[ArrayLike, "..."], shape: tuple[int, ...]
) -> Float[Array, "..."]:
    """A hyper-parameter that is a scalar or has trailing axes of `shape`, as an array of `shape`.

    Args:
        name: what the caller's user calls it.
        x: a scalar, or an array whose shape is the end of `shape`: `[B]` or `[T, B]` for `[T, B]`.
        shape: what to broadcast to.

    Returns:
        `shape`, float32.

    Raises:
        ValueError: naming x, its shape and `shape`.

    Example:
        >>> broadcast_trailing("discount", jnp.array([0.9, 1.0]), (3, 2)).shape
        (3, 2)
    """
    x = jnp.asarray(x, jnp.float32)
    if x.shape != shape[len(shape) - x.ndim :]:
        raise ValueError(
            f"{name} must be a scalar or have the trailing shape of {shape}, got {x.shape}"
        )
    return jnp.broadcast_to(x, shape)


def as_float32(*arrays: ArrayLike) -> tuple[Array, ...]:
    """The arrays as JAX arrays in float32, whatever real dtype they come in.

    Args:
        *arrays: of any shape.

    Returns:
        One float32 array for each.

    Example:
        >>> [x.dtype.name for x in as_float32(jnp.ones(2, jnp.bfloat16), 3)]
        ['float32', 'float32']
    """
    return tuple(jnp.asarray(array, jnp.float32) for array in arrays)
