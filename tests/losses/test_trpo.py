"""The surrogate by hand; the trust-region step against dense linear algebra in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses.trpo import policy_ratio, surrogate_loss, trpo_step
from rljax.losses.vpg import vpg_loss

SETTINGS = {
    "max_kl": 0.01,
    "damping": 0.1,
    "cg_iterations": 10,
    "backtrack_ratio": 0.8,
    "max_backtracks": 10,
}


def test_surrogate_by_hand():
    # Ratios 2, 1, ½; -(2·1 + 1·-3 + ½·4)/3 = -1/3; the gradient is -ρA/3, also beyond any band.
    # exp(l) - 1 - l: 1 - ln 2, 0, -½ + ln 2; their mean is 1/6.
    behaviour = jnp.log(jnp.array([0.25, 0.5, 0.5]))
    log_probs = jnp.log(jnp.array([0.5, 0.5, 0.25]))
    advantages = jnp.array([1.0, -3.0, 4.0])
    (loss, metrics), grad = jax.value_and_grad(surrogate_loss, has_aux=True)(
        log_probs, behaviour, advantages
    )
    np.testing.assert_allclose(loss, -1 / 3, rtol=1e-6)
    np.testing.assert_allclose(grad, [-2 / 3, 1.0, -2 / 3], rtol=1e-6)
    np.testing.assert_allclose(metrics["policy/behaviour_kl"], 1 / 6, rtol=1e-5)
    assert metrics["loss/policy"] == loss


def test_surrogate_at_the_behaviour_policy_has_the_policy_gradient():
    log_probs, advantages = jnp.array([-1.0, -2.0, -0.3]), jnp.array([2.0, -1.0, 0.5])
    actual = jax.grad(lambda x: surrogate_loss(x, x, advantages)[0])(log_probs)
    wanted = jax.grad(lambda x: vpg_loss(x, advantages)[0])(log_probs)
    np.testing.assert_array_equal(actual, wanted)


def test_ratio_and_kl_are_exact_in_expectation():
    """Σ_a π⁰(a) ρ_a = 1 and Σ_a π⁰(a) kl_a = KL(π⁰‖π), over all actions of two policies."""
    behaviour, policy = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])
    ratio, kl = policy_ratio(np.float32(np.log(policy)), np.float32(np.log(behaviour)))
    np.testing.assert_allclose(behaviour @ np.asarray(ratio), 1.0, rtol=1e-6)
    wanted = np.sum(behaviour * np.log(behaviour / policy))
    np.testing.assert_allclose(behaviour @ np.asarray(kl), wanted, rtol=1e-5)


def test_surrogate_bounds_far_off_log_ratios():
    log_probs, advantages = jnp.array([500.0, -500.0, jnp.nan]), jnp.array([1.0, 1.0, jnp.inf])
    (loss, metrics), grad = jax.value_and_grad(surrogate_loss, has_aux=True)(
        log_probs, jnp.zeros(3), advantages, jnp.array([1, 1, 0])
    )
    np.testing.assert_allclose(loss, -np.exp(20.0) / 2, rtol=1e-5)
    np.testing.assert_array_equal(grad, 0.0)  # beyond the bound the ratio is a constant
    # (e^20 - 1 - 500 + e^-20 - 1 + 500)/2
    np.testing.assert_allclose(metrics["policy/behaviour_kl"], np.exp(20.0) / 2, rtol=1e-5)


def categorical_kl_to(probs):
    """KL(probs‖softmax(logits)), probs fixed."""
    probs = jnp.asarray(probs, jnp.float32)
    return lambda logits: jnp.sum(probs * (jnp.log(probs) - jax.nn.log_softmax(logits)))


def test_step_of_one_categorical_by_hand():
    # F = diag(p) - ppᵀ, (F + .1 I)x = g: x = (.6543210, -.1111111, -.5432099);
    # xᵀ(F + .1 I)x = gᵀx = .3160494, step = sqrt(.02/.3160494)·x = .2515577·x, uphill.
    # Without the factor 2 it would start with .116, without damping in its length with .188.
    probs, g = np.array([0.5, 0.3, 0.2]), jnp.array([0.3, -0.1, -0.2])
    logits = jnp.log(jnp.asarray(probs, jnp.float32))
    new, metrics = trpo_step(lambda x: x @ g, categorical_kl_to(probs), logits, **SETTINGS)
    step = np.array([0.16459945, -0.02795085, -0.1366486])
    np.testing.assert_allclose(new - logits, step, atol=2e-6)
    np.testing.assert_allclose(metrics["trpo/improvement"], 0.07950464, rtol=1e-4)  # gᵀ step
    np.testing.assert_allclose(metrics["grad/norm"], 0.14**0.5, rtol=1e-6)
    np.testing.assert_allclose(metrics["trpo/cg_residual"], 0.0, atol=1e-6)
    assert metrics["trpo/accepted"] == 1.0
    assert metrics["trpo/step_fraction"] == 1.0
    q = np.exp(np.log(probs) + step)
    kl = np.sum(probs * np.log(probs / (q / q.sum())))
    np.testing.assert_allclose(metrics["policy/kl"], kl, rtol=1e-3)
    assert kl < 0.01


def softmax_policy(seed, num_states=4, num_actions=3):
    """A tabular policy in two leaves, state weights, advantages; all as float64 NumPy."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(num_states))
    logits = rng.normal(size=(num_states, num_actions))
    advantages = rng.normal(size=(num_states, num_actions))
    return weights, logits, advantages


