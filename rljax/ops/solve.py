"""Solvers on trees of parameters: a linear system, the curvature that goes into it, a line search.

Together they are the parts of a natural-gradient step. `value_iteration`, which solves a tabular
problem, is importable from here as well.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Float

from rljax.ops.checks import Scalar, check_shape
from rljax.ops.tabular import value_iteration
from rljax.types import Metrics, Params, PyTree

__all__ = [
    "backtracking_line_search",
    "conjugate_gradient",
    "fisher_vector_product",
    "value_iteration",
]


def _float32(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def _axpy(scale: ArrayLike, x: PyTree, y: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: scale * a + b, x, y)


def _dot(x: PyTree, y: PyTree) -> Array:
    """Sum of products over all leaves; not `vdot`, which accelerators may round to bfloat16."""
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), x, y)
    return jax.tree.reduce(jnp.add, products)


def _select(condition: Array, x: PyTree, y: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)


def _check_same_tree(name: str, tree: PyTree, like_name: str, like: PyTree) -> None:
    shapes, like_shapes = (
        {jax.tree_util.keystr(path): jnp.shape(leaf) for path, leaf in leaves}
        for leaves in (jax.tree.leaves_with_path(tree), jax.tree.leaves_with_path(like))
    )
    if shapes != like_shapes or jax.tree.structure(tree) != jax.tree.structure(like):
        raise ValueError(
            f"{name} must have the structure and shapes of {like_name}, "
            f"got {name} {shapes} and {like_name} {like_shapes}"
        )


class _Search(NamedTuple):
    """Where conjugate gradient stands: residual = b - Ax as updated, not as recomputed."""

    x: PyTree
    residual: PyTree
    direction: PyTree
    squared_norm: Array  # of the residual
    iteration: Array
    stuck: Array


def conjugate_gradient(
    matvec: Callable[[PyTree], PyTree],
    b: PyTree,
    *,
    iterations: int,
    tolerance: Scalar = 1e-10,
) -> tuple[PyTree, Float[Array, ""]]:
    """Solves Ax = b for a symmetric positive definite A that is given by its product.

    From x = 0: α = r·r / p·Ap, x += αp, r -= αAp, p = r + (r'·r' / r·r) p.
    It also stops, with the x it has, when p·Ap is not positive: A is not positive definite, or
    nothing is left to solve in float32.

    Args:
        matvec: v -> Av on trees like b; called with float32 leaves.
        b: tree of arrays, any real dtype.
        iterations: at most so many products; n suffice for n unknowns in exact arithmetic.
        tolerance: stop when ‖r‖₂ is at most this, in the unit of b.

    Returns:
        x, a float32 tree like b, and residual_norm = ‖b - Ax‖₂, recomputed from x by one more
        product: in float32 it may end above the tolerance that r has reached.

    Raises:
        ValueError: if matvec returns another structure or other shapes than b.

    Example:
        >>> A = jnp.array([[2.0, 0.0], [0.0, 4.0]])
        >>> x, residual_norm = conjugate_gradient(lambda v: A @ v, jnp.ones(2), iterations=2)
        >>> x.round(5).tolist(), bool(residual_norm < 1e-6)
        ([0.5, 0.25], True)

    Source: Nocedal and Wright, Numerical Optimization (2006), algorithm 5.2.
    """
    b = _float32(b)

    def product(v: PyTree) -> PyTree:
        result = matvec(v)
        _check_same_tree("matvec(b)", result, "b", b)
        return _float32(result)

    def unsolved(s: _Search) -> Array:
        return (jnp.sqrt(s.squared_norm) > tolerance) & ~s.stuck & (s.iteration < iterations)

    def improve(s: _Search) -> _Search:
        curved = product(s.direction)
        curvature = _dot(s.direction, curved)
        alpha = s.squared_norm / jnp.where(curvature > 0, curvature, 1.0)
        residual = _axpy(-alpha, curved, s.residual)
        squared_norm = _dot(residual, residual)
        ok = (curvature > 0) & jnp.isfinite(squared_norm)
        beta = squared_norm / s.squared_norm
        better = _Search(
            x=_axpy(alpha, s.direction, s.x),
            residual=residual,
            direction=_axpy(beta, s.direction, residual),
            squared_norm=squared_norm,
            iteration=s.iteration + 1,
            stuck=s.stuck,
        )
        return _select(ok, better, s._replace(stuck=~ok))

    zeros = jax.tree.map(jnp.zeros_like, b)
    start = _Search(zeros, b, b, _dot(b, b), jnp.int32(0), jnp.bool_(False))
    x = jax.lax.while_loop(unsolved, improve, start).x
    residual = _axpy(-1.0, product(x), b)
    return x, jnp.sqrt(_dot(residual, residual))


def fisher_vector_product(
    kl_fn: Callable[[Params], Array], params: Params, vector: PyTree, *, damping: Scalar
) -> PyTree:
    """Curvature of a divergence times a vector, without ever forming the matrix.

    ∇²kl(θ) v + damping·v, by forward-over-reverse: the derivative of ∇kl along v.
    Where kl(θ) = KL(old‖θ) at θ = old, the Hessian is the Fisher matrix of the policy. kl_fn holds
    its old side fixed (`stop_gradient`, or computed outside): otherwise it is 0 everywhere.

    Args:
        kl_fn: params -> scalar; called with float32 leaves.
        params: θ, tree of arrays.
        vector: v, tree like params.
        damping: >= 0, added to the diagonal; makes a singular Fisher matrix invertible.

    Returns:
        float32 tree like params.

    Raises:
        ValueError: if vector has another structure or other shapes than params.

    Example:
        >>> kl_fn = lambda params: 0.5 * jnp.sum(jnp.array([2.0, 3.0]) * params**2)
        >>> fisher_vector_product(kl_fn, jnp.ones(2), jnp.ones(2), damping=0.5).tolist()
        [2.5, 3.5]

    Source: Schulman et al., Trust Region Policy Optimization (2015), appendix C.1.
    """
    _check_same_tree("vector", vector, "params", params)
    params, vector = _float32(params), _float32(vector)
    _, curved = jax.jvp(jax.grad(kl_fn), (params,), (vector,))
    return _axpy(damping, vector, curved)


def backtracking_line_search(
    objective_fn: Callable[[Params], Array],
    kl_fn: Callable[[Params], Array],
    params: Params,
    full_step: PyTree,
    *,
    max_kl: Scalar,
    backtrack_ratio: Scalar,
    max_backtracks: int,
) -> tuple[Params, Metrics]:
    """The longest tried step that improves the objective and stays near the old policy.

    The first f of ρ⁰, ρ¹ ... ρ^(max_backtracks - 1) with
    objective(θ + f·step) > objective(θ) and kl(θ + f·step) <= max_kl. NaN is rejected.

    Args:
        objective_fn: params -> scalar, to be raised.
        kl_fn: params -> scalar, the distance from the old policy.
        params: θ, tree of arrays.
        full_step: tree like params, the step at f = 1.
        max_kl: the largest distance allowed, in nats.
        backtrack_ratio: ρ, between 0 and 1.
        max_backtracks: how many fractions are tried at most; the search stops at the first found.

    Returns:
        The new params, in the dtypes of params, and `accepted` (0 or 1) and `fraction` (f, or 0).
        If no fraction will do, params come back bit for bit.

    Raises:
        ValueError: if full_step is not like params, or ρ is not between 0 and 1.

    Example:
        >>> objective_fn, kl_fn = lambda x: -((x - 1) ** 2), lambda x: x**2 / 2
        >>> settings = dict(max_kl=0.5, backtrack_ratio=0.5, max_backtracks=10)
        >>> x, metrics = backtracking_line_search(objective_fn, kl_fn, 0.0, 4.0, **settings)
        >>> x.item(), metrics["fraction"].item()
        (1.0, 0.25)

    Source: Schulman et al., Trust Region Policy Optimization (2015), appendix C.
    """
    _check_same_tree("full_step", full_step, "params", params)
    if not isinstance(backtrack_ratio, Tracer) and not 0 < np.asarray(backtrack_ratio) < 1:
        raise ValueError(f"backtrack_ratio must be between 0 and 1, got {backtrack_ratio}")
    params = jax.tree.map(jnp.asarray, params)

    def moved(fraction: Array) -> Params:
        return jax.tree.map(lambda p, s: (p + fraction * s).astype(p.dtype), params, full_step)

    def scalar(name: str, value: Array) -> Array:
        check_shape(name, value, ())
        return jnp.asarray(value, jnp.float32)

    # Try 0 measures θ itself, at fraction 0, with the very code that measures the steps: compiled
    # apart, equal parameters could differ in the last bit and pass for an improvement.
    def searching(state):
        tries, _, _, accepted = state
        return ~accepted & (tries <= max_backtracks)

    def attempt(state):
        tries, fraction, baseline, _ = state
        candidate = moved(fraction)
        objective = scalar("objective_fn(params)", objective_fn(candidate))
        kl = scalar("kl_fn(params)", kl_fn(candidate))
        first = tries == 0
        accepted = ~first & (objective > baseline) & (kl <= max_kl)
        shorter = jnp.where(first, 1.0, fraction * backtrack_ratio)
        return (
            tries + 1,
            jnp.where(accepted, fraction, shorter),
            jnp.where(first, objective, baseline),
            accepted,
        )

    start = (jnp.int32(0), jnp.float32(0), jnp.float32(0), jnp.bool_(False))
    _, fraction, _, accepted = jax.lax.while_loop(searching, attempt, start)
    new_params = _select(accepted, moved(fraction), params)
    fraction = jnp.where(accepted, fraction, 0.0)
    return new_params, {"accepted": accepted.astype(jnp.float32), "fraction": fraction}
