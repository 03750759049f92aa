"""What all targets must do; the numbers of each are checked in the file of its algorithm.

To add one, append a `Row`: every float argument but the rewards belongs to the next observation.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses.c51 import c51_project, c51_targets
from rljax.losses.ddpg import ddpg_targets
from rljax.losses.discrete_sac import discrete_sac_targets
from rljax.losses.dqn import dqn_targets
from rljax.losses.sac import sac_targets
from rljax.losses.td3 import td3_targets

SHAPE = (5, 3)


class Row(NamedTuple):
    name: str
    targets: Callable[..., Any]  # targets(rewards, terminated, **next, **settings, discount=...)
    axes: Mapping[str, tuple[int, ...]]  # of each argument of the next observation, after SHAPE
    settings: Mapping[str, Any] = {}


SUPPORT = np.linspace(-3.0, 3.0, 4, dtype=np.float32)


def project(rewards, terminated, probs, *, discount):
    return c51_project(SUPPORT, probs, rewards, terminated, discount=discount)


ROWS = [
    Row("ddpg", ddpg_targets, {"next_q": ()}),
    Row("td3", td3_targets, {"next_q1": (), "next_q2": ()}),
    Row("dqn", dqn_targets, {"next_q": (4,)}),
    Row("dqn-double", dqn_targets, {"next_q": (4,), "next_q_online": (4,)}),
    Row("c51-project", project, {"probs": (4,)}),
    Row("c51", partial(c51_targets, SUPPORT), {"next_logits": (3, 4)}),
    Row(
        "c51-double",
        partial(c51_targets, SUPPORT),
        {"next_logits": (3, 4), "next_logits_online": (3, 4)},
    ),
    Row(
        "sac",
        sac_targets,
        {"next_q1": (), "next_q2": (), "next_log_probs": ()},
        settings={"temperature": 0.3},
    ),
    Row(
        "discrete-sac",
        discrete_sac_targets,
        {"next_q1": (4,), "next_q2": (4,), "next_logits": (4,)},
        settings={"temperature": 0.3},
    ),
]
every_target = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def example(row: Row):
    """Rewards, terminated, and what is known of the next observation."""
    rng = np.random.default_rng(3)
    terminated = rng.random(SHAPE) < 0.4
    following = {
        name: rng.normal(size=(*SHAPE, *axes)).astype(np.float32) for name, axes in row.axes.items()
    }
    return rng.normal(size=SHAPE).astype(np.float32), terminated, following


def call(row: Row, rewards, terminated, following, discount):
    return row.targets(rewards, terminated, **following, **row.settings, discount=discount)


@every_target
def test_jit_equals_eager_in_float32(row):
    rewards, terminated, following = example(row)
    eager = call(row, rewards, terminated, following, 0.9)
    assert (eager.shape[: len(SHAPE)], eager.dtype) == (SHAPE, jnp.float32)
    jitted = jax.jit(lambda *arrays: call(row, *arrays))(rewards, terminated, following, 0.9)
    np.testing.assert_allclose(jitted, eager, rtol=1e-6, atol=1e-7)
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), (rewards, following))
    rounded = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    actual = call(row, half[0], terminated, half[1], 0.9)
    assert actual.dtype == jnp.float32
    np.testing.assert_array_equal(actual, call(row, rounded[0], terminated, rounded[1], 0.9))


@every_target
def test_what_follows_a_terminal_step_is_not_read(row):
    rewards, terminated, following = example(row)
    wanted = call(row, rewards, terminated, following, 0.9)
    for garbage in (np.nan, np.inf, -np.inf):
        bad = {name: x.copy() for name, x in following.items()}
        for x in bad.values():
            x[terminated] = garbage
        np.testing.assert_array_equal(call(row, rewards, terminated, bad, 0.9), wanted)
        discount = np.where(terminated, 0.0, 0.9).astype(np.float32)
        no = np.zeros_like(terminated)
        np.testing.assert_array_equal(call(row, rewards, no, bad, discount), wanted)
    without = {name: np.zeros_like(x) for name, x in following.items()}
    assert not np.allclose(call(row, rewards, terminated, without, 0.9), wanted)


@every_target
def test_terminated_may_have_any_dtype(row):
    rewards, terminated, following = example(row)
    wanted = call(row, rewards, terminated, following, 0.9)
    for dtype in (np.int8, np.float32):
        actual = call(row, rewards, terminated.astype(dtype), following, 0.9)
        np.testing.assert_array_equal(actual, wanted)


@every_target
def test_discount_may_be_a_scalar_or_of_the_trailing_shape(row):
    rewards, terminated, following = example(row)
    wanted = call(row, rewards, terminated, following, 0.7)
    for shape in ((), SHAPE[-1:], SHAPE):
        actual = call(row, rewards, terminated, following, jnp.full(shape, 0.7))
        np.testing.assert_array_equal(actual, wanted)
    # Each element has its own: those of n-step windows differ.
    discount = np.linspace(0.1, 0.9, 15, dtype=np.float32).reshape(SHAPE)
    actual = call(row, rewards, terminated, following, discount)
    for index in np.ndindex(SHAPE):
        one = {name: x[index] for name, x in following.items()}
        alone = call(row, rewards[index], terminated[index], one, float(discount[index]))
        np.testing.assert_allclose(actual[index], alone, rtol=1e-6, atol=1e-7)


@every_target
def test_targets_are_held_constant(row):
    rewards, terminated, following = example(row)

    def total(rewards, following):
        return jnp.sum(jnp.sin(call(row, rewards, terminated, following, 0.9)))

    grads = jax.jit(jax.grad(total, argnums=(0, 1)))(rewards, following)
    for grad in jax.tree.leaves(grads):
        np.testing.assert_array_equal(grad, 0.0)


@every_target
@pytest.mark.errors
def test_wrong_shapes_raise_and_name_both(row):
    rewards, terminated, following = example(row)
    arguments = {"rewards": rewards, "terminated": terminated, **following}
    for name, x in arguments.items():
        others = {str(other.shape) for n, other in arguments.items() if n != name}
        for wrong in (x[..., None], x[None], x[1:], x[:, :1]):
            with pytest.raises(ValueError, match="shape") as error:
                row.targets(**{**arguments, name: wrong}, **row.settings, discount=0.9)
            assert str(wrong.shape) in str(error.value), name
            assert any(shape in str(error.value) for shape in others), name
    with pytest.raises(ValueError, match=r"discount .*\(5, 3\), got \(5, 1\)"):
        call(row, rewards, terminated, following, np.ones((5, 1), np.float32))