def natural_step(weights, logits, advantages, max_kl, damping):
    """Dense float64 solution: the Fisher matrix is block diagonal in the states."""
    num_states, num_actions = logits.shape
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    fisher = np.zeros((num_states * num_actions,) * 2)
    gradient = []
    for s, p in enumerate(probs):
        block = slice(s * num_actions, (s + 1) * num_actions)
        fisher[block, block] = weights[s] * (np.diag(p) - np.outer(p, p))
        gradient += list(weights[s] * p * (advantages[s] - p @ advantages[s]))
    damped = fisher + damping * np.eye(len(fisher))
    x = np.linalg.solve(damped, gradient)
    return (np.sqrt(2 * max_kl / (x @ damped @ x)) * x).reshape(logits.shape), fisher


def functions_of(weights, logits, advantages):
    """The exact surrogate and KL of the policy {"a": first state, "b": the others}."""
    weights, advantages = jnp.asarray(weights, jnp.float32), jnp.asarray(advantages, jnp.float32)
    params = {"a": jnp.asarray(logits[:1], jnp.float32), "b": jnp.asarray(logits[1:], jnp.float32)}

    def log_probs(params):
        return jax.nn.log_softmax(jnp.concatenate([params["a"], params["b"]]))

    old = log_probs(params)

    def objective_fn(params):
        # Every action of every state, weighted by its probability under the old policy.
        each = jnp.exp(old) * weights[:, None] * advantages
        return -surrogate_loss(log_probs(params), old, each, denominator=1)[0]

    def kl_fn(params):
        return jnp.sum(weights * jnp.sum(jnp.exp(old) * (old - log_probs(params)), axis=1))

    return objective_fn, kl_fn, params


