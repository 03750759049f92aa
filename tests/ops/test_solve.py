"""Conjugate gradient, Fisher-vector products and the line search against float64 linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.distributions import categorical_kl
from rljax.ops.solve import (
    backtracking_line_search,
    conjugate_gradient,
    fisher_vector_product,
)

# One categorical with p = [.5, .3, .2]: its Fisher matrix in logit space is diag(p) - p pᵀ.
PROBS = np.array([0.5, 0.3, 0.2])
LOGITS = jnp.log(jnp.array(PROBS, jnp.float32))
FISHER = np.array([[0.25, -0.15, -0.1], [-0.15, 0.21, -0.06], [-0.1, -0.06, 0.16]])


def policy_kl(logits):
    return categorical_kl(LOGITS, logits)


def symmetric(rng, eigenvalues):
    """A random symmetric matrix with these eigenvalues, float64."""
    rotation, _ = np.linalg.qr(rng.normal(size=(len(eigenvalues),) * 2))
    return rotation @ np.diag(eigenvalues) @ rotation.T


def solve(matrix, b, **settings):
    matrix = jnp.asarray(matrix, jnp.float32)
    settings = {"iterations": 10, **settings}
    return conjugate_gradient(lambda v: matrix @ v, jnp.asarray(b, jnp.float32), **settings)


def test_damped_natural_gradient_step_by_hand():
    # x = (F + 0.1 I)⁻¹ g, and the step sqrt(2·0.01 / xᵀ(F + 0.1 I)x) x climbs: g·step = +0.0795.
    gradient = jnp.array([0.3, -0.1, -0.2])
    x, residual_norm = conjugate_gradient(
        lambda v: fisher_vector_product(policy_kl, LOGITS, v, damping=0.1), gradient, iterations=10
    )
    np.testing.assert_allclose(x, [0.6543209877, -0.1111111111, -0.5432098765], rtol=1e-4)
    assert residual_norm < 1e-6
    curved = fisher_vector_product(policy_kl, LOGITS, x, damping=0.1)
    step = jnp.sqrt(2 * 0.01 / jnp.dot(x, curved)) * x
    np.testing.assert_allclose(step, [0.1645994483, -0.0279508497, -0.1366485986], rtol=1e-4)
    quadratic = 0.5 * np.dot(step, (FISHER + 0.1 * np.eye(3)) @ np.asarray(step))
    np.testing.assert_allclose(quadratic, 0.01, rtol=1e-4)
    np.testing.assert_allclose(np.dot(gradient, step), 0.0795046392, rtol=1e-4)
    assert 0 < policy_kl(LOGITS + step) < 0.01


def test_conjugate_gradient_on_a_tree():
    matrix = symmetric(np.random.default_rng(0), np.linspace(1.0, 20.0, 12))
    flat = np.random.default_rng(1).normal(size=12)
    b = {"w": jnp.asarray(flat[:9].reshape(3, 3)), "rest": (jnp.asarray(flat[9]), flat[10:])}
    to_flat = lambda t: jnp.concatenate([t["w"].ravel(), t["rest"][0][None], t["rest"][1]])  # noqa: E731

    def matvec(v):
        y = jnp.asarray(matrix, jnp.float32) @ to_flat(v)
        return {"w": y[:9].reshape(3, 3), "rest": (y[9], y[10:])}

    x, residual_norm = jax.jit(lambda b: conjugate_gradient(matvec, b, iterations=20))(b)
    np.testing.assert_allclose(to_flat(x), np.linalg.solve(matrix, flat), rtol=1e-4, atol=1e-5)
    assert residual_norm < 1e-4
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((x, residual_norm)))


@pytest.mark.parametrize("iterations", [0, 1, 2, 4])
def test_each_iterate_is_the_best_of_its_krylov_space(iterations):
    # After k products x minimises ½xᵀAx - bᵀx over span{b, Ab, ... A^(k-1) b}: solve that directly.
    rng = np.random.default_rng(2)
    matrix, b = symmetric(rng, [1.0, 2.0, 4.0, 7.0, 11.0, 16.0]), rng.normal(size=6)
    x, residual_norm = solve(matrix, b, iterations=iterations)
    best = np.zeros(6)
    if iterations:
        powers = [np.linalg.matrix_power(matrix, k) @ b for k in range(iterations)]
        basis, _ = np.linalg.qr(np.stack(powers, axis=1))
        best = basis @ np.linalg.solve(basis.T @ matrix @ basis, basis.T @ b)
    np.testing.assert_allclose(x, best, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(residual_norm, np.linalg.norm(b - matrix @ best), rtol=1e-4)


def test_residual_norm_is_the_true_one():
    # Condition number 1e6: in float32 the updated residual shrinks on, the true one does not.
    rng = np.random.default_rng(3)
    matrix, b = symmetric(rng, np.logspace(-3, 3, 10)), rng.normal(size=10)
    x, residual_norm = solve(matrix, b, iterations=500)
    true = np.linalg.norm(b - matrix @ np.asarray(x, np.float64))
    assert true > 1e-5
    np.testing.assert_allclose(residual_norm, true, rtol=0.2)


def test_stops_at_the_tolerance():
    # A = diag(1, 3), b = [1, 1]: α = 2/4, x = [½, ½], r = [½, -½] of norm 0.7071; then solved.
    for tolerance, expected in [(1.5, [0, 0]), (0.8, [0.5, 0.5]), (0.7, [1, 1 / 3])]:
        x, residual_norm = solve(np.diag([1.0, 3.0]), [1.0, 1.0], tolerance=tolerance)
        np.testing.assert_allclose(x, expected, rtol=1e-6)
        assert residual_norm <= tolerance
    exact = np.float32(np.sqrt(np.float32(2.0)))  # at most, not below: ‖b‖ itself is enough
    assert solve(np.diag([1.0, 3.0]), [1.0, 1.0], tolerance=exact)[0].tolist() == [0, 0]


@pytest.mark.parametrize("tolerance", [1e-10, 0.0, -1.0])
def test_never_nan(tolerance):
    rng = np.random.default_rng(4)
    cases = {  # matrix, b, exact solution if there is one
        "b = 0": (symmetric(rng, [1.0, 2.0, 3.0]), np.zeros(3), np.zeros(3)),
        "solved at once": (2 * np.eye(3), [2.0, -4.0, 6.0], [1.0, -2.0, 3.0]),
        "long after": (np.diag([1.0, 2.0, 4.0]), [1.0, 1.0, 1.0], [1.0, 0.5, 0.25]),
        "tiny b": (2 * np.eye(3), [1e-30, 0.0, 0.0], None),
        "singular, b in its range": (np.diag([2.0, 1.0, 0.0]), [2.0, 3.0, 0.0], [1.0, 3.0, 0.0]),
        "singular, b not in its range": (np.diag([2.0, 1.0, 0.0]), [2.0, 3.0, 1.0], None),
        "singular Fisher": (FISHER, [0.3, -0.1, -0.2], None),
        "zero": (np.zeros((3, 3)), [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]),
        "negative definite": (-np.eye(3), [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]),
        "huge": (1e30 * np.eye(3), [1e10, 0.0, 0.0], None),
    }
    for name, (matrix, b, expected) in cases.items():
        x, residual_norm = solve(matrix, b, iterations=100, tolerance=tolerance)
        assert np.isfinite(x).all(), name
        assert np.isfinite(residual_norm), name
        if expected is not None:
            np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_conjugate_gradient_of_bfloat16_and_under_vmap():
    matrix = jnp.diag(jnp.array([2.0, 4.0]))
    b = jnp.array([[2.0, 4.0], [0.0, 0.0], [4.0, 2.0]], jnp.bfloat16)
    solution = jax.vmap(lambda b: conjugate_gradient(lambda v: matrix @ v, b, iterations=5))(b)
    assert solution[0].dtype == jnp.float32
    np.testing.assert_allclose(solution[0], [[1, 1], [0, 0], [2, 0.5]], rtol=1e-6)


def test_fisher_vector_product_by_hand():
    # v = [1, 0, -1]: p·v = 0.3, Fv = p (v - 0.3) = [.35, -.09, -.26], vᵀFv = 0.61.
    v = jnp.array([1.0, 0.0, -1.0])
    for kl_fn in (policy_kl, lambda logits: categorical_kl(logits, LOGITS)):
        product = fisher_vector_product(kl_fn, LOGITS, v, damping=0.0)
        np.testing.assert_allclose(product, [0.35, -0.09, -0.26], atol=1e-6)
        np.testing.assert_allclose(jnp.dot(v, product), 0.61, rtol=1e-5)
        damped = fisher_vector_product(kl_fn, LOGITS, v, damping=0.1)
        np.testing.assert_allclose(damped, [0.45, -0.09, -0.36], atol=1e-6)


def test_fisher_vector_product_of_a_network_is_the_expected_outer_product():
    """F = mean over states of Σ_a p_a ∇log p_a ∇log p_aᵀ, summed over all actions in float64."""
    rng = np.random.default_rng(5)
    states = jnp.asarray(rng.normal(size=(6, 3)), jnp.float32)
    shapes = {"hidden": {"w": (3, 4), "b": (4,)}, "out": {"w": (4, 3)}}
    params, vector = (
        jax.tree.map(
            lambda s: jnp.asarray(rng.normal(size=s), jnp.float32),
            shapes,
            is_leaf=lambda s: isinstance(s, tuple),
        )
        for _ in range(2)
    )

    def logits_fn(params):
        hidden = jnp.tanh(states @ params["hidden"]["w"] + params["hidden"]["b"][None])
        return hidden @ params["out"]["w"]

    def kl_fn(new_params):
        old = jax.lax.stop_gradient(logits_fn(params))
        return jnp.mean(categorical_kl(old, logits_fn(new_params)))

    product = jax.jit(lambda v: fisher_vector_product(kl_fn, params, v, damping=0.01))(vector)

    log_probs = lambda p: jax.nn.log_softmax(logits_fn(p))  # noqa: E731
    slopes = jax.jit(jax.jacrev(log_probs))(params)  # [states, actions, *leaf]
    slopes = np.concatenate([np.reshape(s, (6, 3, -1)) for s in jax.tree.leaves(slopes)], axis=-1)
    flat = np.concatenate([np.ravel(v) for v in jax.tree.leaves(vector)]).astype(np.float64)
    fisher = np.einsum("sa,sai,saj->ij", np.exp(log_probs(params), dtype=float) / 6, slopes, slopes)
    expected = fisher @ flat + 0.01 * flat
    actual = np.concatenate([np.ravel(v) for v in jax.tree.leaves(product)])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def search(params, full_step, objective_fn=None, kl_fn=None, **settings):
    """From θ = 0, up to the peak of -(θ - 1)², with the distance θ²/2."""
    settings = {"max_kl": 0.5, "backtrack_ratio": 0.5, "max_backtracks": 10, **settings}
    objective_fn = objective_fn or (lambda x: -jnp.square(x - 1))
    kl_fn = kl_fn or (lambda x: jnp.square(x) / 2)
    return backtracking_line_search(objective_fn, kl_fn, params, full_step, **settings)


def test_line_search_by_hand():
    # Step 4: f = 1 and ½ give -9 and -1, not strictly above -1; f = ¼ gives 0 with KL ½ exactly.
    x, metrics = search(jnp.array(0.0), jnp.array(4.0))
    assert (x, metrics["fraction"], metrics["accepted"]) == (1.0, 0.25, 1.0)
    assert all(value.dtype == jnp.float32 for value in metrics.values())
    # f = ¼ is now too far: f = ⅛ has KL ⅛ and -(½)² > -1.
    x, metrics = search(jnp.array(0.0), jnp.array(4.0), max_kl=0.49)
    assert (x, metrics["fraction"]) == (0.5, 0.125)
    # The full step; and at a ratio of 0.8, KL 1.5²/2 and 1.2²/2 are too far, 0.96²/2 = 0.46 is not.
    assert search(jnp.array(0.0), jnp.array(0.5))[1]["fraction"] == 1.0
    x, metrics = search(jnp.array(0.0), jnp.array(1.5), backtrack_ratio=0.8)
    np.testing.assert_allclose((x, metrics["fraction"]), (0.96, 0.64), rtol=1e-6)


@pytest.mark.parametrize(("max_backtracks", "fraction"), [(0, 0.0), (2, 0.0), (3, 0.25)])
def test_line_search_tries_so_many_and_no_more(max_backtracks, fraction):
    x, metrics = search(jnp.array(0.0), jnp.array(4.0), max_backtracks=max_backtracks)
    assert (x, metrics["fraction"], metrics["accepted"]) == (4 * fraction, fraction, fraction > 0)


def test_line_search_rejects_nan():
    def broken_above(limit, f):
        return lambda x: jnp.where(x > limit, jnp.nan, f(x))

    rising, near = (lambda x: x), (lambda x: 0.0 * x)
    for objective_fn, kl_fn in (
        (broken_above(1.5, rising), near),
        (rising, broken_above(1.5, near)),
    ):
        x, metrics = search(jnp.array(0.0), jnp.array(4.0), objective_fn, kl_fn)
        assert (x, metrics["fraction"]) == (1.0, 0.25)


@pytest.mark.parametrize(
    "case", ["NaN at params", "NaN step", "infinite step", "no step", "wrong sign", "too far"]
)
def test_line_search_that_fails_returns_the_params_bit_for_bit(case):
    params = {"a": jnp.array([-0.0, 1e-40, 0.1]), "b": jnp.array(0.3, jnp.bfloat16)}
    size = {"NaN step": np.nan, "infinite step": np.inf, "no step": 0.0, "wrong sign": -1.0}
    step = jax.tree.map(lambda x: jnp.full(x.shape, size.get(case, 1.0)), params)

    def objective_fn(params):
        value = jnp.sum(jnp.sin(params["a"])) + params["b"].astype(jnp.float32)
        return value * jnp.nan if case == "NaN at params" else value

    def kl_fn(params):
        return jnp.float32(1.0 if case == "too far" else 0.0)

    new, metrics = jax.jit(lambda p, s: search(p, s, objective_fn, kl_fn))(params, step)
    assert (metrics["accepted"], metrics["fraction"]) == (0.0, 0.0)
    for name, old in params.items():
        assert new[name].dtype == old.dtype
        assert np.asarray(new[name]).tobytes() == np.asarray(old).tobytes()


def test_line_search_stops_early_and_in_jit_equals_eager():
    tried = []

    def objective_fn(x):
        jax.debug.callback(lambda x: tried.append(float(x)), x)
        return -jnp.square(x - 1)

    run = lambda p, s: search(p, s, objective_fn)  # noqa: E731
    eager = run(jnp.array(0.0), jnp.array(4.0))
    jax.effects_barrier()
    assert sorted(tried) == [0.0, 1.0, 2.0, 4.0]  # params, and three of ten fractions
    jitted = jax.jit(run)(jnp.array(0.0), jnp.array(4.0))
    np.testing.assert_array_equal(eager[0], jitted[0])
    assert eager[1]["fraction"] == jitted[1]["fraction"] == 0.25


def test_line_search_of_each_seed_under_vmap():
    # Steps 4, 0.5, -1: a quarter, all of it, none.
    x, metrics = jax.vmap(search)(jnp.zeros(3), jnp.array([4.0, 0.5, -1.0]))
    assert metrics["fraction"].tolist() == [0.25, 1.0, 0.0]
    assert x.tolist() == [1.0, 0.5, 0.0]


@pytest.mark.errors
def test_trees_must_agree():
    tree = {"w": jnp.ones((3, 1)), "b": jnp.ones(3)}
    for other in ({"w": jnp.ones((3, 1))}, {"w": jnp.ones(3), "b": jnp.ones(3)}, (1.0, 2.0)):
        with pytest.raises(ValueError, match="vector must have the structure and shapes of params"):
            fisher_vector_product(lambda p: jnp.sum(p["w"] ** 2), tree, other, damping=0.0)
        with pytest.raises(ValueError, match="full_step must have the structure and shapes"):
            search(tree, other, lambda p: jnp.sum(p["w"]), lambda p: jnp.sum(p["w"]))
        with pytest.raises(ValueError, match="must have the structure and shapes of b"):
            conjugate_gradient(lambda v, other=other: other, tree, iterations=3)


@pytest.mark.errors
def test_line_search_settings():
    for ratio in (0.0, 1.0, -0.5, 2.0, float("nan")):
        with pytest.raises(
            ValueError, match=f"backtrack_ratio must be between 0 and 1, got {ratio}"
        ):
            search(jnp.array(0.0), jnp.array(1.0), backtrack_ratio=ratio)
    with pytest.raises(
        ValueError, match=r"objective_fn\(params\) must have shape \(\), got \(2,\)"
    ):
        search(jnp.zeros(2), jnp.ones(2), kl_fn=jnp.sum)
    with pytest.raises(ValueError, match=r"kl_fn\(params\) must have shape \(\), got \(2,\)"):
        search(jnp.zeros(2), jnp.ones(2), objective_fn=jnp.sum)
