"""Actions clipped and scaled, in pure-JAX and in host environments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import host_transforms, make, transforms
from rljax.envs.gymnasium import make_host
from rljax.types import Box, Env, EnvSpec, HostVectorEnv, Step, Transition

LOW, HIGH = np.array([-1.0, 0.1], np.float32), np.array([3.0, 0.7], np.float32)
SPEC = EnvSpec("Mirror-v0", (2,), np.float32, Box(LOW, HIGH), 5)


def mirror(spec=SPEC) -> Env:
    """Shows the action it got."""

    def step(key, state, action):
        return state, Step(action, jnp.float32(0), jnp.bool_(False), jnp.bool_(False))

    return Env(lambda key: (jnp.int32(0), jnp.zeros(2)), step, spec)


def host_mirror(spec=SPEC) -> HostVectorEnv:
    def step(actions):
        none = np.zeros(len(actions))
        return Transition(actions, actions, *[none] * 6)

    return HostVectorEnv(lambda seed: np.zeros((3, 2)), step, dict, dict, dict, spec, 3)


def seen(env, action):
    if isinstance(env, HostVectorEnv):
        return env.step(np.tile(np.float32(action), (3, 1))).observation[1]
    state, _ = env.reset(jax.random.key(0))
    return env.step(jax.random.key(1), state, jnp.asarray(action, jnp.float32))[1].observation


def test_actions_are_clipped_to_each_bound():
    env = transforms.clip_actions(mirror())
    assert env.spec == SPEC
    np.testing.assert_array_equal(seen(env, [-2.0, 0.5]), np.float32([-1.0, 0.5]))
    np.testing.assert_array_equal(seen(env, [9.0, -9.0]), np.float32([3.0, 0.1]))
    np.testing.assert_array_equal(seen(env, [np.inf, 2.5]), np.float32([3.0, 0.7]))
    half = SPEC._replace(action_space=Box(np.float32([-1, -np.inf]), np.float32([np.inf, 0.5])))
    np.testing.assert_array_equal(seen(transforms.clip_actions(mirror(half)), [9, -9]), [9, -9])
    np.testing.assert_array_equal(seen(transforms.clip_actions(mirror(half)), [-9, 9]), [-1, 0.5])


def test_what_the_mountain_car_pays():
    """0.1 a² of the action as given, or of the clipped one; the car moves alike."""
    raw = make("MountainCarContinuous-v0")
    state, _ = raw.reset(jax.random.key(0))
    for action, given, clipped in [(0.5, -0.025, -0.025), (-3.0, -0.9, -0.1)]:
        action = jnp.full(1, action, jnp.float32)
        after_raw, step = raw.step(jax.random.key(1), state, action)
        after, clipped_step = transforms.clip_actions(raw).step(jax.random.key(1), state, action)
        np.testing.assert_allclose(step.reward, given, rtol=1e-6)
        np.testing.assert_allclose(clipped_step.reward, clipped, rtol=1e-6)
        assert after == after_raw


def test_discrete_actions_pass():
    env = make("Acrobot-v1")
    assert transforms.clip_actions(env) is env


@pytest.mark.parametrize(
    "env",
    [transforms.scale_actions(mirror()), host_transforms.scale_actions(host_mirror())],
    ids=["jax", "host"],
)
def test_the_unit_box_is_mapped_onto_the_bounds(env):
    space = env.spec.action_space
    for bound, expected in ((space.low, [-1, -1]), (space.high, [1, 1])):
        assert bound.dtype == np.float32
        np.testing.assert_array_equal(bound, expected)
    assert env.spec._replace(action_space=SPEC.action_space) == SPEC
    np.testing.assert_array_equal(seen(env, [-1, -1]), LOW)
    np.testing.assert_array_equal(seen(env, [1, 1]), HIGH)
    np.testing.assert_array_equal(seen(env, [-7, 7]), [LOW[0], HIGH[1]])
    # From -1 to 3 and from 0.1 to 0.7: the middle is 1 and 0.4, a quarter 0 and 0.25.
    np.testing.assert_allclose(seen(env, [0, 0]), [1.0, 0.4], rtol=1e-6)
    np.testing.assert_allclose(seen(env, [-0.5, -0.5]), [0.0, 0.25], atol=1e-7)
    assert seen(env, [0, 0]).dtype == np.float32


def test_a_scaled_pendulum_is_a_pendulum():
    raw = make("Pendulum-v1")
    state, _ = raw.reset(jax.random.key(0))
    _, expected = raw.step(jax.random.key(1), state, jnp.full(1, -0.6))
    _, step = transforms.scale_actions(raw).step(jax.random.key(1), state, jnp.full(1, -0.3))
    np.testing.assert_allclose(step.observation, expected.observation, rtol=1e-6)
    host, reference = (
        host_transforms.scale_actions(make_host("Pendulum-v1", 2)),
        make_host("Pendulum-v1", 2),
    )
    host.reset(0)
    reference.reset(0)
    for action in np.float32([-0.3, 0.8, 3.0]):
        step = host.step(np.full((2, 1), action))
        expected = reference.step(np.full((2, 1), 2 * action))
        np.testing.assert_allclose(step.next_observation, expected.next_observation, rtol=1e-6)


def fails(match, function, env):
    with pytest.raises(ValueError, match=match) as caught:
        function(env)
    assert "\n" not in str(caught.value)


@pytest.mark.errors
def test_what_cannot_be_scaled():
    endless = SPEC._replace(action_space=Box(LOW, np.float32([np.inf, 1])))
    bounds = r"Mirror-v0: actions between \[-1.0, 0.1.*\] and \[inf, 1.0\] cannot be scaled"
    fails(bounds, transforms.scale_actions, mirror(endless))
    fails(bounds, host_transforms.scale_actions, host_mirror(endless))
    discrete = r"CartPole-v1: Discrete\(num_actions=2\) cannot be scaled, allowed is a Box"
    fails(discrete, transforms.scale_actions, make("CartPole-v1"))
    fails(discrete, host_transforms.scale_actions, make_host("CartPole-v1", 1))
