"""The importance-weighted surrogate, and the trust-region step that maximises it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Real, Shaped

from rljax.ops.checks import Scalar, check_same_shape
from rljax.ops.kl import MAX_LOG_RATIO, kl_estimate
from rljax.ops.masked import keep, masked_mean
from rljax.ops.solve import backtracking_line_search, conjugate_gradient, fisher_vector_product
from rljax.types import Metrics, Params


def policy_ratio(
    log_probs: Real[ArrayLike, "*S"],
    behaviour_log_probs: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
) -> tuple[Float[Array, "*S"], Float[Array, "*S"]]:
    """The importance ratio of two policies, and its estimate of the divergence between them.

    With l_i = log π(a_i|s_i) - log π⁰(a_i|s_i): ratio_i = exp(clip(l_i, -20, 20)), and
    kl_i = exp(l_i) - 1 - l_i >= 0 (only its exp is bounded), whose mean over actions of π⁰ is
    KL(π⁰‖π). The behaviour policy π⁰ is held constant, and kl_i, made to be logged, altogether.

    Args:
        log_probs: log π(a|s) [*S], float.
        behaviour_log_probs: log π⁰(a|s) [*S], float.
        mask: [*S], bool or 0/1; None keeps everything.

    Returns:
        ratio and kl, each [*S] float32; 1 and 0 where masked.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> ratio, kl = policy_ratio(jnp.array([-1.0, -9.0]), jnp.array([-1.0, -999.0]))
        >>> ratio.tolist(), kl[0].item()
        ([1.0, 485165184.0], 0.0)

    Source: Schulman (2020), Approximating KL Divergence, the estimator k3.
    """
    log_probs = keep(log_probs, mask)
    behaviour_log_probs = jax.lax.stop_gradient(keep(behaviour_log_probs, mask))
    log_ratio = log_probs - behaviour_log_probs
    ratio = jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    # The actions are the behaviour policy's, so it is the one that k3 takes as the sampler.
    return ratio, kl_estimate(behaviour_log_probs, log_probs, kind="k3")


def surrogate_loss(
    log_probs: Real[ArrayLike, "*S"],
    behaviour_log_probs: Real[ArrayLike, "*S"],
    advantages: Real[ArrayLike, "*S"],
    mask: Shaped[ArrayLike, "*S"] | None = None,
    denominator: Real[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Minus the importance-weighted advantage: the objective of TRPO, and of PPO with a KL penalty.

    loss = -Σ_i ρ_i A_i / denominator over the unmasked i, ρ = π(a|s)/π⁰(a|s) as in `policy_ratio`.
    The behaviour policy π⁰ and A are held constant.

    Args:
        log_probs: log π(a|s) [*S] of the actions taken, float.
        behaviour_log_probs: log π⁰(a|s) [*S] under the policy that took them, float.
        advantages: A [*S], float.
        mask: [*S], bool or 0/1; None keeps everything.
        denominator: scalar; None is the number of unmasked elements.

    Returns:
        loss, and the metrics `loss/policy` (the same number) and `policy/behaviour_kl`
        (mean of exp(l) - 1 - l, l the log-ratio: an estimate of KL(π⁰‖π)).

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> log_probs, advantages = jnp.log(jnp.array([0.5, 0.25])), jnp.array([1.0, 2.0])
        >>> surrogate_loss(log_probs, jnp.log(jnp.array([0.25, 0.25])), advantages)[0].item()
        -2.0

    Source: Schulman et al. (2015), Trust Region Policy Optimization, equation 14.
    """
    check_same_shape(
        log_probs=log_probs,
        behaviour_log_probs=behaviour_log_probs,
        advantages=advantages,
        mask=mask,
    )
    ratio, kl = policy_ratio(log_probs, behaviour_log_probs, mask)
    advantages = jax.lax.stop_gradient(keep(advantages, mask))
    loss = -masked_mean(ratio * advantages, mask, denominator=denominator)
    behaviour_kl = masked_mean(kl, mask, denominator=denominator)
    return loss, {"loss/policy": loss, "policy/behaviour_kl": behaviour_kl}


