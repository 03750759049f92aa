"""Every loss of rljax, one row each; test_table.py holds all of them to the rules of the house.

To add a loss, append a `Row` to `ROWS`. Nothing else is needed:

    Row("mine", mine_loss, make=inputs("values", "targets"), trained=("values",), held=("targets",))

`make` returns the array arguments by name: random, valid, and away from kinks by chance alone. Each
float argument is named once: in `trained` if it gets a gradient, in `held` if the loss holds it
constant. Arguments start with `shape`, the axes of the mask, or with the first of them alone (one
number per row of tokens); those with neither, such as an atom support, are named in `shared`.
Settings that select another branch of the same loss deserve a row of their own.
The numbers a loss must give are not checked here but in a file of its own, by hand.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rljax.losses.c51 import c51_loss
from rljax.losses.ddpg import ddpg_actor_loss, ddpg_critic_loss
from rljax.losses.discrete_sac import (
    discrete_sac_actor_loss,
    discrete_sac_critic_loss,
    discrete_sac_temperature_loss,
)
from rljax.losses.dqn import dqn_loss
from rljax.losses.ppo import ppo_loss
from rljax.losses.sac import sac_actor_loss, sac_critic_loss, sac_temperature_loss
from rljax.losses.td3 import td3_critic_loss
from rljax.losses.trpo import surrogate_loss
from rljax.losses.value import value_loss
from rljax.losses.vpg import vpg_loss

Inputs = dict[str, np.ndarray]
Make = Callable[[np.random.Generator, tuple[int, ...]], Inputs]


class Row(NamedTuple):
    """One loss under one choice of settings."""

    name: str
    loss: Callable[..., Any]  # loss(**inputs, **settings, mask=..., denominator=...)
    make: Make  # random generator, shape -> array arguments by name
    trained: tuple[str, ...]
    held: tuple[str, ...]
    settings: Mapping[str, Any] = {}
    shape: tuple[int, ...] = (8, 3)  # the first axis is split, permuted, and shared by 4 devices
    shared: tuple[str, ...] = ()
    count: Callable[[np.ndarray], int] = np.count_nonzero  # mask -> the default denominator
    local_metrics: tuple[str, ...] = ()  # metrics that do not add up over micro-batches


def inputs(*names: str) -> Make:
    """Arguments of the mask's shape, each a standard normal number per element."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> Inputs:
        return {name: rng.normal(size=shape).astype(np.float32) for name in names}

    return make


