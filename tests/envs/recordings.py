"""Every environment and adaptor, driven once by a policy without randomness, and recorded."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from rljax.envs import make
from rljax.envs.envpool import make_envpool
from rljax.envs.gymnasium import adapt, make_host
from rljax.envs.snapshot import Snapshot
from rljax.envs.vector import vectorize
from rljax.types import Discrete, EnvSpec, Transition

B, SEED = 3, 5
MODES = ("same_step", "next_step", "disabled")


class Case(NamedTuple):
    name: str
    how: str  # "jax", "native", "async", "envpool", or by `make_host`: "sync", "workers"
    mode: str
    num_steps: int
    options: tuple = ()

    def __str__(self):
        return "-".join([self.name, self.how, self.mode, *(key for key, _ in self.options)])


FALLING = (("terminate_when_unhealthy", False),)  # what has fallen goes on
SHORT = (("max_episode_steps", 60),)
CASES = [
    Case("LineWorld-v0", "jax", "same_step", 220),
    Case("CartPole-v1", "jax", "same_step", 520),
    Case("Acrobot-v1", "jax", "same_step", 520),
    Case("MountainCar-v0", "jax", "same_step", 220),
    Case("MountainCarContinuous-v0", "jax", "same_step", 1010),
    Case("Pendulum-v1", "jax", "same_step", 410),
    *(Case("CartPole-v1", "sync", mode, 520) for mode in MODES),
    *(Case("CartPole-v1", "async", mode, 60) for mode in MODES),
    Case("CartPole-v1", "workers", "same_step", 60),
    Case("CartPole-v1", "native", "next_step", 520),  # Gymnasium's own vector CartPole
    Case("CartPole-v1", "envpool", "same_step", 520),
    Case("Pendulum-v1", "envpool", "same_step", 410),
    Case("HalfCheetah-v5", "envpool", "same_step", 1010),
    *(Case("Pendulum-v1", "sync", mode, 410) for mode in MODES),
    *(Case("HalfCheetah-v5", "sync", mode, 1010) for mode in MODES),
    *(Case("Hopper-v5", "sync", mode, 250) for mode in MODES),
    # A Hopper that may fall: the only way for it to reach its limit untrained.
    Case("Hopper-v5", "sync", "next_step", 1010, FALLING),
    *(Case("Walker2d-v5", "sync", mode, 250) for mode in MODES[:2]),
    *(Case("InvertedPendulum-v5", "sync", mode, 250) for mode in MODES[:2]),
    *(Case("Swimmer-v5", "sync", mode, 130, SHORT) for mode in MODES[:2]),
    *(Case("Ant-v5", "sync", mode, 130, SHORT + FALLING) for mode in MODES[:2]),
]
# The steps after which an episode is truncated, where they are not 1000 or among the options.
LIMITS = {
    "LineWorld-v0": 100,
    "CartPole-v1": 500,
    "Acrobot-v1": 500,
    "MountainCar-v0": 200,
    "MountainCarContinuous-v0": 999,
    "Pendulum-v1": 200,
}
ENDLESS = ("LineWorld-v0", "Pendulum-v1", "HalfCheetah-v5", "Swimmer-v5")  # never terminated


class Runner(NamedTuple):
    reset: Callable[[int], np.ndarray]
    step: Callable[[np.ndarray], Transition]
    spec: EnvSpec
    close: Callable[[], None]


def make_async(name, num_envs, mode, **options):
    """Gymnasium's own vector environment of one process each, whose state can be saved."""
    make_one = functools.partial(gymnasium.make, name, disable_env_checker=True, **options)
    return AsyncVectorEnv(
        [lambda: Snapshot(make_one())] * num_envs,
        context="forkserver",
        autoreset_mode=AutoresetMode[mode.upper()],
    )


def open_runner(case):
    if case.how == "jax":
        return open_jax(case.name)
    if case.how == "native":
        envs = adapt(gymnasium.make_vec(case.name, B, vectorization_mode="vector_entry_point"))
    elif case.how == "envpool":
        envs = make_envpool(case.name, B)
    elif case.how == "async":
        envs = adapt(make_async(case.name, B, case.mode))
    else:
        workers = 2 if case.how == "workers" else 0
        envs = make_host(
            case.name, B, autoreset_mode=case.mode, workers=workers, **dict(case.options)
        )
    return Runner(envs.reset, envs.step, envs.spec, envs.close)


@functools.cache
def compiled(name):
    envs = vectorize(make(name), B)

    def step(key, state, actions):
        draws = jax.tree.map(lambda x: x[0], envs.draw(key, 1))
        return envs.step(draws, state, actions)

    return envs.spec, jax.jit(envs.reset), jax.jit(step)


def open_jax(name):
    spec, vector_reset, vector_step = compiled(name)
    memory: dict[str, Any] = {}

    def reset(seed):
        memory["key"], reset_key = jax.random.split(jax.random.key(seed))
        memory["state"], observation = vector_reset(reset_key)
        return np.asarray(observation)

    def step(actions):
        memory["key"], step_key = jax.random.split(memory["key"])
        memory["state"], transition = vector_step(step_key, memory["state"], actions)
        assert transition.mask is None  # every call is a step
        transition = jax.tree.map(np.asarray, transition)
        return transition._replace(mask=np.ones(B, np.bool_))

    return Runner(reset, step, spec, lambda: None)


def act(spec, b, observation):
    """Environment 0 of classic control reaches its goal, or its limit at the balancing pole.

    The mountain's other cars brake, the other acrobats hang loose, all else is erratic.
    """
    if spec.name == "CartPole-v1" and b == 0:
        x, x_dot, theta, theta_dot = observation
        return int(0.1 * x + 0.3 * x_dot + 3.0 * theta + theta_dot > 0)
    if spec.name.startswith("MountainCar"):
        push = (1.5 if b == 0 else -0.5) * (1 if observation[1] >= 0 else -1)
        return [push] if spec.name == "MountainCarContinuous-v0" else 1 + int(np.sign(push))
    if spec.name == "Acrobot-v1":
        return int(1 - np.sign(observation[4])) if b == 0 else 1
    noise = np.sin(1e3 * float(observation.sum(dtype=np.float64)))
    if isinstance(spec.action_space, Discrete):
        return int((noise + 1) / 2 * spec.action_space.num_actions * (1 - 1e-9))
    phases = np.arange(len(spec.action_space.low))
    return 1.5 * spec.action_space.high * np.sin(100 * noise + phases)  # beyond the bounds at times


def drive(runner, observation, num_steps):
    """Observations acted on, actions and transitions, each stacked to [T, B, ...]."""
    dtype = np.int32 if isinstance(runner.spec.action_space, Discrete) else np.float32
    observations, actions, transitions = [], [], []
    for _ in range(num_steps):
        action = np.array([act(runner.spec, b, observation[b]) for b in range(B)], dtype)
        transition = runner.step(action)
        observations.append(observation)
        actions.append(action)
        transitions.append(transition)
        observation = transition.observation
    return np.stack(observations), np.stack(actions), Transition(*map(np.stack, zip(*transitions)))


class Recording(NamedTuple):
    spec: EnvSpec
    first: np.ndarray
    observations: np.ndarray
    actions: np.ndarray
    steps: Transition


@functools.cache
def record(case):
    runner = open_runner(case)
    first = runner.reset(SEED)
    recording = Recording(runner.spec, first, *drive(runner, first, case.num_steps))
    runner.close()
    return recording