def trpo_step(
    objective_fn: Callable[[Params], Any],
    kl_fn: Callable[[Params], Any],
    params: Params,
    *,
    max_kl: Scalar,
    damping: Scalar,
    cg_iterations: int,
    backtrack_ratio: Scalar,
    max_backtracks: int,
) -> tuple[Params, Metrics]:
    """One natural-gradient step to the edge of a KL ball, shortened until it is a real improvement.

    With g = ∇objective, F the Hessian of kl_fn, both at params, and (F + damping·I) x = g solved by
    conjugate gradient: full step = sqrt(2·max_kl / xᵀ(F + damping·I)x)·x. The first of
    params + ratio^j·step, j = 0, 1, ..., whose objective rises and whose KL is at most max_kl is
    taken. Where none is, where g is 0 and where NaN turns up, params come back bit for bit.

    Args:
        objective_fn: params -> scalar to maximise, such as minus the surrogate loss.
        kl_fn: params -> scalar KL(π⁰‖π) whose side π⁰ is fixed at the policy of `params`.
        params: pytree of float arrays.
        max_kl: δ > 0, in nats.
        damping: added to the diagonal of F, >= 0; above 0 where F may be singular.
        cg_iterations: products with F, at most.
        backtrack_ratio: in (0, 1).
        max_backtracks: step lengths tried, the full one included.

    Returns:
        the new params, and float32 metrics: `trpo/accepted` (1 if a step was taken),
        `trpo/step_fraction` (ratio^j, 0 if none was), `trpo/cg_residual` (norm of
        g - (F + damping·I)x, relative to that of g), `policy/kl` (kl_fn at the new params),
        `loss/policy` (minus the objective before the step), `trpo/improvement` (of the objective
        by the step) and `grad/norm` (of g).

    Raises:
        ValueError: if objective_fn or kl_fn does not return a scalar, or backtrack_ratio is not
            between 0 and 1.

    Example:
        >>> step, metrics = trpo_step(lambda p: 3.0 * p, lambda p: 0.5 * p**2, jnp.array(0.0),
        ...     max_kl=0.5, damping=0.0, cg_iterations=1, backtrack_ratio=0.5, max_backtracks=5)
        >>> step.item(), metrics["trpo/accepted"].item()
        (1.0, 1.0)

    Source: Schulman et al. (2015), Trust Region Policy Optimization, appendix C. The damping, which
    the authors' code has and the text does not, counts in the length of the step as well.
    """
    for name, function in {"objective_fn": objective_fn, "kl_fn": kl_fn}.items():
        shape = jax.eval_shape(function, params).shape
        if shape != ():
            raise ValueError(f"{name}(params) must have shape (), got {shape}")
    objective, gradient = jax.value_and_grad(objective_fn)(params)
    gradient = jax.tree.map(lambda g: g.astype(jnp.float32), gradient)
    norm = _norm(gradient)
    # The step does not depend on the scale of the objective, but float32 and CG's tolerance do.
    direction = jax.tree.map(lambda g: g / jnp.where(norm > 0, norm, 1.0), gradient)

    def product(vector: Params) -> Params:
        return fisher_vector_product(kl_fn, params, vector, damping=damping)

    x, residual = conjugate_gradient(product, direction, iterations=cg_iterations)
    curvature = _dot(x, product(x))
    positive = curvature > 0  # not where the gradient is 0, where F is no Fisher matrix, or NaN
    length = jnp.sqrt(2.0 * max_kl / jnp.where(positive, curvature, 1.0))
    full_step = jax.tree.map(lambda v: jnp.where(positive, length, 0.0) * v, x)

    new_params, search = backtracking_line_search(
        objective_fn,
        kl_fn,
        params,
        full_step,
        max_kl=max_kl,
        backtrack_ratio=backtrack_ratio,
        max_backtracks=max_backtracks,
    )
    accepted = search["accepted"]
    metrics = {
        "trpo/accepted": accepted,
        "trpo/step_fraction": search["fraction"],
        "trpo/cg_residual": residual,
        "trpo/improvement": jnp.where(accepted > 0, objective_fn(new_params) - objective, 0.0),
        "policy/kl": kl_fn(new_params),
        "loss/policy": -objective,
        "grad/norm": norm,
    }
    return new_params, {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}


def _dot(a: Params, b: Params) -> Array:
    products = jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)
    return jax.tree.reduce(jnp.add, products)


def _norm(tree: Params) -> Array:
    return jnp.sqrt(_dot(tree, tree))
