"""The clipped surrogate: reported faults by hand, then a sweep against float64 by cases."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses.ppo import ppo_loss
from rljax.losses.vpg import vpg_loss


def per_element(log_probs, behaviour, advantages, **settings):
    """Loss and slope with respect to log_probs of each element alone."""

    def one(lp, b, a):
        return ppo_loss(lp, b, a, **settings)[0]

    return jax.jit(jax.vmap(jax.value_and_grad(one)))(log_probs, behaviour, advantages)


def test_six_clipping_cases_by_hand():
    # Ratios 1.5, 1.5, .5, .5, 1.1, .9. -min(ρA, clip(ρ, .8, 1.2)A):
    # A > 0 above the band 1.2 (clipped); A < 0 above 1.5 (not clipped: the pessimistic side);
    # A > 0 below .5 (not clipped); A < 0 below .8 (clipped); inside the band ρA. Sum .4, over 6.
    # The gradient is -Aρ/6 where unclipped, else 0. Four of six ratios are outside.
    log_probs = jnp.log(jnp.array([1.5, 1.5, 0.5, 0.5, 1.1, 0.9]))
    advantages, behaviour = jnp.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0]), jnp.zeros(6)
    (loss, metrics), grad = jax.value_and_grad(ppo_loss, has_aux=True)(
        log_probs, behaviour, advantages, clip=0.2
    )
    np.testing.assert_allclose(loss, 0.4 / 6, rtol=1e-5)
    np.testing.assert_allclose(grad, [0, 0.25, -0.5 / 6, 0, -1.1 / 6, 0.15], rtol=1e-5)
    np.testing.assert_allclose(metrics["policy/clip_fraction"], 4 / 6, rtol=1e-6)
    assert metrics["loss/policy"] == loss
    each, _ = per_element(log_probs, behaviour, advantages, clip=0.2)
    np.testing.assert_allclose(each, [-1.2, 1.5, -0.5, 0.8, -1.1, 0.9], rtol=1e-5)


def test_dual_clip_by_hand():
    # Ratios 10, .1, 10. A = -1: the objective is max(min(-10, -1.2), 3·-1) = -3, and flat there.
    # A = 1 has no such floor: min(.1, .8) = .1, and min(10, 1.2) = 1.2.
    log_probs = jnp.log(jnp.array([10.0, 0.1, 10.0]))
    advantages = jnp.array([-1.0, 1.0, 1.0])
    each, slope = per_element(log_probs, jnp.zeros(3), advantages, clip=0.2, dual_clip=3.0)
    np.testing.assert_allclose(each, [3.0, -0.1, -1.2], rtol=1e-5)
    np.testing.assert_allclose(slope, [0.0, -0.1, 0.0], rtol=1e-5)


def test_first_update_is_the_policy_gradient():
    # The ratio is exactly 1, though both log-probs depend on the same parameters: the behaviour
    # side is held constant. Loss -(2 - 1 + .5)/3 = -.5, gradient -A/3.
    log_probs = jnp.array([-1.0, -2.0, -0.3])

    def loss_fn(log_probs, advantages):
        return ppo_loss(log_probs, log_probs, advantages, clip=0.2)

    for advantages, wanted in (([2.0, -1.0, 0.5], -0.5), ([1.0, -1.0, 0.0], 0.0)):
        advantages = jnp.array(advantages)
        (loss, metrics), grad = jax.value_and_grad(loss_fn, has_aux=True)(log_probs, advantages)
        np.testing.assert_allclose(loss, wanted, atol=1e-7)
        np.testing.assert_allclose(grad, -advantages / 3, rtol=1e-6)
        np.testing.assert_array_equal(
            grad, jax.grad(lambda x, a: vpg_loss(x, a)[0])(log_probs, advantages)
        )
        assert metrics["policy/clip_fraction"] == 0.0
        assert metrics["policy/behaviour_kl"] == 0.0


def test_behaviour_kl_that_stops_the_epochs_by_hand():
    # l = .6, .5, -.2: exp(l) - 1 - l = .2221188, .1487213, .0187308; their mean is .1298569,
    # above a limit of 1.5·.05, while mean(-l) = -.3 would never stop.
    behaviour = jnp.array([-1.0, -2.0, -3.0])
    log_probs = behaviour + jnp.array([0.6, 0.5, -0.2])
    _, metrics = ppo_loss(log_probs, behaviour, jnp.ones(3), clip=0.2)
    np.testing.assert_allclose(metrics["policy/behaviour_kl"], 0.12985694, rtol=1e-5)


def test_masked_token_mean_by_hand():
    # Ratio 1, advantages +1 and -1 per row, 2 and 4 tokens kept: (-2 + 4)/6 = 1/3.
    # As two micro-batches with the global count 6 they are -2/6 and 4/6.
    mask = jnp.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    log_probs = jnp.where(mask == 1, -1.5, jnp.nan)
    advantages = jnp.broadcast_to(jnp.array([[1.0], [-1.0]]), (2, 5))
    arrays = (log_probs, log_probs, advantages, mask)
    loss, _ = ppo_loss(*arrays, clip=0.2)
    np.testing.assert_allclose(loss, 1 / 3, rtol=1e-6)
    for row, wanted in ((0, -1 / 3), (1, 2 / 3)):
        part, _ = ppo_loss(*(x[row] for x in arrays), clip=0.2, denominator=6)
        np.testing.assert_allclose(part, wanted, rtol=1e-6)


def oracle(ratio, advantage, low, high, dual):
    """Objective, its slope in log ρ, and whether ρ is outside; float64, case by case.

    A gain is paid up to the edge of the band, a loss in full, but at most `dual` times |A|.
    """
    outside = ratio < low or ratio > high
    if advantage >= 0:
        flat = ratio > high
        return advantage * (high if flat else ratio), 0.0 if flat else advantage * ratio, outside
    flat = ratio < low
    objective = advantage * (low if flat else ratio)
    if dual is not None and max(low if flat else ratio, 0.0) > dual:
        return advantage * dual, 0.0, outside
    return objective, 0.0 if flat else advantage * ratio, outside


SETTINGS = [
    {"clip": 0.2},
    {"clip": 0.0},
    {"clip": 0.2, "clip_high": 0.28},
    {"clip": 0.3, "clip_high": 0.0},
    {"clip": 0.2, "dual_clip": 3.0},
    {"clip": 0.1, "clip_high": 0.9, "dual_clip": 1.2},
    {"clip": 1.7},
    {"clip": 1.7, "dual_clip": 2.0},
    {"clip": math.inf},
    {"clip": math.inf, "dual_clip": 5.0},
    {"clip": 0.2, "clip_high": math.inf, "dual_clip": math.inf},
    {"clip": 0, "dual_clip": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_sweep_against_float64_and_finite_differences(settings):
    log_ratios = np.array([-25.0, -3.0, -1.0, -0.4, -0.19, -0.04, 0.04, 0.15, 0.22, 0.6, 1.2, 3.0])
    grid = np.array(list(itertools.product(log_ratios, [-2.5, -1.0, 0.0, 0.5, 4.0])))
    log_ratio, advantages = np.float32(grid.T)
    behaviour = np.float32(np.random.default_rng(0).integers(-8, 0, len(grid)) / 4)
    log_probs = behaviour + log_ratio
    low, high = 1 - settings["clip"], 1 + settings.get("clip_high", settings["clip"])
    dual = settings.get("dual_clip")
    objective, slope, outside = np.array(
        [
            oracle(np.exp(max(log_r, -20.0)), a, low, high, dual)
            for log_r, a in zip(np.float64(log_probs) - behaviour, np.float64(advantages))
        ]
    ).T

    actual, actual_slope = per_element(log_probs, behaviour, advantages, **settings)
    np.testing.assert_allclose(actual, -objective, rtol=1e-5, atol=1e-8)
    inside_bound = log_ratio > -20
    np.testing.assert_allclose(
        actual_slope[inside_bound], -slope[inside_bound], rtol=1e-5, atol=1e-8
    )
    h = np.float32(0.01)
    above, below = (
        per_element(log_probs + s * h, behaviour, advantages, **settings)[0] for s in (1, -1)
    )
    numeric = (above - below) / (2 * h)
    np.testing.assert_allclose(actual_slope, numeric, rtol=2e-3, atol=2e-4)

    loss, metrics = ppo_loss(log_probs, behaviour, advantages, **settings)
    np.testing.assert_allclose(loss, -objective.mean(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["policy/clip_fraction"], outside.mean(), rtol=1e-6)
    exact = np.float64(log_probs) - behaviour
    kl = (np.exp(np.maximum(exact, -20.0)) - 1 - exact).mean()
    np.testing.assert_allclose(metrics["policy/behaviour_kl"], kl, rtol=1e-5)


def test_settings_may_be_traced():
    arrays = (jnp.array([0.5, -0.6]), jnp.zeros(2), jnp.array([1.0, -1.0]))
    settings = {"clip": 0.2, "clip_high": 0.3, "dual_clip": 2.0}
    traced = jax.jit(ppo_loss)(*arrays, **settings)[0]
    np.testing.assert_allclose(traced, ppo_loss(*arrays, **settings)[0], rtol=1e-6)
    np.testing.assert_allclose(traced, (-1.3 + 0.8) / 2, rtol=1e-6)


def test_gradient_on_the_edge_of_the_band_is_the_unclipped_one():
    """With clip 0 the first update sits on both edges of the band and still is a full one."""
    for sign in (1.0, -1.0):
        _, slope = per_element(jnp.zeros(1), jnp.zeros(1), jnp.full(1, sign), clip=0.0)
        np.testing.assert_array_equal(slope, [-sign])


@pytest.mark.parametrize(
    "settings", [{"clip": 0.2}, {"clip": math.inf}, {"clip": 0.2, "dual_clip": 3.0}]
)
def test_far_off_log_probs_are_bounded(settings):
    """e^1000 is no float32; bounded to e^20 before the exp, value and gradient stay finite."""
    log_probs = jnp.array([1000.0, -1000.0, 1000.0, -1000.0])
    advantages = jnp.array([1.0, 1.0, -1.0, -1.0])
    (loss, metrics), grad = jax.value_and_grad(ppo_loss, has_aux=True)(
        log_probs, jnp.zeros(4), advantages, **settings
    )
    for x in (loss, grad, *metrics.values()):
        assert np.isfinite(x).all()
    # Ratios e^20 and e^-20; the objective by the same cases as everywhere.
    band = (1 - settings["clip"], 1 + settings["clip"], settings.get("dual_clip"))
    wanted = [
        oracle(math.exp(log_r), a, *band)[0] for log_r, a in zip([20, -20, 20, -20], advantages)
    ]
    np.testing.assert_allclose(loss, -np.mean(wanted), rtol=1e-5)
