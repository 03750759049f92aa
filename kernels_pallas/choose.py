"""Which implementation a call gets: settled when it is traced, by platform, dtype and shape."""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax

IMPLEMENTATIONS = ("auto", "reference", "xla", "pallas_tpu", "pallas_gpu")
PLATFORM_OF = {"pallas_tpu": "tpu", "pallas_gpu": "gpu"}
KERNELS = {  # and what their shapes consist of
    "linear_token_stats": "(N, D, V)",
    "linear_kl": "(N, D_p, D_q, V)",
    "token_stats": "(N, V)",
    "categorical_kl": "(N, V)",
}


class Choice(NamedTuple):
    implementation: str
    reason: str


def current_platform() -> str:
    """cpu, gpu or tpu: that of an abstract mesh in use, of the default device, or of JAX."""
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    device: Any = abstract or getattr(jax.config, "jax_default_device", None)
    return general(getattr(device, "platform", device) or jax.default_backend())


def general(platform: str) -> str:
    """JAX's devices say cuda or rocm where its configuration says gpu."""
    return "gpu" if platform in ("cuda", "rocm") else platform


class Implementation(NamedTuple):
    """Functions of arrays and, as the last argument, what is static."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


@cache
def load(kernel: str, implementation: str) -> Implementation:
    module = _module(kernel, implementation)
    functions = module.forward, module.backward
    if implementation in PLATFORM_OF:
        functions = (_not_twice(function, implementation) for function in functions)
    return Implementation(*functions)


def _module(kernel: str, implementation: str) -> Any:
    return importlib.import_module(f"{__package__}.{kernel}.{implementation}")


def _not_twice(function: Callable[..., Any], implementation: str) -> Callable[..., Any]:
    """The function, which says so when it is differentiated: as a part of a first derivative is."""

    def call(*arguments: Any) -> Any:
        *arrays, static = arguments
        once = jax.custom_jvp(lambda *arrays: function(*arrays, static))

        @once.defjvp
        def _(*_: Any) -> Any:
            raise ValueError(
                f"{implementation!r} has one derivative, of reverse mode; 'reference' has all"
            )

        return once(*arrays)

    return call


def choose(
    kernel: str,
    implementation: str = "auto",
    *,
    dtype: Any,
    shape: tuple[int, ...],
    platform: str | None = None,
    interpret: Any = False,
) -> Choice:
    """What a call would run, and why.

    Args:
        kernel: "linear_token_stats", "linear_kl", "token_stats" or "categorical_kl".
        implementation: as it is given to the kernel.
        dtype: of the hidden states or logits.
        shape: (N, D, V); (N, V) of kernels on logits; (N, D_p, D_q, V) of linear_kl.
        platform: "cpu", "gpu" or "tpu"; None is the one in use.
        interpret: as it is given to the kernel.

    Returns:
        Choice(implementation, reason).

    Raises:
        ValueError: if a name is unknown, the shape is that of another kernel, or the implementation
            cannot run on the platform, or not this dtype or shape.

    Example:
        >>> choose("linear_kl", dtype="float32", shape=(8, 4, 4, 9), platform="cpu").implementation
        'xla'
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {IMPLEMENTATIONS}, got {implementation!r}")
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {tuple(KERNELS)}, got {kernel!r}")
    if len(shape) != KERNELS[kernel].count(",") + 1:
        raise ValueError(f"shape of {kernel} must be {KERNELS[kernel]}, got {shape}")
    platform = current_platform() if platform is None else general(platform)
    if implementation != "auto":
        if problem := _problem(kernel, implementation, dtype, shape, platform, interpret):
            raise ValueError(f"implementation {implementation!r} cannot run: {problem}")
        return Choice(implementation, "asked for")
    native = {at: name for name, at in PLATFORM_OF.items()}.get(platform)
    if native is None:
        return Choice("xla", f"blocks in XLA are the fastest there is on {platform}")
    if problem := _problem(kernel, native, dtype, shape, platform, False):
        return Choice("xla", f"{native} cannot run: {problem}")
    return Choice(native, f"the kernel for {platform}")


def _problem(
    kernel: str,
    implementation: str,
    dtype: Any,
    shape: tuple[int, ...],
    platform: str,
    interpret: Any,
) -> str:
    """Why it cannot run, or an empty string."""
    needed = PLATFORM_OF.get(implementation, platform)
    if not interpret and needed != platform:
        return f"it needs a {needed} and this is a {platform}; interpret=True runs it anywhere"
    unsupported = getattr(_module(kernel, implementation), "unsupported", None)
    return (unsupported(dtype=dtype, shape=shape) or "") if unsupported else ""
