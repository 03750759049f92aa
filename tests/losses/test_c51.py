"""The categorical projection at its edges and against its definition; the loss by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses.c51 import c51_loss, c51_project, c51_q_values, c51_targets

project = jax.jit(c51_project)


def oracle(support, probs, rewards, terminated, discount):
    """float64, atom by atom: find the bin by comparing, give each end its share."""
    support = [float(z) for z in support]
    out = np.zeros((len(rewards), len(support)))
    for b, (reward, over) in enumerate(zip(rewards, terminated)):
        for z, p in zip(support, probs[b]):
            t = float(reward) + (0.0 if over else float(discount)) * z
            if t <= support[0]:
                out[b, 0] += p
            elif t >= support[-1]:
                out[b, -1] += p
            else:
                i = sum(z <= t for z in support) - 1
                upper = (t - support[i]) / (support[i + 1] - support[i])
                out[b, i] += p * (1 - upper)
                out[b, i + 1] += p * upper
    return out


def random_probs(rng, *shape):
    return rng.dirichlet(np.full(shape[-1], 0.5), size=shape[:-1]).astype(np.float32)


def test_projection_by_hand():
    # Atoms -1, 0, 1, masses .2, .3, .5, r = .25, γ = ½: -.25, .25, .75. Each is split between its
    # neighbours: .2 -> .05, .15, 0; .3 -> 0, .225, .075; .5 -> 0, .125, .375.
    support, probs = jnp.array([-1.0, 0.0, 1.0]), jnp.array([[0.2, 0.3, 0.5]])
    projected = project(support, probs, jnp.array([0.25]), jnp.zeros(1), discount=0.5)
    np.testing.assert_allclose(projected, [[0.05, 0.5, 0.45]], rtol=1e-6)
    # Terminated: all mass at .25, between 0 and 1.
    projected = project(support, probs, jnp.array([0.25]), jnp.ones(1), discount=0.5)
    np.testing.assert_allclose(projected, [[0.0, 0.75, 0.25]], rtol=1e-6)
    # r = 5 lies beyond the last atom, r = -5 before the first one.
    for reward, wanted in ((5.0, [0, 0, 1]), (-5.0, [1, 0, 0])):
        projected = project(support, probs, jnp.array([reward]), jnp.zeros(1), discount=0.5)
        np.testing.assert_allclose(projected, [wanted], rtol=1e-6)


@pytest.mark.parametrize(
    "support",
    [
        np.linspace(-10, 10, 51),
        np.linspace(0, 200, 51),
        np.linspace(-0.7, 1.3, 21),
        np.linspace(-1e-3, 1e-3, 11),
        np.linspace(1e5, 1e5 + 100, 101),
        np.array([-3.0, -1.0, 0.0, 0.1, 0.2, 5.0]),
    ],
    ids=["-10..10", "0..200", "odd", "small", "far", "uneven"],
)
def test_atoms_that_land_on_atoms_keep_all_their_mass(support):
    """r on every atom in turn, terminated: that atom and no other, first and last ones included.

    (r - z_1)/Δz is a whole number there but for its rounding, which is where a floor beside a ceil
    loses or doubles mass. Half an ulp off an atom its mass is still all there.
    """
    support = support.astype(np.float32)
    n = len(support)
    probs = random_probs(np.random.default_rng(0), n, n)
    over = np.ones(n, bool)
    projected = project(support, probs, support, over, discount=0.9)
    np.testing.assert_allclose(projected, np.eye(n), rtol=2e-7, atol=0)
    for nearby in (np.nextafter(support, -np.inf), np.nextafter(support, np.inf)):
        projected = project(support, probs, nearby.astype(np.float32), over, discount=0.9)
        np.testing.assert_allclose(projected.sum(axis=-1), 1.0, rtol=1e-6)
        ulps = 2 * np.spacing(np.abs(support).max()) / np.diff(support).min()
        np.testing.assert_allclose(projected, np.eye(n), atol=ulps)
    # r = 0 and γ = 1: every atom on itself.
    zero = np.zeros(n, np.float32)
    projected = project(support, probs, zero, ~over, discount=1.0)
    np.testing.assert_allclose(projected, probs, rtol=2e-7, atol=0)


@pytest.mark.parametrize("shift", [1, 7, 50, 60, -3, -50, -1000])
def test_whole_steps_move_whole_atoms(shift):
    """r of k atom widths, γ = 1: all masses move k atoms; what would fall off stays at the end."""
    support = np.linspace(-10, 10, 51).astype(np.float32)
    probs = random_probs(np.random.default_rng(1), 4, 51)
    wanted = np.zeros((4, 51))
    for i in range(51):
        wanted[:, min(max(i + shift, 0), 50)] += probs[:, i]
    rewards = np.full(4, shift * 0.4, np.float32)
    projected = project(support, probs, rewards, np.zeros(4), discount=1.0)
    np.testing.assert_allclose(projected, wanted, atol=2e-6)


@pytest.mark.parametrize("uneven", [False, True])
def test_sweep_against_float64(uneven):
    rng = np.random.default_rng(2)
    support = np.sort(rng.normal(size=11)) * 4 if uneven else np.linspace(-5, 5, 11)
    support = support.astype(np.float32)
    probs, rewards = random_probs(rng, 300, 11), rng.normal(0, 4, 300).astype(np.float32)
    terminated = rng.random(300) < 0.2
    for discount in (1.0, 0.99, 0.3):
        projected = project(support, probs, rewards, terminated, discount=discount)
        wanted = oracle(support, probs, rewards, terminated, np.float32(discount))
        np.testing.assert_allclose(projected, wanted, atol=2e-6)
        np.testing.assert_allclose(projected.sum(axis=-1), 1.0, rtol=1e-6)
        assert (projected >= 0).all()


def test_the_mean_is_kept_inside_the_support():
    """E of the projection is r + γ E[Z] as long as nothing is cut off: Q-learning in the mean."""
    rng = np.random.default_rng(3)
    support = np.linspace(-20, 20, 41).astype(np.float32)
    probs, rewards = np.zeros((50, 41), np.float32), rng.normal(size=50).astype(np.float32)
    probs[:, 12:29] = random_probs(rng, 50, 17)
    terminated = rng.random(50) < 0.3
    projected = project(support, probs, rewards, terminated, discount=0.9)
    wanted = rewards + np.where(terminated, 0.0, 0.9 * (probs.astype(np.float64) @ support))
    np.testing.assert_allclose(np.asarray(projected, float) @ support, wanted, atol=1e-4)


def test_nan_in_the_reward_is_seen():
    support, probs = jnp.arange(3.0), jnp.full((2, 3), 1 / 3)
    projected = project(support, probs, jnp.array([jnp.nan, 0.0]), jnp.zeros(2), discount=0.9)
    assert np.isnan(projected[0]).any()
    assert np.isfinite(projected[1]).all()


def test_targets_follow_the_best_action_by_its_mean():
    # Means 2·.4 = .8 (mass on 0 and 2) and 1 (all on 1): action 1, whose mode is not the question.
    # The trained network has them the other way round and picks action 0 of the target network.
    support, tiny = jnp.arange(3.0), 1e-30
    probs = jnp.array([[[0.6, tiny, 0.4], [tiny, 1.0, tiny]]])
    next_logits, online = jnp.log(probs), jnp.log(probs[:, ::-1])
    np.testing.assert_allclose(c51_q_values(support, next_logits), [[0.8, 1.0]], rtol=1e-6)
    arrays = support, jnp.array([0.5]), jnp.zeros(1), next_logits
    # .5 + 1·½ = 1; or .5 and .5 + 2·½ = 1.5: .6·(½, ½, 0) + .4·(0, ½, ½).
    np.testing.assert_allclose(c51_targets(*arrays, discount=0.5), [[0, 1.0, 0]], atol=1e-6)
    double = c51_targets(*arrays, discount=0.5, next_logits_online=online)
    np.testing.assert_allclose(double, [[0.3, 0.5, 0.2]], atol=1e-6)


def test_loss_by_hand():
    # p = (¼, ¾), m = (½, ½): -½ log ¼ - ½ log ¾ = .8369882; slope p - m = ∓¼ at the action taken.
    # KL(m‖p) is that less log 2: .1438410. Weighted by 3, only the loss is three times as large.
    logits = jnp.array([[[5.0, 5.0], [0.0, math.log(3.0)]]])
    arrays = jnp.array([1]), jnp.array([[0.5, 0.5]])
    for weights, factor in ((None, 1.0), (jnp.array([3.0]), 3.0)):
        (loss, metrics), slope = jax.value_and_grad(c51_loss, has_aux=True)(
            logits, *arrays, weights=weights
        )
        np.testing.assert_allclose(loss, factor * 0.8369882, rtol=1e-6)
        np.testing.assert_allclose(
            slope, factor * np.array([[[0, 0], [-0.25, 0.25]]]), rtol=1e-6, atol=1e-8
        )
        assert metrics["loss/critic"] == loss
        np.testing.assert_allclose(metrics["q/kl"], 0.1438410, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e30])
def test_gradients_stay_finite_for_logits_far_apart(scale):
    """A p of 0 under a target of 0 adds nothing; the slope is p - m, whatever the scale."""
    logits = jnp.array([[[1.0, 0.0, -1.0]]]) * scale
    target = jnp.array([[0.25, 0.75, 0.0]])
    loss, slope = jax.value_and_grad(lambda z: c51_loss(z, jnp.array([0]), target)[0])(logits)
    p = np.exp(np.array([0.0, -scale, -2 * scale]))  # of logits less the largest one
    p /= p.sum()
    np.testing.assert_allclose(slope[0, 0], p - target[0], atol=1e-6)
    log_sum = np.log(np.exp(0.0) + np.exp(-scale) + np.exp(-2 * scale))
    np.testing.assert_allclose(loss, 0.75 * scale + log_sum, rtol=1e-6)
    dead = jnp.array([[[1.0, 0.0, -jnp.inf]]])
    assert np.isfinite(jax.grad(lambda z: c51_loss(z, jnp.array([0]), target)[0])(dead)).all()


def test_training_on_projected_targets_finds_the_distribution_of_a_coin():
    """One state, reward 0 or 1 by a fair coin, then the end: p -> ½ at 0 and ½ at 1."""
    support, rewards = jnp.linspace(-1.0, 2.0, 7), jnp.array([0.0, 1.0])

    def loss_fn(logits):
        each = jnp.broadcast_to(logits, (2, 1, 7))
        target = c51_targets(support, rewards, jnp.ones(2), each, discount=0.9)
        return c51_loss(each, jnp.zeros(2, int), target)[0]

    step = jax.jit(lambda z: z - 2.0 * jax.grad(loss_fn)(z))
    logits = jnp.zeros((1, 7))
    for _ in range(300):
        logits = step(logits)
    wanted = [0, 0, 0.5, 0, 0.5, 0, 0]
    np.testing.assert_allclose(jax.nn.softmax(logits[0]), wanted, atol=5e-3)


@pytest.mark.errors
def test_bad_supports_and_atoms_are_named():
    arrays = jnp.full((2, 3), 1 / 3), jnp.zeros(2), jnp.zeros(2)
    for bad in ([0.0, 1.0, 1.0], [2.0, 1.0, 0.0], [0.0, 1.0, np.inf], [0.0, np.nan, 1.0]):
        with pytest.raises(ValueError, match="support must be at least 2 finite, rising numbers"):
            c51_project(np.array(bad), *arrays, discount=0.9)
    with pytest.raises(ValueError, match=r"support must have shape \(3,\), got \(4,\)"):
        c51_project(np.arange(4.0), *arrays, discount=0.9)
    with pytest.raises(ValueError, match=r"target_probs must have shape \(2, 5\), got \(2, 3\)"):
        c51_loss(jnp.zeros((2, 4, 5)), jnp.zeros(2, int), arrays[0])
