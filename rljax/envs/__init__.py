"""Environments: pure-JAX ones as `Env`, host ones through the adaptor in `gymnasium.py`.

`make(name)` gives a pure-JAX environment; `vector.vectorize(env, num_envs)` steps B of them
together.
"""

from collections.abc import Callable

from rljax.envs import acrobot, cartpole, line_world, mountain_car, pendulum
from rljax.types import Env

PURE_JAX: dict[str, Callable[[], Env]] = {
    "Acrobot-v1": acrobot.make,
    "CartPole-v1": cartpole.make,
    "LineWorld-v0": line_world.make,
    "MountainCar-v0": mountain_car.make,
    "MountainCarContinuous-v0": mountain_car.make_continuous,
    "Pendulum-v1": pendulum.make,
}


def make(name: str) -> Env:
    """The pure-JAX environment called `name`.

    Args:
      name: one of `PURE_JAX`.

    Returns:
      An `Env` whose episodes are truncated after `spec.max_episode_steps` steps.

    Raises:
      ValueError: if there is no such environment; the message lists those there are.

    >>> make("CartPole-v1").spec.observation_shape
    (4,)
    """
    if name not in PURE_JAX:
        raise ValueError(f"unknown environment {name!r}: allowed are {', '.join(sorted(PURE_JAX))}")
    return PURE_JAX[name]()
