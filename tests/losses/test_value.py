"""Value losses by hand, against float64, and by finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses.value import value_loss


def test_clipped_loss_by_hand():
    # Clipped values 1.2, 1.05, 0.8, 1.2. Squared errors, unclipped .25, .0025, .16, 2.25 and
    # clipped .64, .0025, .64, .49; the larger ones .64, .0025, .64, 2.25 sum to 3.5325; /8.
    # The gradient (V - y)/4 flows where the unclipped error is the larger or V in its band.
    # The smaller errors would give 0.1128, values clipped around themselves 0.3328.
    values, old = jnp.array([1.5, 1.05, 0.4, 2.0]), jnp.ones(4)
    targets = jnp.array([2.0, 1.0, 0.0, 0.5])

    def loss_fn(values, clip=0.2):
        return value_loss(values, targets, behaviour_values=old, clip=clip)

    (loss, metrics), grad = jax.value_and_grad(loss_fn, has_aux=True)(values)
    np.testing.assert_allclose(loss, 0.4415625, rtol=1e-6)
    np.testing.assert_allclose(grad, [0.0, 0.0125, 0.0, 0.375], rtol=1e-5)
    assert metrics["value/clip_fraction"] == 0.75
    assert metrics["loss/value"] == loss

    # (.25 + .0025 + .16 + 2.25)/8, and gradient (V - y)/4, without a clip or with a wide one.
    for clip in (None, 10.0, jnp.inf, jnp.float32(3)):
        (loss, _), grad = jax.value_and_grad(loss_fn, has_aux=True)(values, clip)
        np.testing.assert_allclose(loss, 0.3328125, rtol=1e-6)
        np.testing.assert_allclose(grad, [-0.125, 0.0125, 0.1, 0.375], rtol=1e-5)


def test_clip_is_around_the_values_given_and_not_around_the_current_ones():
    values, targets = jnp.array([3.0]), jnp.array([4.0])
    current = value_loss(values, targets, behaviour_values=values, clip=0.5)[0]
    stored = value_loss(values, targets, behaviour_values=jnp.array([0.0]), clip=0.5)[0]
    assert current == 0.5  # ½ (3 - 4)²
    assert stored == 6.125  # ½ (0.5 - 4)²


def test_gradient_on_the_edge_of_the_band_is_the_unclipped_one():
    """The first update after sampling with clip 0 sits on both edges: V = V⁰."""
    values = jnp.array([1.0, 2.0])
    for clip in (0.0, 0.5):
        old = values - clip
        grad = jax.grad(
            lambda v, old=old, clip=clip: value_loss(
                v, jnp.array([0.0, 5.0]), behaviour_values=old, clip=clip
            )[0]
        )(values)
        np.testing.assert_array_equal(grad, [0.5, -1.5])


def oracle(values, targets, old, clip):
    """float64, by cases: moving out of the band counts only where it makes the error larger."""
    loss, slope = np.zeros(len(values)), np.zeros(len(values))
    for i, (v, y, o) in enumerate(zip(values, targets, old)):
        edge = o + clip if v > o + clip else o - clip if v < o - clip else v
        clipped_wins = abs(edge - y) > abs(v - y)
        loss[i] = 0.5 * (edge - y if clipped_wins else v - y) ** 2
        slope[i] = 0.0 if clipped_wins else v - y
    return loss, slope


@pytest.mark.parametrize("clip", [0.05, 0.4, 2.0])
def test_sweep_against_float64_and_finite_differences(clip):
    rng = np.random.default_rng(5)
    values, targets, old = np.float32(rng.normal(size=(3, 400)))
    each = jax.jit(
        jax.vmap(lambda v, y, o: value_loss(v, y, behaviour_values=o, clip=clip)[0], (0, 0, 0))
    )
    slopes = jax.jit(
        jax.vmap(jax.grad(lambda v, y, o: value_loss(v, y, behaviour_values=o, clip=clip)[0]))
    )
    loss, slope = oracle(*np.float64([values, targets, old]), clip)
    np.testing.assert_allclose(each(values, targets, old), loss, rtol=1e-5, atol=1e-7)

    # Kinks: the edges of the band, and where both errors are equal.
    edges = np.stack([old - clip, old + clip, 2 * targets - old - clip, 2 * targets - old + clip])
    smooth = np.abs(edges - values).min(axis=0) > 0.02
    assert smooth.mean() > 0.8
    actual = np.asarray(slopes(values, targets, old))
    np.testing.assert_allclose(actual[smooth], slope[smooth], rtol=1e-5, atol=1e-6)
    h = np.float32(0.01)
    numeric = (each(values + h, targets, old) - each(values - h, targets, old)) / (2 * h)
    np.testing.assert_allclose(actual[smooth], numeric[smooth], atol=2e-3)


@pytest.mark.errors
def test_clip_needs_the_values_to_clip_around():
    with pytest.raises(ValueError, match=r"clip=0\.2 needs behaviour_values"):
        value_loss(jnp.zeros(3), jnp.zeros(3), clip=0.2)
    with pytest.raises(ValueError, match=r"\(3,\).*\(3, 1\)"):
        value_loss(jnp.zeros(3), jnp.zeros(3), behaviour_values=jnp.zeros((3, 1)))
