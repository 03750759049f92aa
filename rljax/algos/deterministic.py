"""What DDPG and TD3 share: a deterministic actor, and the noise that explores around it."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.learner import Learner
from rljax.nets.actor_critic import check_choice
from rljax.nets.q import action_bounds, make_actor
from rljax.ops.noise import noisy_actions, ornstein_uhlenbeck
from rljax.ops.tanh_gaussian import tanh_squash
from rljax.types import Array, EnvSpec, Key, Net

NOISES = ("gaussian", "ou")
OU_THETA, OU_DT = 0.15, 1.0  # Lillicrap et al. (2016), section 7


def make_policy(config: Any, spec: EnvSpec) -> Net:
    """Observations to actions [..., A] inside their bounds."""
    low, high = action_bounds(spec)
    net = make_actor(config.net, spec, stochastic=False)
    return Net(
        net.init,
        lambda params, observations: tanh_squash(
            net.apply(params, observations), low=low, high=high
        ),
    )


def make_exploration(config: Any, spec: EnvSpec, policy: Net):
    """`draw`, `begin`, `act` and `act_greedy` of `OffPolicyAlgo`.

    The noise is `algo.noise_scale` times half the width of the box, independent ("gaussian") or
    remembered within an episode ("ou"); noisy actions are clipped to the box.
    """
    algo = config.algo
    check_choice("config.algo.noise", algo.noise, NOISES)
    low, high = action_bounds(spec)
    remembers = algo.noise == "ou"

    def draw(key: Key, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, (*shape, len(low)))

    def begin(num_envs: int) -> Any:
        return jnp.zeros((num_envs, len(low))) if remembers else ()

    def act_greedy(state: Learner, observations: Array) -> Array:
        return policy.apply(state.params["actor"], observations)

    def act(noise: Array, memory: Any, state: Learner, observations: Array, step: Array):
        del step
        actions, std = act_greedy(state, observations), algo.noise_scale
        if remembers:
            never = jnp.zeros(noise.shape[:-1], bool)  # the loop has seen to new episodes
            noise = memory = ornstein_uhlenbeck(
                noise, memory, never, theta=OU_THETA, std=std, dt=OU_DT
            )
            std = 1.0
        return noisy_actions(noise, actions, std=std, low=low, high=high), memory

    return draw, begin, act, act_greedy
