"""One rule of differentiation for the divergences, of two models and of given logits.

An implementation has two functions of two sides, each a pytree of arrays:

    forward(of_p, of_q, static) -> KLStats
    backward(of_p, of_q, stats, g [N], static) -> (gradients of of_p, gradients of of_q), with None
        in place of a side that is not in `static.sides`

A side is one of these if some array of it is differentiated. The usual KL to a reference model is
not differentiated in that model: what forms its gradients would be most of the work for nothing,
and XLA cannot cut one of two results out of a kernel.
"""

from functools import partial
from typing import Any

import jax
from jax import Array
from jax.custom_derivatives import SymbolicZero

from kernels_pallas.divergence import finite
from kernels_pallas.records import KLStatic


@jax.tree_util.register_static
class Sides(str):
    """ "p", "q" or "pq"; known when the backward pass is traced, as no array would be."""


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def differentiable_kl(implementation: Any, static: KLStatic, of_p: Any, of_q: Any) -> Array:
    return implementation.forward(of_p, of_q, static).kl


def _forward(implementation: Any, static: KLStatic, of_p: Any, of_q: Any) -> Any:
    sides = {"p": jax.tree.leaves(of_p), "q": jax.tree.leaves(of_q)}
    moving = Sides("".join(k for k, arrays in sides.items() if any(x.perturbed for x in arrays)))
    of_p, of_q = jax.tree.map(lambda x: x.value, (of_p, of_q))
    stats = implementation.forward(of_p, of_q, static)
    return stats.kl, (moving, of_p, of_q, stats)


def _backward(implementation: Any, static: KLStatic, saved: Any, g: Any) -> Any:
    moving, of_p, of_q, stats = saved
    if isinstance(g, SymbolicZero) or not moving:
        return None, None
    static = static._replace(sides=str(moving))
    return implementation.backward(of_p, of_q, *finite(stats, g), static)


differentiable_kl.defvjp(_forward, _backward, symbolic_zeros=True)
