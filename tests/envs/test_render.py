"""What is drawn is where the environment stands."""

import sys

import gymnasium
import jax
import numpy as np
import pytest

from rljax import envs
from rljax.envs import render
from rljax.types import Discrete

THEIRS = sorted({*envs.PURE_JAX} & {*render.THEIR_STATE})


def some_action(spec, t):
    if isinstance(spec.action_space, Discrete):
        return np.int32(t % spec.action_space.num_actions)
    return np.float32([np.sin(t) * 0.9])


def test_every_pure_jax_environment_can_be_drawn():
    assert {*envs.PURE_JAX} <= {*render.THEIR_STATE, "LineWorld-v0"}


@pytest.mark.parametrize("name", THEIRS)
def test_the_state_put_into_gymnasiums_environment_goes_on_as_ours(name):
    env = envs.make(name)
    theirs = gymnasium.make(name, disable_env_checker=True)
    theirs.reset(seed=0)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    state, _ = reset(jax.random.key(3))
    for t in range(12):
        action = some_action(env.spec, t)
        render.put(theirs, state)
        expected, reward, *_ = theirs.unwrapped.step(action)
        state, after = step(jax.random.key(0), state, action)
        np.testing.assert_allclose(after.observation, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(after.reward, reward, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(envs.PURE_JAX))
def test_pictures_of_ours(name):
    env = envs.make(name)
    stage = render.jax_stage(env)
    observation = stage.reset(5)
    pictures = [stage.picture()]
    for t in range(1, 31):
        observation, reward, ended = stage.step(some_action(env.spec, t)[None])
        assert observation.shape == (1, *env.spec.observation_shape)
        assert np.isfinite(reward)
        pictures.append(stage.picture())
        if ended:
            break
    assert {(picture.dtype, picture.ndim) for picture in pictures} == {(np.dtype(np.uint8), 3)}
    assert len({picture.tobytes() for picture in pictures}) > 1
    assert (stage.reset(5) == stage.reset(5)).all()
    assert stage.picture().tobytes() == pictures[0].tobytes()
    stage.close()


def test_the_picture_of_cartpole_is_that_of_gymnasium():
    theirs = gymnasium.make("CartPole-v1", render_mode="rgb_array", disable_env_checker=True)
    observation, _ = theirs.reset(seed=1)
    expected = theirs.render()
    env = envs.make("CartPole-v1")
    start, _ = env.reset(jax.random.key(0))
    start = start._replace(physics=jax.numpy.asarray(observation))
    stage = render.jax_stage(env._replace(reset=lambda key: (start, start.physics)))
    stage.reset(0)
    np.testing.assert_array_equal(stage.picture(), expected)


def test_the_line_world_shows_where_it_stands():
    stage = render.jax_stage(envs.make("LineWorld-v0"))
    stage.reset(0)
    blue = []
    for action in (2, 2, 0):
        picture = stage.picture().astype(int)
        is_blue = picture[..., 2] - picture[..., 0] > 100
        blue.append(int(np.flatnonzero(is_blue.any(0)).mean() // render.CELL))
        stage.step(np.int32([action]))
    assert blue == [2, 3, 4]


def test_gymnasiums_own_until_the_end_of_the_episode():
    stage = render.gymnasium_stage("CartPole-v1")
    observation, ended, pictures = stage.reset(2), False, []
    while not ended:
        observation, _, ended = stage.step(np.int32([1]))
        pictures.append(stage.picture())
    # The end is seen, not the start of the next episode.
    assert abs(observation[0, 2]) > 0.2
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)
    stage.close()


@pytest.mark.errors
def test_what_cannot_be_drawn(monkeypatch):
    env = envs.make("LineWorld-v0")
    with pytest.raises(ValueError, match=r"^X cannot be drawn: allowed are .*CartPole-v1"):
        render.jax_stage(env._replace(spec=env.spec._replace(name="X")))
    with pytest.raises(ValueError, match="unknown environment 'CartPole-v7': did you mean"):
        render.gymnasium_stage("CartPole-v7")
    monkeypatch.setitem(sys.modules, "pygame", None)
    for make in (lambda: render.jax_stage(envs.make("CartPole-v1")), pendulum):
        with pytest.raises(
            ValueError, match=r'cannot be drawn: pip install "rljax\[play\]" \('
        ) as e:
            make()
        assert "\n" not in str(e.value)


@pytest.mark.errors
def test_mujoco_without_a_gl_library(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "none_such")
    with pytest.raises(ValueError, match=r"HalfCheetah-v5 cannot be drawn: .* GL library") as error:
        render.gymnasium_stage("HalfCheetah-v5")
    assert "\n" not in str(error.value)


def pendulum():
    return render.gymnasium_stage("Pendulum-v1")
