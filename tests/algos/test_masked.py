"""Rows in which no step was taken, as in a reset, change nothing, whatever they hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.types import Discrete

from .small import CHOOSE, REACH, assert_same_bits, make_small, random_rollout

LENGTH, ENVS = 6, 4
CASES = {
    "vpg": (CHOOSE, {"net.name": "tabular", "algo.value_iterations": 2}),
    "a2c": (
        REACH,
        {"net.hidden_sizes": (), "normalize_observations": True, "algo.entropy_coef": 0.01},
    ),
    "trpo": (
        REACH,
        {"net.log_std": "network", "net.hidden_sizes": (), "algo.value_iterations": 2},
    ),
    "ppo": (
        CHOOSE,
        {
            "net.name": "tabular",
            "normalize_observations": True,
            "algo.epochs": 2,
            "algo.value_clip": 0.2,
        },
    ),
}
# At both ends of time, next to each other, and one environment without any step.
MASK = np.ones((LENGTH, ENVS), bool)
MASK[0, 0] = MASK[5, 0] = MASK[2, 1] = MASK[3, 1] = False
MASK[:, 2] = False


def poisoned(rollout, spec):
    """The same rollout with the worst there is in its masked rows."""

    def poison(x, value):
        return np.where(MASK.reshape(MASK.shape + (1,) * (x.ndim - 2)), x, value).astype(x.dtype)

    discrete = isinstance(spec.action_space, Discrete)
    return rollout._replace(
        observations=poison(rollout.observations, np.nan),
        next_observations=poison(rollout.next_observations, np.inf),
        actions=poison(rollout.actions, 1000 if discrete else np.nan),
        behaviour_log_probs=poison(rollout.behaviour_log_probs, -np.inf),
        rewards=poison(rollout.rewards, np.nan),
        terminated=poison(rollout.terminated, True),
        truncated=poison(rollout.truncated, True),
        episode_returns=poison(rollout.episode_returns, np.nan),
    )


@pytest.mark.parametrize("name", CASES)
def test_what_is_masked_changes_neither_params_nor_metrics(name):
    spec, changes = CASES[name]
    algo = make_small(name, spec, changes)
    rollout = random_rollout(np.random.default_rng(0), spec, LENGTH, ENVS)._replace(mask=MASK)
    state = algo.init(jax.random.key(0))
    if state.moments is not None:  # as in any update but the first
        state = state._replace(moments=jax.tree.map(lambda x: x + 1.0, state.moments))
    clean = algo.update(jax.random.key(1), state, rollout)
    dirty = algo.update(jax.random.key(1), state, poisoned(rollout, spec))
    for leaf in jax.tree.leaves(clean):
        assert jnp.isfinite(leaf).all()
    assert_same_bits(clean, dirty)
    # The optimisers count their steps, and those are kept.
    counts = [int(x) for x in jax.tree.leaves(clean[0].opt_state) if x.dtype == np.int32]
    assert counts == {"vpg": [1, 2], "a2c": [1], "trpo": [2], "ppo": [2 * 4]}[name]
    assert any(
        (x != y).any() for x, y in zip(*map(jax.tree.leaves, (state.params, clean[0].params)))
    )


@pytest.mark.parametrize(
    "name", ["a2c", *(pytest.param(x, marks=pytest.mark.slow) for x in CASES if x != "a2c")]
)
def test_no_mask_is_a_mask_of_ones(name):
    """As of pure-JAX environments, where every call is a step."""
    spec, changes = CASES[name]
    algo = make_small(name, spec, changes)
    rollout = random_rollout(np.random.default_rng(2), spec, LENGTH, ENVS)
    state = algo.init(jax.random.key(0))
    ones = algo.update(jax.random.key(1), state, rollout)
    plain = algo.update(jax.random.key(1), state, rollout._replace(mask=None))
    assert rollout.mask.all()
    for a, b in zip(jax.tree.leaves(ones), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["a2c", pytest.param("vpg", marks=pytest.mark.slow)])
def test_a_gap_is_as_if_it_were_not_there(name):
    """One environment that spends a row on each reset, against one that resets at once.

    A gap in the middle of an episode cuts it: what comes after has seen something else.
    """
    algo = make_small(name, CHOOSE, {"net.name": "tabular", "algo.lambda_": 0.9})
    rollout = random_rollout(np.random.default_rng(1), CHOOSE, 12, 1)
    terminated, truncated = np.zeros((2, 12, 1), bool)
    terminated[3], truncated[7] = True, True
    rollout = rollout._replace(terminated=terminated, truncated=truncated)
    # A row of rubbish after steps 3 and 7, which end an episode, and after 5, which does not.
    rows = np.insert(np.arange(12), [4, 6, 8], -1)
    gapped = jax.tree.map(lambda x: x[rows], rollout)._replace(mask=(rows >= 0)[:, None])
    truncated = truncated.copy()
    truncated[5] = True

    state = algo.init(jax.random.key(0))
    plain = algo.update(jax.random.key(1), state, rollout._replace(truncated=truncated))
    gapped = algo.update(jax.random.key(1), state, gapped)
    # Sums over 15 rows instead of 12, three of them 0: nothing but rounding.
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(gapped)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
