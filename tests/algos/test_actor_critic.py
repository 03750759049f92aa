"""What the four algorithms share: normalised observations, learning rates, fitted values."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from rljax.algos.actor_critic import (
    annealed,
    apply_gradients,
    make_optimizer,
    normalize,
    ravel,
)
from rljax.ops.moments import init_moments, variance
from rljax.ops.moments import update_moments as eager_update_moments

from .small import CHOOSE, ONE_STATE, make_small, one_state_rollout, random_rollout

update_moments = jax.jit(eager_update_moments)


def test_normalize_by_hand():
    # Column 0 has mean 3 and variance 8/3; column 1 is constant, its deviations are all 0.
    data = jnp.array([[1.0, 10.0], [3.0, 10.0], [5.0, 10.0]])
    moments = update_moments(init_moments((2,)), data)
    wanted = np.array([[-2, 0], [0, 0], [2, 0]]) / np.sqrt(8 / 3)
    np.testing.assert_allclose(normalize(moments, data), wanted, rtol=1e-5)
    # any batch axes, and at most 10 standard deviations
    far = jnp.array([[[1e6, 10.0]], [[-1e6, 10.0]]])
    np.testing.assert_allclose(normalize(moments, far), [[[10, 0]], [[-10, 0]]], rtol=1e-6)


def test_normalize_does_nothing_before_the_first_data_and_without_moments():
    data = jnp.array([[1.0, -7.0], [3.0, 0.5]])
    np.testing.assert_array_equal(normalize(init_moments((2,)), data), data)
    np.testing.assert_array_equal(normalize(None, data), data)


def test_moments_are_numpys_over_all_data_seen():
    """Mean and variance of every observation acted on so far; masked ones do not count."""
    algo = make_small("a2c", CHOOSE, {"normalize_observations": True, "net.name": "tabular"})
    rng, state, seen = np.random.default_rng(3), algo.init(jax.random.key(0)), []
    for u in range(4):
        rollout = random_rollout(rng, CHOOSE, 5, 8, centre=1000.0 + u, spread=0.5)
        mask = rng.random((5, 8)) < 0.8
        rollout.observations[~mask] = np.nan
        before = state.moments
        state, _ = algo.update(jax.random.key(u), state, rollout._replace(mask=mask))
        seen.append(rollout.observations[mask])
        data = np.concatenate(seen).astype(np.float64)
        assert state.moments.count == len(data)
        np.testing.assert_allclose(state.moments.mean, data.mean(0), rtol=1e-6)
        np.testing.assert_allclose(variance(state.moments), data.var(0), rtol=1e-4)
        assert before.count < state.moments.count


def test_acting_uses_the_moments_of_the_state():
    """The greedy action of a linear policy flips with the mean that is taken off."""
    algo = make_small("a2c", CHOOSE, {"normalize_observations": True, "net.name": "tabular"})
    state = algo.init(jax.random.key(0))
    # logits (-x₀, x₀, 0, 0)
    rows = jnp.zeros((3, 4)).at[0, :2].set(jnp.array([-1.0, 1.0]))
    state.params["policy"]["rows"] = rows
    observations = jnp.array([[5.0, 0.0, 0.0]])
    assert algo.act_greedy(state, observations) == 1
    moments = update_moments(init_moments((3,)), jnp.array([[7.0, 0, 0], [9.0, 0, 0]]))
    moved = state._replace(moments=moments)
    assert algo.act_greedy(moved, observations) == 0
    # x₀ = (5 - 8)/1 = -3: log p = z - log(e³ + e⁻³ + 2), z = 3, -3, 0, 0
    noise = algo.draw(jax.random.key(1), (64,))
    actions, log_probs = algo.act(noise, moved, jnp.repeat(observations, 64, 0))
    z = np.array([3.0, -3.0, 0.0, 0.0])
    wanted = z - np.log(np.exp(z).sum())
    np.testing.assert_allclose(log_probs, wanted[np.asarray(actions)], rtol=1e-5)


def test_values_of_both_observations_are_normalised():
    """V(x) = x₀ after normalisation; x₀ = 5 and then 10, of mean 8 and variance 1.

    So V = -3 and V' = 2; with reward 1 and discount ½ the target is 2 and the loss ½·5².
    """
    changes = {"normalize_observations": True, "net.name": "tabular", "algo.discount": 0.5}
    algo = make_small("a2c", CHOOSE, changes)
    state = algo.init(jax.random.key(0))
    moments = update_moments(init_moments((3,)), jnp.array([[7.0, 0, 0], [9.0, 0, 0]]))
    state = state._replace(moments=moments)
    state.params["value"]["values"] = jnp.array([1.0, 0.0, 0.0])
    rollout = random_rollout(np.random.default_rng(0), CHOOSE, 1, 1)
    no = np.zeros((1, 1), bool)
    rollout = rollout._replace(
        observations=np.float32([[[5, 0, 0]]]),
        next_observations=np.float32([[[10, 0, 0]]]),
        rewards=np.ones((1, 1), np.float32),
        terminated=no,
        truncated=no,
    )
    _, metrics = algo.update(jax.random.key(1), state, rollout)
    np.testing.assert_allclose(metrics["loss/value"], 12.5, rtol=1e-5)


def test_annealed():
    steps = jnp.arange(5, dtype=jnp.int32)
    rates = jax.vmap(lambda s: annealed(0.8, s, anneal=True, num_updates=4))(steps)
    np.testing.assert_allclose(rates, [0.8, 0.6, 0.4, 0.2, 0.0], atol=1e-7)
    assert annealed(0.8, jnp.int32(3), anneal=False, num_updates=4) == np.float32(0.8)


def optimizer_config(**changes):
    return SimpleNamespace(**{"name": "sgd", "eps": 1e-8, "max_grad_norm": None, **changes})


def steps(config, grads, rate=0.1):
    """The parameter, from 1, after each gradient."""
    optimizer = make_optimizer(config)
    params = jnp.array([1.0])
    state, path = optimizer.init(params), []
    for grad in grads:
        params, state = apply_gradients(
            optimizer, jnp.array([grad]), state, params, jnp.float32(rate)
        )
        path.append(float(params[0]))
    return path


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        # 1 - 0.1·1, then - 0.1·0.5, ...
        (optimizer_config(), [0.9, 0.85, 0.875, 0.675]),
        # a norm above 1 is brought down to 1: the last gradient counts as 1
        (optimizer_config(max_grad_norm=1.0), [0.9, 0.85, 0.875, 0.775]),
        # Adam with b1 = .9, b2 = .999 and bias correction, worked out in float64:
        # m̂ = 1, .7368, .3727, .8459 and v̂ = 1, .6248, .4372, 1.3292
        (optimizer_config(name="adam"), [0.9, 0.80678204, 0.7504159, 0.67704703]),
        # RMSprop: v = .99 v + .01 g², from 0: the first step is 1/√.01 = 10 times the rate
        # v = .01, .0124, .012901, .05277199
        (
            optimizer_config(name="rmsprop"),
            [5e-7, -0.44901257, -0.22890846, -1.09952762],
        ),
    ],
    ids=["sgd", "clipped", "adam", "rmsprop"],
)
def test_optimizers_by_hand(config, wanted):
    np.testing.assert_allclose(steps(config, [1.0, 0.5, -0.25, 2.0]), wanted, rtol=1e-5, atol=1e-6)


def test_values_are_fitted_by_gradient_descent():
    """On one state V ← V - η (V - ȳ), ȳ the mean target: ȳ (1 - (1 - η)^n) after n steps."""
    changes = {"algo.value_learning_rate": 0.1, "algo.value_iterations": 7}
    algo = make_small("vpg", ONE_STATE, changes)
    state = algo.init(jax.random.key(0))
    rollout = one_state_rollout([0, 1, 0, 1], [1.0, 2.0, 3.0, 6.0], np.log(0.5))  # mean 3
    state, metrics = algo.update(jax.random.key(1), state, rollout)
    value = 3 * (1 - 0.9**7)
    np.testing.assert_allclose(state.params["value"]["values"][0], value, rtol=1e-5)
    # ½ mean (1, 4, 9, 36) before the first step
    np.testing.assert_allclose(metrics["loss/value"], 0.5 * 50 / 4, rtol=1e-6)
    assert (
        metrics["value/explained_variance"] == 0.0
    )  # V is 0 everywhere: no better than a constant


def test_flat_vectors_are_optimised_as_the_tree_would_be():
    """The norm that is clipped is that of all leaves; each number has moments of its own."""
    rng = np.random.default_rng(0)

    def tree():
        def normal(*shape):
            return jnp.asarray(rng.normal(size=shape), jnp.float32)

        return {"policy": {"a": normal(3, 2), "b": normal(2)}, "value": normal()}

    params = tree()
    flat, unravel = ravel_pytree(params)
    optimizer = make_optimizer(optimizer_config(name="adam", max_grad_norm=0.5))
    reference = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1, eps=1e-8))
    opt_state, wanted_state = optimizer.init(flat), reference.init(params)
    for _ in range(3):
        grads = tree()
        assert optax.tree.norm(grads) > 0.5
        flat, opt_state = apply_gradients(
            optimizer, ravel(grads), opt_state, flat, jnp.float32(0.1)
        )
        updates, wanted_state = reference.update(grads, wanted_state, params)
        params = optax.apply_updates(params, updates)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
            unravel(flat),
            params,
        )


@pytest.mark.parametrize("name", ["a2c", "trpo"])
def test_optimisers_see_one_vector(name):
    """Of all parameters; where policy and value are fitted apart, of each."""
    changes = {"net.name": "tabular", "optimizer.name": "adam"}
    state = make_small(name, CHOOSE, changes).init(jax.random.key(0))
    shapes = {x.shape for x in jax.tree.leaves(state.opt_state)}
    # Three observations: a table of four actions and one of values, 12 and 3 numbers.
    assert shapes == {(), (15,) if name == "a2c" else (3,)}
