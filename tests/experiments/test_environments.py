"""What a config says of actions, noise and rewards arrives in the run, on both backends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.build import build
from experiments.configs import defaults

BACKENDS = ("jax", "gymnasium")


def small_run(name, backend, discount=0.99, noise_hold=1, **fields):
    config = defaults.run(name, backend=backend)
    config.algo = defaults.a2c()
    config.algo.discount = discount
    config.net.hidden_sizes = (4,)
    config.env.num_envs = 2
    config.unroll_length = 8
    config.noise_hold = noise_hold
    config.total_steps = 64
    config.log_interval = config.eval_interval = config.checkpoint_interval = 2
    config.eval_episodes = 3
    config.env.update(fields)
    return build(config).loop


def always(loop, action):
    """A run whose policy's mean is `action`, whatever it sees."""
    state = loop.init()
    policy = jax.tree.map(jnp.zeros_like, state.algo.params["policy"])
    policy["mean"]["bias"] = jnp.full_like(policy["mean"]["bias"], action)
    params = {**state.algo.params, "policy": policy}
    return state._replace(algo=state.algo._replace(params=params))


@pytest.mark.parametrize("backend", BACKENDS)
def test_actions(backend):
    """A pendulum's torque reaches 2: by 2, by all beyond, or by 1 and all beyond if scaled."""
    clip, scale = (small_run("Pendulum-v1", backend, actions=how) for how in ("clip", "scale"))

    def score(loop, action):
        return loop.evaluate(always(loop, action))["eval/return_mean"]

    assert score(clip, 2.0) == score(clip, 7.0) == score(scale, 1.0) == score(scale, 7.0)
    assert score(clip, 1.0) == score(scale, 0.5) != score(clip, 2.0)


def test_actions_as_they_are():
    """Without clipping the mountain car pays for what it was told, 0.1 · 3² a step."""
    paid = {}
    for how in ("clip", "none"):
        loop = small_run("MountainCarContinuous-v0", "jax", actions=how)
        paid[how] = loop.evaluate(always(loop, -3.0))["eval/return_mean"]
    np.testing.assert_allclose(paid["clip"], -0.1 * 999, rtol=1e-4)
    np.testing.assert_allclose(paid["none"], -0.9 * 999, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_held_noise(backend):
    """Torques that stay turn a pendulum otherwise than torques that are drawn in each step."""
    ends = []
    for hold in (1, 8):
        loop = small_run("Pendulum-v1", backend, noise_hold=hold)
        start = np.array(loop.init().observation)
        ends.append((start, np.array(loop.advance(loop.init(), 1)[0].observation)))
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    assert (np.abs(ends[0][1] - ends[1][1]).max(-1) > 1e-3).all()


@pytest.mark.parametrize("actions", ["clip", "scale"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_discrete_actions_are_left_alone(backend, actions):
    small_run("CartPole-v1", backend, actions=actions)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rewards(backend):
    """A pendulum pays up to -16; divided by the deviation of its return the critic errs less."""
    raw, scaled = (small_run("Pendulum-v1", backend, normalize_rewards=on) for on in (False, True))
    losses = [loop.advance(loop.init(), 2)[1]["loss/value"] for loop in (raw, scaled)]
    assert (losses[1] < losses[0] / 2).all()
    scores = [loop.evaluate(always(loop, 0.0))["eval/return_mean"] for loop in (raw, scaled)]
    assert scores[0] == scores[1] < -200


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_running_return_has_the_discount_of_the_algorithm(backend):
    """The pole pays 1 a step: 1, 1 + γ, ... of which 16 steps without discount make 1 each."""
    means = []
    for discount in (0.0, 0.5):
        loop = small_run("CartPole-v1", backend, discount, normalize_rewards=True)
        env = loop.save(loop.advance(loop.init(), 1)[0]).env
        means.append(float(env.moments.mean if backend == "jax" else env["rewards"]["mean"][0]))
    # Eight steps, within which no pole falls: the mean of 2 - 2^-t, t = 0 ... 7.
    np.testing.assert_allclose(means, [1.0, 2 - (2 - 2.0**-7) / 8], rtol=1e-6)
