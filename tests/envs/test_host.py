"""What the adaptor does with actions, observations and rewards, and what it refuses."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rljax.envs.gymnasium import adapt, env_seeds, make_host
from rljax.types import Discrete


class Toy(gymnasium.Env):
    """Shows the action it got, and pays it as the reward; ends when `ends` says so."""

    def __init__(self, action_space, observation_space, ends=(False, False)):
        self.action_space, self.observation_space, self.ends = action_space, observation_space, ends

    def show(self, value):
        return np.full(self.observation_space.shape, value, self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.show(0), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        value = np.sum(action)
        return self.show(value), value, *self.ends, {}


LINE = spaces.Box(-np.inf, np.inf, (1,), np.float64)


def toys(action_space, observation_space=LINE, ends=(False, False), **options):
    vector_env = SyncVectorEnv([lambda: Toy(action_space, observation_space, ends)] * 2, **options)
    return adapt(vector_env, name="Toy-v0", max_episode_steps=7)


def test_actions_are_clipped_to_the_bounds_that_are_finite():
    low, high = np.array([-1.0, -np.inf], np.float32), np.array([np.inf, 0.25], np.float32)
    envs = toys(spaces.Box(low, high))
    envs.reset(0)
    np.testing.assert_array_equal(envs.spec.action_space.low, low)
    np.testing.assert_array_equal(envs.spec.action_space.high, high)
    # (-3, -3) -> (-1, -3), sum -4; (3, 3) -> (3, 0.25), sum 3.25
    step = envs.step(np.array([[-3, -3], [3, 3]], np.float32))
    np.testing.assert_array_equal(step.reward, [-4, 3.25])
    # Bounds of float64 that float32 rounds outwards: the environment must not see them rounded.
    envs = toys(spaces.Box(-0.1, 0.1, (1,), np.float64))
    envs.reset(0)
    step = envs.step(envs.spec.action_space.high[None].repeat(2, axis=0))
    np.testing.assert_array_equal(step.reward, np.float32([0.1, 0.1]))


def test_discrete_actions_count_from_zero():
    envs = toys(spaces.Discrete(3, start=5))
    assert envs.spec.action_space == Discrete(3)
    envs.reset(0)
    np.testing.assert_array_equal(envs.step(np.array([0, 2], np.int32)).reward, [5, 7])


@pytest.mark.parametrize(
    ("given", "expected"),
    [(np.uint8, np.uint8), (np.float64, np.float32), (np.int64, np.float32)],
)
def test_observations_are_float32_or_uint8(given, expected):
    envs = toys(spaces.Discrete(3), spaces.Box(0, 255, (2, 3), given))
    assert envs.spec.observation_dtype == expected
    assert envs.spec.observation_shape == (2, 3)
    assert envs.reset(0).dtype == expected
    step = envs.step(np.array([1, 2]))
    assert step.observation.dtype == step.next_observation.dtype == expected
    np.testing.assert_array_equal(step.next_observation[1], np.full((2, 3), 2))


def test_returns_are_added_up_in_float64():
    envs = toys(spaces.Box(0, np.inf, (1,), np.float32))
    envs.reset(0)
    # From 2^24 on float32 cannot count by ones: 2^24 + 1 + 1 would stay 2^24.
    for action in (2**24, 1, 1):
        step = envs.step(np.full((2, 1), action, np.float32))
    np.testing.assert_array_equal(step.episode_return, [2**24 + 2] * 2)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("ends", [(True, False), (False, True), (True, True)])
def test_an_episode_of_one_step(mode, ends):
    envs = toys(spaces.Discrete(3), ends=ends, autoreset_mode=mode)
    envs.reset(0)
    for _ in range(3):
        step = envs.step(np.array([1, 2]))
        np.testing.assert_array_equal(step.next_observation, [[1], [2]])
        np.testing.assert_array_equal(step.terminated, [ends[0]] * 2)
        np.testing.assert_array_equal(step.truncated, [ends[1]] * 2)
        np.testing.assert_array_equal(step.episode_return, [1, 2])
        np.testing.assert_array_equal(step.episode_length, [1, 1])
        assert step.mask.all()
        if mode is AutoresetMode.NEXT_STEP:
            step = envs.step(np.array([1, 2]))
            assert not (step.mask | step.terminated | step.truncated | (step.reward != 0)).any()
        np.testing.assert_array_equal(step.observation, [[0], [0]])


def test_a_reset_in_the_middle_forgets_what_was_due():
    envs = make_host("CartPole-v1", 2, autoreset_mode="next_step", max_episode_steps=2)
    envs.reset(0)
    envs.step(np.array([0, 0]))
    assert envs.step(np.array([0, 0])).truncated.all()
    envs.reset(0)
    step = envs.step(np.array([0, 0]))
    assert step.mask.all()
    np.testing.assert_array_equal(step.episode_length, [1, 1])


def test_one_seed_for_each_environment():
    envs = make_host("Pendulum-v1", 2)
    first = envs.reset([11, 12])
    for b, seed in enumerate([11, 12]):
        observation, _ = gymnasium.make("Pendulum-v1").reset(seed=seed)
        np.testing.assert_array_equal(first[b], observation)


def test_models_are_loaded_without_a_log_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_host("HalfCheetah-v5", 1)  # MuJoCo 4 deprecates one of its attributes
    assert list(tmp_path.iterdir()) == []


def test_seeds_of_environments_do_not_meet():
    seeds = [seed for base in range(200) for seed in env_seeds(base, 50)]
    assert len(set(seeds)) == 200 * 50
    assert min(seeds) >= 0
    assert max(seeds) < 2**63


def fails(match, function, *args, **kwargs):
    """The call raises ValueError with a message of one line that matches."""
    with pytest.raises(ValueError, match=match) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.errors
def test_unknown_names():
    near = r"unknown environment 'HalfCheeta-v5': did you mean HalfCheetah-v5, .*\?"
    fails(near, make_host, "HalfCheeta-v5", 1)
    fails("did you mean .*CartPole-v1", make_host, "CartPole-v7", 1)
    fails("allowed are Gymnasium's ids", make_host, "qqqqqqqqqq", 1)
    fails("No module named 'no_such_module'", make_host, "no_such_module:CartPole-v1", 1)


@pytest.mark.errors
def test_bad_arguments():
    fails(
        "autoreset_mode is 'never', allowed are next_step, same_step, disabled",
        *(make_host, "CartPole-v1", 1),
        autoreset_mode="never",
    )
    for workers, mode in ((-1, "same_step"), (1, "next_step")):
        fails(
            f"workers is {workers} with autoreset_mode='{mode}', allowed are 0 and,",
            *(make_host, "CartPole-v1", 2),
            workers=workers,
            autoreset_mode=mode,
        )
    fails("num_envs is 0, it must be at least 1", make_host, "CartPole-v1", 0)
    fails("CartPole-v1 cannot be made: .*'gravity'", make_host, "CartPole-v1", 1, gravity=1.0)


@pytest.mark.errors
def test_spaces_that_are_not_supported():
    fails("Blackjack-v1: observations are Tuple, allowed is Box", make_host, "Blackjack-v1", 1)
    fails("FrozenLake-v1: observations are Discrete, allowed", make_host, "FrozenLake-v1", 1)
    both = spaces.Dict({"a": LINE, "b": LINE})
    fails("Toy-v0: observations are Dict, allowed is Box", toys, spaces.Discrete(2), both)
    allowed = "allowed are Discrete and float Box"
    fails(f"Toy-v0: actions are MultiDiscrete.*{allowed}", toys, spaces.MultiDiscrete([2, 3]))
    fails(allowed, toys, spaces.Box(-1, 1, (2, 2), np.float32))
    fails(allowed, toys, spaces.Box(0, 9, (2,), np.int64))


@pytest.mark.errors
def test_missing_mujoco(monkeypatch):
    for module in list(sys.modules):
        if module.startswith("gymnasium.envs.mujoco"):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "mujoco", None)  # makes `import mujoco` fail
    message = r'Hopper-v5 cannot be made: it needs MuJoCo: pip install "rljax\[mujoco\]"'
    fails(message, make_host, "Hopper-v5", 1)


@pytest.mark.errors
def test_vector_environments_that_cannot_be_adapted():
    unlimited = SyncVectorEnv([lambda: Toy(spaces.Discrete(2), LINE)])
    fails("Toy-v0: it has no time limit, give max_episode_steps", adapt, unlimited, name="Toy-v0")
    del unlimited.metadata["autoreset_mode"]
    fails(
        r"SyncVectorEnv: metadata\['autoreset_mode'\] is None, allowed are .*NEXT_STEP",
        *(adapt, unlimited),
        max_episode_steps=5,
    )
    private = AsyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")], shared_memory=False, context="forkserver"
    )
    fails("CartPole-v1: AsyncVectorEnv .* needs shared_memory=True", adapt, private)
    private.close()
