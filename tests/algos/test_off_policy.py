"""What the five off-policy algorithms have in common: targets, exploration, who learns when."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .small import assert_same_bits
from .small_off_policy import CHOOSE, MOVE, SPECS, make_small, random_batch

ALGOS = ("dqn", "c51", "ddpg", "td3", "sac")
ONE = np.int32(1)


def batch_of(name, seed=0):
    return random_batch(np.random.default_rng(seed), SPECS[name])


def apart(algo):
    """A state whose targets are not the networks they follow."""
    state, other = algo.init(jax.random.key(0)), algo.init(jax.random.key(1))
    return state._replace(targets=other.targets)


def differs(a, b) -> bool:
    return any((np.asarray(x) != y).any() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))


@pytest.mark.parametrize("name", ALGOS)
def test_targets_follow_networks_that_stand_still(name):
    """With a learning rate of 0: target <- target + 0.25 (network - target), and nothing else."""
    due = {"target_period": 1} if name in ("dqn", "c51") else {}
    algo = make_small(name, target_rate=0.25, **due, **{"optimizer.learning_rate": 0.0})
    before = apart(algo)
    after, metrics = algo.update(jax.random.key(2), before, batch_of(name), ONE)
    assert_same_bits(before.params, after.params)
    assert differs(before.targets, after.targets)
    for network, target in before.targets.items():
        expected = jax.tree.map(lambda t, p: t + 0.25 * (p - t), target, before.params[network])
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
            after.targets[network],
            expected,
        )
    assert all(np.isfinite(x) and x.shape == () for x in metrics.values())


@pytest.mark.parametrize("name", ALGOS)
def test_targets_start_as_copies_and_every_network_learns(name):
    algo = make_small(name)
    state = algo.init(jax.random.key(0))
    for network, target in state.targets.items():
        assert_same_bits(target, state.params[network])
    learned, metrics = algo.update(jax.random.key(1), state, batch_of(name), ONE)
    for network in state.params:
        assert differs(state.params[network], learned.params[network])
        assert metrics[f"grad/{network}_norm"] > 0
    again, same = algo.update(jax.random.key(1), state, batch_of(name), ONE)
    assert_same_bits((learned, metrics), (again, same))


@pytest.mark.parametrize("name", ["dqn", "c51"])
def test_hard_targets_are_copies_of_every_third_update(name):
    algo = make_small(name, target_period=3, target_rate=1.0)
    state, copy = algo.init(jax.random.key(0)), None
    copy = state.targets
    for step in range(7):
        state, _ = algo.update(jax.random.key(step), state, batch_of(name, step), np.int32(step))
        if step in (2, 5):
            copy = {"q": state.params["q"]}
        assert_same_bits(state.targets, copy)
        assert differs(state.params["q"], copy["q"]) == (step not in (2, 5))


def test_td3_lets_its_actor_and_targets_learn_in_every_third_update():
    algo = make_small("td3", policy_delay=3)
    state = algo.init(jax.random.key(0))
    for step in range(7):
        before = state
        state, metrics = algo.update(
            jax.random.key(step), state, batch_of("td3", step), np.int32(step)
        )
        assert differs(before.params["critic"], state.params["critic"])
        learned = step in (2, 5)
        assert differs(before.params["actor"], state.params["actor"]) == learned
        assert differs(before.opt_state["actor"], state.opt_state["actor"]) == learned
        assert differs(before.targets, state.targets) == learned
        assert (metrics["loss/actor"] != 0) == (metrics["grad/actor_norm"] != 0) == learned


def test_td3_smooths_its_target_actions():
    """The key matters through that noise alone."""
    for std, matters in ((0.2, True), (0.0, False)):
        algo = make_small("td3", target_noise=std)
        state, batch = apart(algo), batch_of("td3")
        means = {
            float(algo.update(jax.random.key(k), state, batch, ONE)[1]["q/target_mean"])
            for k in range(2)
        }
        assert len(means) == 1 + matters


@pytest.mark.parametrize("name", ["dqn", "c51"])
def test_epsilon_falls_with_the_environment_steps(name):
    """From 1 to 0.05 in 1000: 0.525 in the middle. u < ε explores: the action ⌊4 · 0.6⌋ = 2."""
    algo = make_small(name, epsilon_start=1.0, epsilon_end=0.05, epsilon_steps=1000)
    state = algo.init(jax.random.key(0))
    observations = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    greedy = np.asarray(algo.act_greedy(state, observations))
    assert (greedy != 2).any()
    for step, explores, acts in [(0, 0.99, 1.0), (500, 0.52, 0.53), (9999, 0.049, 0.051)]:
        for u, expected in ((explores, 2), (acts, greedy)):
            noise = np.broadcast_to(np.array([u, 0.6], np.float32), (64, 2))
            actions, memory = algo.act(noise, (), state, observations, np.int32(step))
            assert memory == ()
            np.testing.assert_array_equal(actions, expected)


@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_gaussian_exploration_is_scaled_by_the_box_and_stays_inside(name):
    """Half-widths 1 and 2."""
    algo = make_small(name, noise_scale=0.5)
    state = algo.init(jax.random.key(0))
    observations = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    greedy = algo.act_greedy(state, observations)

    def act(noise):
        noise = np.broadcast_to(np.float32(noise), (64, 2))
        return algo.act(noise, algo.begin(64), state, observations, ONE)[0]

    np.testing.assert_array_equal(act([0.0, 0.0]), greedy)
    np.testing.assert_allclose(act([0.2, -0.1]), greedy + np.array([[0.1, -0.1]]), atol=1e-6)
    np.testing.assert_array_equal(act([99.0, -99.0]), np.tile([[1.0, 0.0]], (64, 1)))
    noise = algo.draw(jax.random.key(1), (1000, 4))
    assert noise.shape == (1000, 4, 2)
    np.testing.assert_allclose([jnp.mean(noise), jnp.std(noise)], [0.0, 1.0], atol=0.05)


def test_ou_noise_remembers():
    """x' = x - 0.15 x + 0.2 ε, in half-widths: 0.2 and then 0.17, whatever the policy says."""
    algo = make_small("ddpg", noise="ou", noise_scale=0.2)
    state = algo.init(jax.random.key(0))
    observations = np.zeros((3, 3), np.float32)
    greedy = algo.act_greedy(state, observations)
    memory = algo.begin(3)
    np.testing.assert_array_equal(memory, np.zeros((3, 2)))
    for noise, x in [(1.0, 0.2), (0.0, 0.17)]:
        actions, memory = algo.act(np.full((3, 2), noise, "f"), memory, state, observations, ONE)
        np.testing.assert_allclose(actions - greedy, [[x, 2 * x]] * 3, atol=1e-6)
        np.testing.assert_allclose(memory, np.full((3, 2), x), atol=1e-6)


