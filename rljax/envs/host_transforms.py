"""Functions on host environments: those of `transforms.py`, in NumPy.

There is no `clip_actions`: the adaptors of host environments clip by themselves.
"""

from collections.abc import Sequence

import numpy as np

from rljax.envs.transforms import EPS, MAX_REWARD, check_discount, unit_actions
from rljax.types import HostVectorEnv, PyTree, Transition


def scale_actions(envs: HostVectorEnv) -> HostVectorEnv:
    """Actions in [-1, 1] for all between `low` and `high`: `transforms.scale_actions`.

    >>> from rljax.envs.gymnasium import make_host
    >>> scale_actions(make_host("Pendulum-v1", 2)).spec.action_space.high.tolist()
    [1.0]
    """
    spec, low, high = unit_actions(envs.spec)

    def step(actions: np.ndarray) -> Transition:
        actions = np.clip(actions, -1.0, 1.0)
        return envs.step(0.5 * ((1 - actions) * low + (1 + actions) * high))

    return envs._replace(step=step, spec=spec)


def normalize_rewards(
    envs: HostVectorEnv, *, discount: float, num_groups: int = 1
) -> HostVectorEnv:
    """Rewards divided by the standard deviation of the running discounted return.

    `transforms.normalize_rewards` in float64. The statistics are in the snapshot; `reset` starts
    them anew, the resets at the ends of episodes do not.

    Args:
      envs: the environments.
      discount: γ in [0, 1].
      num_groups: each B / num_groups environments in a row have statistics of their own: those
        of one of several runs side by side.

    Raises:
      ValueError: if `discount` is not in [0, 1] or B is not divisible by `num_groups`.

    >>> from rljax.envs.gymnasium import make_host
    >>> envs = normalize_rewards(make_host("Pendulum-v1", 2), discount=0.99)
    >>> _, transition = envs.reset(0), envs.step(np.zeros((2, 1)))
    >>> envs.snapshot()["rewards"]["count"]
    array([2.])
    """
    check_discount(discount)
    if envs.num_envs % num_groups:
        raise ValueError(f"{envs.num_envs} environments cannot be split into {num_groups} groups")
    memory: dict[str, np.ndarray] = {}

    def start() -> None:
        memory["running_return"] = np.zeros(envs.num_envs)
        for name in ("count", "mean", "var"):
            memory[name] = np.zeros(num_groups)

    def reset(seed: int | Sequence[int]) -> np.ndarray:
        start()
        return envs.reset(seed)

    def step(actions: np.ndarray) -> Transition:
        transition = envs.step(actions)
        mask, reward = np.asarray(transition.mask), np.asarray(transition.reward, np.float64)
        done = mask & (transition.terminated | transition.truncated)
        before = memory["running_return"]
        running_return = np.where(mask, discount * before + reward, before)
        memory["running_return"] = np.where(done, 0.0, running_return)
        memory.update(
            merge(memory, running_return.reshape(num_groups, -1), mask.reshape(num_groups, -1))
        )
        var = memory["var"]
        scale = np.where(var > 0, np.sqrt(var + EPS), 1.0)
        scaled = reward / scale.repeat(envs.num_envs // num_groups)
        scaled = np.clip(scaled, -MAX_REWARD, MAX_REWARD).astype(np.float32)
        return transition._replace(reward=scaled)  # pyright: ignore[reportArgumentType]

    def snapshot() -> PyTree:
        rewards = {name: value.copy() for name, value in memory.items()}
        return {"envs": envs.snapshot(), "rewards": rewards}

    def restore(tree: PyTree) -> np.ndarray:
        observation = envs.restore(tree["envs"])
        memory.update({name: np.array(value) for name, value in tree["rewards"].items()})
        if not envs.exact:
            memory["running_return"] = np.zeros_like(memory["running_return"])
        return observation

    start()
    return envs._replace(reset=reset, step=step, snapshot=snapshot, restore=restore)


def merge(
    moments: dict[str, np.ndarray], samples: np.ndarray, mask: np.ndarray
) -> dict[str, np.ndarray]:
    """Count, mean and variance [G] with the unmasked of `samples` [G, N] added; see `ops.moments`.

    The samples are taken relative to one of them, so that equal ones have variance 0.

    >>> none = {name: np.zeros(1) for name in ("count", "mean", "var")}
    >>> merge(none, np.array([[1.0, 3.0, np.nan]]), np.array([[True, True, False]]))["var"]
    array([1.])
    """
    num = mask.sum(1).astype(np.float64)
    origin = np.where(num > 0, np.max(samples, axis=1, initial=-np.inf, where=mask), 0.0)
    shifted = np.where(mask, samples - origin[:, None], 0.0)
    offset = shifted.sum(1) / np.maximum(num, 1.0)
    centred = np.where(mask, shifted - offset[:, None], 0.0)
    var = np.square(centred).sum(1) / np.maximum(num, 1.0)

    count = moments["count"] + num
    share = num / np.maximum(count, 1.0)
    change = origin + offset - moments["mean"]
    return {
        "count": count,
        "mean": moments["mean"] + share * change,
        "var": moments["var"] + share * (var - moments["var"] + (1 - share) * np.square(change)),
    }