@pytest.mark.parametrize(("damping", "max_kl"), [(0.1, 0.01), (1e-3, 1e-3), (1.0, 0.05)])
def test_step_of_a_tabular_policy_is_the_exact_damped_one(damping, max_kl):
    problem = softmax_policy(seed=1)
    step, fisher = natural_step(*problem, max_kl, damping)
    objective_fn, kl_fn, params = functions_of(*problem)
    settings = SETTINGS | {"damping": damping, "max_kl": max_kl, "cg_iterations": 30}
    new, metrics = jax.jit(lambda p: trpo_step(objective_fn, kl_fn, p, **settings))(params)
    moved = np.concatenate([new["a"] - params["a"], new["b"] - params["b"]])
    fraction = float(metrics["trpo/step_fraction"])
    np.testing.assert_allclose(moved, fraction * step, rtol=1e-3, atol=1e-3 * np.abs(step).max())
    assert metrics["trpo/cg_residual"] < 1e-4
    assert metrics["trpo/improvement"] > 0
    assert 0 < metrics["policy/kl"] <= max_kl

    # To second order the KL of the step is ½ sᵀFs; what the damping adds to it makes max_kl.
    quadratic = 0.5 * moved.reshape(-1) @ fisher @ moved.reshape(-1)
    np.testing.assert_allclose(metrics["policy/kl"], quadratic, rtol=0.15)
    full = quadratic + 0.5 * damping * np.sum(moved**2)
    np.testing.assert_allclose(full, fraction**2 * max_kl, rtol=2e-3)


def test_step_does_not_depend_on_the_scale_of_the_objective():
    objective_fn, kl_fn, params = functions_of(*softmax_policy(seed=2))

    @jax.jit
    def step(params, scale):
        def scaled_fn(p):
            return scale * objective_fn(p)

        return trpo_step(scaled_fn, kl_fn, params, **SETTINGS)

    wanted, _ = step(params, 1.0)
    for scale in (1e-12, 1e12):
        new, metrics = step(params, scale)
        assert metrics["trpo/accepted"] == 1.0
        jax.tree.map(lambda a, w: np.testing.assert_allclose(a, w, rtol=1e-4), new, wanted)


@pytest.mark.parametrize(
    ("objective_fn", "kl_fn", "fraction"),
    [
        # KL x²/2 and max_kl ½ make the full step 1. The objective x - 1.5x² falls there and rises
        # at ½; the steeper KL x²/2 + 10x⁴ is 10.5 at 1, .75 at ½ and .07 at ¼.
        (lambda x: x, lambda x: x**2 / 2, 1.0),
        (lambda x: x - 1.5 * x**2, lambda x: x**2 / 2, 0.5),
        (lambda x: x, lambda x: x**2 / 2 + 10 * x**4, 0.25),
        (lambda x: jnp.where(x > 0.6, jnp.nan, x), lambda x: x**2 / 2, 0.5),
        (lambda x: x, lambda x: jnp.where(x > 0.3, jnp.nan, x**2 / 2), 0.25),
    ],
)
def test_line_search_shortens_the_step(objective_fn, kl_fn, fraction):
    settings = {"max_kl": 0.5, "damping": 0.0, "cg_iterations": 3}
    settings |= {"backtrack_ratio": 0.5, "max_backtracks": 4}
    new, metrics = trpo_step(objective_fn, kl_fn, jnp.array(0.0), **settings)
    assert new == fraction
    assert metrics["trpo/step_fraction"] == fraction
    assert metrics["policy/kl"] == kl_fn(jnp.float32(fraction))
    assert metrics["trpo/improvement"] == objective_fn(jnp.float32(fraction))


def first_leaf(params):
    return params["w"][0]


def quadratic(params):
    return 0.5 * (jnp.sum(params["w"] ** 2) + jnp.sum(params["b"].astype(jnp.float32) ** 2))