@pytest.mark.parametrize("spec", [MOVE, CHOOSE], ids=["real", "discrete"])
def test_sac_moves_its_temperature_towards_the_target_entropy(spec):
    """log α <- log α + rate (target entropy - entropy), with plain gradient descent."""
    batch = random_batch(np.random.default_rng(0), spec)
    for target_entropy in (-9.0, 0.5, 9.0):
        algo = make_small(
            "sac",
            spec,
            target_entropy=target_entropy,
            init_temperature=0.5,
            **{"optimizer.name": "sgd", "optimizer.learning_rate": 0.1},
        )
        state = algo.init(jax.random.key(0))
        new, metrics = algo.update(jax.random.key(1), state, batch, ONE)
        assert metrics["temperature"] == pytest.approx(0.5)
        change = new.params["temperature"]["log"] - state.params["temperature"]["log"]
        # The entropy is 2.1 (two actions, of a box with area 8) or log 4 = 1.39 at most.
        assert np.sign(change) == np.sign(target_entropy - 1.0)
        wanted = 0.1 * (target_entropy - metrics["policy/entropy"])
        np.testing.assert_allclose(change, wanted, rtol=1e-4)


@pytest.mark.parametrize("spec", [MOVE, CHOOSE], ids=["real", "discrete"])
def test_sac_with_a_fixed_temperature(spec):
    """It stays; a high one is worth more to the policy than any value: entropy grows."""
    batch = random_batch(np.random.default_rng(0), spec)
    entropies = {}
    for temperature in (1e-3, 100.0):
        rate = {"optimizer.learning_rate": 0.03}
        algo = make_small("sac", spec, temperature=temperature, **rate)
        state = algo.init(jax.random.key(0))
        for step in range(90):
            state, metrics = algo.update(jax.random.key(step), state, batch, np.int32(step))
            assert metrics["temperature"] == pytest.approx(temperature)
            assert not any("temperature" in name for name in metrics if name != "temperature")
        entropies[temperature] = float(metrics["policy/entropy"])
    assert entropies[100.0] > entropies[1e-3] + 0.01


def test_sac_acts():
    """Real actions lie inside the box; discrete ones have the probabilities of the logits."""
    observations = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    algo = make_small("sac")
    state = algo.init(jax.random.key(0))
    noise = algo.draw(jax.random.key(1), (500,))
    actions, memory = algo.act(noise, (), state, observations, ONE)
    assert (actions.shape, memory) == ((500, 2), ())
    low, high = MOVE.action_space.low, MOVE.action_space.high
    assert ((actions > low[None]) & (actions < high[None])).all()
    middle = np.asarray(algo.act_greedy(state, observations))
    # The first policy is centred: tanh(0) is the middle of the box.
    np.testing.assert_allclose(middle, np.tile([[0.0, 2.0]], (500, 1)), atol=0.2)
    np.testing.assert_allclose(np.mean(actions, 0), [0.0, 2.0], atol=0.2)

    algo = make_small("sac", CHOOSE)
    state = algo.init(jax.random.key(0))
    actions, _ = algo.act(algo.draw(jax.random.key(1), (500,)), (), state, observations, ONE)
    assert actions.dtype == jnp.int32
    # Almost uniform at first: 125 of each, deviation 10.
    np.testing.assert_allclose(np.bincount(actions, minlength=4), 125, atol=50)
    greedy = algo.act_greedy(state, observations)
    assert set(np.asarray(greedy).tolist()) <= {0, 1, 2, 3}
