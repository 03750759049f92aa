"""Our copies of Gymnasium's classic control, driven with the same states and actions."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import PURE_JAX, make
from rljax.envs.acrobot import AcrobotState, Physics
from rljax.envs.cartpole import CartPoleState
from rljax.envs.mountain_car import MountainCarState
from rljax.envs.pendulum import PendulumState
from rljax.types import Discrete, Step

PI = np.pi


class Case(NamedTuple):
    """`state` makes ours from Gymnasium's numbers [..., D] and `time` [...]."""

    state: Callable[[Any, Any], Any]
    physics: Callable[[Any], list]  # the numbers again
    limit: int
    start: tuple[list, list]  # the bounds of an episode's first state
    box: tuple[list, list]  # ordinary states, beyond the ends too
    solve: Callable[[np.ndarray], float]  # observation -> action, to the goal or for the longest
    fail: Callable[[np.ndarray], float]
    ends: tuple[bool, bool]  # whether `solve` and `fail` end the episode before its time


def split(x) -> Any:
    """[..., D] to D arrays."""
    return jnp.moveaxis(jnp.asarray(x), -1, 0)


def push_along(velocity):
    return np.sign(velocity) if velocity else 1.0


CASES = {
    "CartPole-v1": Case(
        lambda x, time: CartPoleState(x, time),
        lambda state: list(split(state.physics)),
        500,
        ([-0.05] * 4, [0.05] * 4),
        ([-2.6, -3, -0.23, -3], [2.6, 3, 0.23, 3]),
        lambda x: float(0.1 * x[0] + 0.3 * x[1] + 3.0 * x[2] + x[3] > 0),
        lambda x: 1.0,
        (False, True),
    ),
    "Acrobot-v1": Case(
        lambda x, time: AcrobotState(Physics(*split(x)), time),
        lambda state: list(state.physics),
        500,
        ([-0.1] * 4, [0.1] * 4),
        ([-PI, -PI, -12.5, -28.2], [PI, PI, 12.5, 28.2]),
        lambda x: 1.0 - push_along(x[4]),
        lambda x: 1.0,
        (True, False),
    ),
    "MountainCar-v0": Case(
        lambda x, time: MountainCarState(x[..., 0], x[..., 1], time),
        lambda state: [state.position, state.velocity],
        200,
        ([-0.6, 0], [-0.4, 0]),
        ([-1.2, -0.07], [0.6, 0.07]),
        lambda x: 1.0 + push_along(x[1]),
        lambda x: 1.0 - push_along(x[1]),
        (True, False),
    ),
    "MountainCarContinuous-v0": Case(
        lambda x, time: MountainCarState(x[..., 0], x[..., 1], time),
        lambda state: [state.position, state.velocity],
        999,
        ([-0.6, 0], [-0.4, 0]),
        ([-1.2, -0.07], [0.6, 0.07]),
        lambda x: 1.5 * push_along(x[1]),
        lambda x: -0.5 * push_along(x[1]),
        (True, False),
    ),
    "Pendulum-v1": Case(
        lambda x, time: PendulumState(x[..., 0], x[..., 1], time),
        lambda state: [state.angle, state.velocity],
        200,
        ([-PI, -1], [PI, 1]),
        ([-9 * PI, -8], [9 * PI, 8]),
        lambda x: 3 * push_along(x[2]),  # spins ever faster, through many turns
        lambda x: 0.3,
        (False, False),
    ),
}
# Of one step from the same state. Acrobot moves at up to 28 rad/s in steps of 0.2 s, and its four
# slopes feed on each other's rounding.
TOLERANCES = {"Acrobot-v1": 2e-4}
every_case = pytest.mark.parametrize("name", CASES)


@functools.cache
def ours(name):
    env = make(name)
    return env, jax.jit(env.step), jax.jit(jax.vmap(env.step))


@functools.cache
def theirs(name):
    env = gymnasium.make(name, disable_env_checker=True)
    env.reset(seed=0)
    return env


def load(name, env, physics):
    """Puts the state into theirs, in float64."""
    env.unwrapped.state = np.asarray(physics, np.float64)
    if name == "CartPole-v1":
        env.unwrapped.steps_beyond_terminated = None


def as_action(name, action):
    """The number as an action of ours and one of theirs."""
    if isinstance(make(name).spec.action_space, Discrete):
        return jnp.int32(action), int(action)
    return jnp.full(1, action, jnp.float32), np.full(1, action, np.float32)