@pytest.mark.parametrize(
    ("objective_fn", "kl_fn"),
    [
        # Falls everywhere on the way, though its slope at params is not 0.
        (lambda p: p["w"][1] - 1e9 * jnp.sum((p["w"] - START["w"]) ** 2), quadratic),
        (lambda p: jnp.float32(3.0), quadratic),  # gradient 0
        (lambda p: first_leaf(p) * jnp.nan, quadratic),
        (lambda p: jnp.sqrt(p["w"][0]), quadratic),  # gradient inf at 0
        (first_leaf, lambda p: -quadratic(p)),  # no Fisher matrix: negative curvature
        (first_leaf, lambda p: jnp.float32(0.0)),  # no curvature at all
        (first_leaf, lambda p: quadratic(p) + 1.0),  # above max_kl wherever it goes
        (first_leaf, lambda p: quadratic(p) * jnp.nan),
    ],
)
def test_a_failed_step_returns_params_bit_for_bit(objective_fn, kl_fn):
    settings = SETTINGS | {"damping": 0.0}
    new, metrics = jax.jit(lambda p: trpo_step(objective_fn, kl_fn, p, **settings))(START)
    for name, leaf in START.items():
        assert new[name].dtype == leaf.dtype
        assert np.asarray(new[name]).tobytes() == np.asarray(leaf).tobytes()
    for name in ("trpo/accepted", "trpo/step_fraction", "trpo/improvement"):
        assert metrics[name] == 0.0


def test_metrics_are_finite_where_the_gradient_is_zero():
    _, metrics = trpo_step(lambda p: jnp.float32(3.0), quadratic, START, **SETTINGS)
    for name, x in metrics.items():
        assert np.isfinite(x), name
    assert metrics["trpo/cg_residual"] == metrics["grad/norm"] == 0.0


START = {"w": jnp.array([-0.0, 1e-40, 3.3333333]), "b": jnp.array([0.1, -7.7], jnp.bfloat16)}


def test_metrics_are_flat_float32_scalars_and_bfloat16_params_stay():
    params = {"w": jnp.zeros(3), "b": jnp.zeros(2, jnp.bfloat16)}
    new, metrics = trpo_step(
        lambda p: first_leaf(p) + p["b"].astype(jnp.float32)[0], quadratic, params, **SETTINGS
    )
    assert metrics["trpo/accepted"] == 1.0
    assert new["b"].dtype == jnp.bfloat16
    # F = I: both moved coordinates share the step, sqrt(.02/1.1)/√2 each.
    for name in params:
        np.testing.assert_allclose(np.float32(new[name])[0], 0.0953463, rtol=4e-3)
    for name, x in metrics.items():
        assert (x.shape, x.dtype) == ((), jnp.float32), name


def test_vmapped_seeds_equal_single_runs():
    problems = [softmax_policy(seed) for seed in range(3)]

    def step(weights, logits, advantages):
        params = {"logits": logits}
        old = jax.nn.log_softmax(logits)

        def objective_fn(p):
            gain = jnp.exp(jax.nn.log_softmax(p["logits"])) * advantages
            return jnp.sum(weights * jnp.sum(gain, axis=1))

        def kl_fn(p):
            new = jax.nn.log_softmax(p["logits"])
            return jnp.sum(weights * jnp.sum(jnp.exp(old) * (old - new), axis=1))

        return trpo_step(objective_fn, kl_fn, params, **SETTINGS)[0]["logits"]

    together = jax.jit(jax.vmap(step))(*(np.float32(np.stack(x)) for x in zip(*problems)))
    for problem, actual in zip(problems, together):
        wanted = jax.jit(step)(*(np.float32(x) for x in problem))
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)
        natural, _ = natural_step(*problem, SETTINGS["max_kl"], SETTINGS["damping"])
        np.testing.assert_allclose(actual - problem[1], natural, atol=1e-4)


@pytest.mark.errors
def test_functions_must_return_scalars():
    params = jnp.zeros(3)
    with pytest.raises(ValueError, match=r"objective_fn\(params\) .* \(\), got \(3,\)"):
        trpo_step(lambda p: p, lambda p: jnp.sum(p**2), params, **SETTINGS)
    with pytest.raises(ValueError, match=r"kl_fn\(params\) .* \(\), got \(3,\)"):
        trpo_step(jnp.sum, lambda p: p**2, params, **SETTINGS)
    with pytest.raises(ValueError, match=r"backtrack_ratio .* 1\.5"):
        trpo_step(jnp.sum, lambda p: jnp.sum(p**2), params, **SETTINGS | {"backtrack_ratio": 1.5})