def policy_inputs(rng: np.random.Generator, shape: tuple[int, ...]) -> Inputs:
    """Two policies whose ratio is in and out of every band, and advantages of either sign."""
    behaviour = rng.uniform(-3.0, -0.1, shape)
    arrays = {
        "log_probs": behaviour + rng.normal(0.0, 0.7, shape),
        "behaviour_log_probs": behaviour,
        "advantages": rng.normal(0.0, 2.0, shape),
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def action_inputs(*names: str, each: tuple[str, ...], num_actions: int = 4) -> Make:
    """Those in `each` have one number per action beside the mask's shape; `actions` picks one."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> Inputs:
        arrays = inputs(*names)(rng, shape) | inputs(*each)(rng, (*shape, num_actions))
        arrays["actions"] = rng.integers(num_actions, size=shape).astype(np.int32)
        return arrays

    return make


def atom_inputs(rng: np.random.Generator, shape: tuple[int, ...]) -> Inputs:
    """Distributions over five atoms for each of four actions, and targets with zeros in them."""
    target_probs = np.maximum(rng.normal(size=(*shape, 5)), 0.0)
    target_probs[..., 1] += 0.1
    target_probs /= target_probs.sum(axis=-1, keepdims=True)
    return {
        "logits": rng.normal(size=(*shape, 4, 5)).astype(np.float32),
        "actions": rng.integers(4, size=shape).astype(np.int32),
        "target_probs": target_probs.astype(np.float32),
        "weights": rng.uniform(0.5, 2.0, shape).astype(np.float32),
    }


def policy_q_inputs(rng: np.random.Generator, shape: tuple[int, ...]) -> Inputs:
    """Two critics and a policy over four discrete actions, one of which it cannot take."""
    arrays = inputs("q1", "q2", "logits")(rng, (*shape, 4))
    arrays["logits"][:, :, 3] = -np.inf
    return arrays


def temperature_inputs(name: str, *axes: int) -> Make:
    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> Inputs:
        return inputs(name)(rng, (*shape, *axes)) | {"log_temperature": np.float32([-0.7])[0]}

    return make


POLICY = {
    "make": policy_inputs,
    "trained": ("log_probs",),
    "held": ("behaviour_log_probs", "advantages"),
}

ROWS = [
    Row(
        "vpg",
        vpg_loss,
        make=inputs("log_probs", "advantages"),
        trained=("log_probs",),
        held=("advantages",),
    ),
    Row("surrogate", surrogate_loss, **POLICY),
    Row("ppo", ppo_loss, **POLICY, settings={"clip": 0.2}),
    Row(
        "ppo-dual-clip",
        ppo_loss,
        **POLICY,
        settings={"clip": 0.2, "clip_high": 0.3, "dual_clip": 1.5},
    ),
    Row("ppo-flat", ppo_loss, **POLICY, settings={"clip": 0.2}, shape=(8,)),
    Row(
        "value",
        value_loss,
        make=inputs("values", "targets"),
        trained=("values",),
        held=("targets",),
    ),
    Row(
        "value-clip",
        value_loss,
        make=inputs("values", "targets", "behaviour_values"),
        trained=("values",),
        held=("targets", "behaviour_values"),
        settings={"clip": 0.5},
    ),
    Row(
        "dqn",
        dqn_loss,
        make=action_inputs("targets", each=("q_values",)),
        trained=("q_values",),
        held=("targets",),
    ),
    Row(
        "dqn-huber-weights",
        dqn_loss,
        make=action_inputs("targets", "weights", each=("q_values",)),
        trained=("q_values",),
        held=("targets", "weights"),
        settings={"huber_delta": 0.5},
    ),
    Row(
        "c51",
        c51_loss,
        make=atom_inputs,
        trained=("logits",),
        held=("target_probs", "weights"),
    ),
    Row(
        "ddpg-critic",
        ddpg_critic_loss,
        make=inputs("q", "targets"),
        trained=("q",),
        held=("targets",),
    ),
    Row("ddpg-actor", ddpg_actor_loss, make=inputs("q"), trained=("q",), held=()),
    Row(
        "td3-critic",
        td3_critic_loss,
        make=inputs("q1", "q2", "targets"),
        trained=("q1", "q2"),
        held=("targets",),
    ),
    Row(
        "sac-critic",
        sac_critic_loss,
        make=inputs("q1", "q2", "targets"),
        trained=("q1", "q2"),
        held=("targets",),
    ),
    Row(
        "sac-actor",
        sac_actor_loss,
        make=inputs("q1", "q2", "log_probs"),
        trained=("q1", "q2", "log_probs"),
        held=(),
        settings={"temperature": 0.3},
    ),
    Row(
        "sac-temperature",
        sac_temperature_loss,
        make=temperature_inputs("log_probs"),
        trained=("log_temperature",),
        held=("log_probs",),
        settings={"target_entropy": -2.0},
        shared=("log_temperature",),
    ),
    Row(
        "discrete-sac-critic",
        discrete_sac_critic_loss,
        make=action_inputs("targets", each=("q1", "q2")),
        trained=("q1", "q2"),
        held=("targets",),
    ),
    Row(
        "discrete-sac-actor",
        discrete_sac_actor_loss,
        make=policy_q_inputs,
        trained=("logits",),
        held=("q1", "q2"),
        settings={"temperature": 0.3},
    ),
    Row(
        "discrete-sac-temperature",
        discrete_sac_temperature_loss,
        make=temperature_inputs("logits", 4),
        trained=("log_temperature",),
        held=("logits",),
        settings={"target_entropy": 0.5},
        shared=("log_temperature",),
    ),
]