def compare(name, step: Step, expected) -> None:
    observation, reward, terminated = expected[:3]
    tolerance = TOLERANCES.get(name, 2e-6)
    np.testing.assert_allclose(step.observation, observation, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(step.reward, reward, rtol=tolerance, atol=1e-6)
    assert bool(step.terminated) == terminated


def compare_all(name, states, actions) -> np.ndarray:
    """One step of both from each of `states` [N, D]; returns the flags `terminated` [N]."""
    states = np.asarray(states, np.float32)
    keys = jax.random.split(jax.random.key(0), len(states))
    mine = jnp.stack([as_action(name, a)[0] for a in actions])
    start = CASES[name].state(jnp.asarray(states), jnp.zeros(len(states), jnp.int32))
    _, steps = ours(name)[2](keys, start, mine)
    steps = jax.tree.map(np.asarray, steps)
    for i, (state, action) in enumerate(zip(states, actions, strict=True)):
        load(name, theirs(name), state)
        expected = theirs(name).unwrapped.step(as_action(name, action)[1])
        compare(name, Step(*(x[i] for x in steps)), expected)
    assert not steps.truncated.any()
    return steps.terminated


def test_every_environment_that_gymnasium_has_is_a_case():
    assert CASES.keys() == PURE_JAX.keys() - {"LineWorld-v0"}


@every_case
def test_from_ordinary_states(name):
    rng, num = np.random.default_rng(0), 400
    space = make(name).spec.action_space
    if isinstance(space, Discrete):
        actions = rng.integers(0, space.num_actions, num)
    else:
        actions = rng.uniform(-2, 2, num) * space.high  # half of them beyond the bounds
    low, high = CASES[name].box
    terminated = compare_all(name, rng.uniform(low, high, (num, len(low))), actions)
    assert terminated.any() == (name != "Pendulum-v1")
    assert not terminated.all()


@pytest.mark.parametrize(
    ("name", "goal"), [("MountainCar-v0", 0.5), ("MountainCarContinuous-v0", 0.45)]
)
def test_the_goal_and_the_walls_of_the_mountain(name, goal):
    """The action is none: the car moves by v - 0.0025 cos 3x."""
    velocity = 0.03 + 0.0025 * np.cos(3 * (goal - 0.03))
    offsets = np.array([-1e-3, -1e-5, 1e-5, 1e-3])
    states = np.stack([goal - 0.03 + offsets, np.full(4, velocity)], axis=1)
    none = 1 if name == "MountainCar-v0" else 0
    np.testing.assert_array_equal(compare_all(name, states, [none] * 4), offsets > 0)
    # Beyond the goal but rolling back, at the end on the right, into the wall, off the wall.
    states = [[0.58, -0.02], [0.59, 0.05], [-1.19, -0.07], [-1.2, -0.01], [-1.2, 0.02]]
    np.testing.assert_array_equal(compare_all(name, states, [none] * 5), [0, 1, 0, 0, 0])


@every_case
@pytest.mark.parametrize("policy", ["solve", "fail"])
def test_episodes_to_their_end_and_beyond(name, policy):
    """Theirs has its time limit and is set to our state before every step."""
    case, env = CASES[name], theirs(name)
    ends = case.ends[policy == "fail"]
    key = jax.random.key(1)
    state, observation = ours(name)[0].reset(key)
    env.reset(seed=1)
    lengths, length = [], 0
    for _ in range(case.limit + 20):
        load(name, env, case.physics(state))
        mine, action = as_action(name, getattr(case, policy)(np.asarray(observation)))
        state, step = ours(name)[1](key, state, mine)
        expected = env.step(action)
        compare(name, step, expected)
        assert bool(step.truncated) == expected[3]
        observation, length = step.observation, length + 1
        if expected[2] or expected[3]:
            assert (expected[2], expected[3]) == (ends, not ends)
            lengths.append(length)
            key, length = jax.random.fold_in(key, length), 0
            state, observation = ours(name)[0].reset(key)
            env.reset()
    assert lengths
    assert (lengths[0] < case.limit) == ends


@every_case
def test_running_freely(name):
    """Only the first state is the same: errors may grow, but not much in at most fifty steps."""
    case, env, rng = CASES[name], theirs(name), np.random.default_rng(2)
    start = np.asarray(case.start[1], np.float32) / 2
    state = case.state(jnp.asarray(start), jnp.int32(0))
    env.reset(seed=2)
    load(name, env, start)
    for _ in range(50):
        discrete = isinstance(make(name).spec.action_space, Discrete)
        mine, action = as_action(name, rng.integers(2) if discrete else rng.uniform(-3, 3))
        state, step = ours(name)[1](jax.random.key(0), state, mine)
        observation, reward, terminated, *_ = env.step(action)
        np.testing.assert_allclose(step.observation, observation, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(step.reward, float(reward), rtol=1e-3, atol=1e-4)
        assert bool(step.terminated) == terminated
        if terminated:  # the pole has fallen
            break


@every_case
def test_start_states_are_uniform(name):
    low, high = (np.asarray(bound, np.float64) for bound in CASES[name].start)
    state, _ = jax.vmap(make(name).reset)(jax.random.split(jax.random.key(3), 4000))
    assert not np.any(state.time)
    mine = np.stack(CASES[name].physics(state), axis=-1).astype(np.float64)
    env: Any = theirs(name)
    reference = np.stack([(env.reset(), env.unwrapped.state)[1] for _ in range(1000)])
    for start in (mine, reference):
        assert ((start >= low - 1e-6) & (start <= high + 1e-6)).all()
        # Mean (low + high) / 2, variance (high - low)² / 12; five standard errors.
        error = np.abs(start.mean(0) - (low + high) / 2)
        assert (error <= 5 * (high - low) / np.sqrt(12 * len(start))).all()
        np.testing.assert_allclose(start.var(0), (high - low) ** 2 / 12, rtol=0.2)
