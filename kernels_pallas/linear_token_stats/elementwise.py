"""Losses that a user gives for one token, and what is refused.

A loss is called with scalars, one token at a time under `vmap`: it cannot see other tokens, so its
sum has the gradient that is formed block by block, whatever it computes. What would not mean here
what it says, a mean or a maximum over tokens, is a reduction of a scalar, and is refused.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun, jaxprs_in_params

from kernels_pallas.blocks import vary_over, varying_axes
from kernels_pallas.records import TokenStats

LossFn = Callable[..., Array]  # (log_prob [], entropy [] or None, aux of scalars) -> loss []
REDUCTIONS = ("reduce", "arg", "cum", "sort")
ELEMENTWISE = "reduce_precision"  # which is named like one of them


def check_aux(aux: Any, num_rows: int) -> Any:
    """aux as a pytree of arrays [N]."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(aux):
        if jnp.shape(leaf) != (num_rows,):
            name = "aux" + jax.tree_util.keystr(path)
            raise ValueError(f"{name} must have shape {(num_rows,)}, got {jnp.shape(leaf)}")
    return jax.tree.map(jnp.asarray, aux)


def check_loss(
    loss_fn: LossFn, entropy: bool, aux: Any, axes: frozenset[str]
) -> tuple[LossFn, list[Array], frozenset[str]]:
    """The loss of one token with what is traced around it as further arguments, these, and axes.

    The axes are those given, over which the numbers of a token vary inside a `shard_map`, and those
    of what the loss closes over. That includes integers: a rule of differentiation must not close
    over what is traced, as its parts run after the trace has ended.

    Raises:
        ValueError: if it does not take scalars, gives anything but a number, or reduces.
    """
    number = jnp.zeros((), jnp.float32)
    scalars = jax.tree.map(lambda x: jnp.zeros((), x.dtype), aux)
    arguments = vary_over((number, number if entropy else None, scalars), axes)
    refused = "loss_fn must be elementwise, from the numbers of one token to one number"
    try:
        closed, result = jax.make_jaxpr(loss_fn, return_shape=True)(*arguments)
    except (TypeError, ValueError, IndexError) as error:
        first = str(error).strip().split("\n")[0]
        raise ValueError(f"{refused}; it raised {type(error).__name__}: {first}") from error
    if not isinstance(result, jax.ShapeDtypeStruct) or result.shape != ():
        shapes = jax.tree.map(lambda x: x.shape, result)
        raise ValueError(f"{refused}; it returned shape {shapes}")
    if not jnp.issubdtype(result.dtype, jnp.floating):
        raise ValueError(f"{refused}; it returned {result.dtype}")
    if reduction := reduction_of_scalars(closed.jaxpr):
        raise ValueError(f"{refused}; it reduces over tokens with {reduction}")
    traced = [x for x in closed.consts if isinstance(x, Tracer)]
    if more := varying_axes(traced) - axes:
        return check_loss(loss_fn, entropy, aux, axes | more)
    kept = [None if isinstance(x, Tracer) else x for x in closed.consts]
    jaxpr = ClosedJaxpr(closed.jaxpr, kept).jaxpr  # in jax 0.12 a jaxpr holds what it closes over

    def converted(log_prob: Array, entropy: Array | None, aux: Any, *traced: Array) -> Array:
        given = iter(traced)
        consts = [next(given) if x is None else x for x in kept]
        numbers = jax.tree.leaves((log_prob, entropy, aux))
        return jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))(*numbers)[0]

    return converted, vary_over(traced, axes), axes


def reduction_of_scalars(jaxpr: Any) -> str:
    """The name of a reduction of one number, or an empty string."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        reduces = name.startswith(REDUCTIONS) and name != ELEMENTWISE
        if reduces and equation.invars[0].aval.size == 1:
            return name
        for inner in jaxprs_in_params(equation.params):
            if found := reduction_of_scalars(inner):
                return found
    return ""


def total_loss(
    loss_fn: LossFn, stats: TokenStats, mask: Array | None, aux: Any, consts: list[Array]
) -> Array:
    """The sum of the losses of unmasked rows, float32 []."""

    def one(log_prob: Array, entropy: Array | None, aux: Any) -> Array:
        return jnp.asarray(loss_fn(log_prob, entropy, aux, *consts), jnp.float32)

    if mask is None:
        return jnp.sum(jax.vmap(one)(stats.log_probs, stats.entropy, aux))

    def select(x: Array) -> Array:
        # Masked rows take the numbers of one that is not. With 0 a loss might divide by 0, and
        # what it closes over would get a gradient of NaN.
        usual = jnp.where(jnp.any(mask), x[jnp.argmax(mask)], jnp.zeros((), x.dtype))
        return jnp.where(mask, x, usual)

    stats, aux = jax.tree.map(select, (stats, aux))
    losses = jax.vmap(one)(stats.log_probs, stats.entropy, aux)
    return jnp.sum(jnp.where(mask, losses, 0.0))
