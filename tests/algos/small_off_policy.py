"""What the tests of off-policy algorithms and loops share: small configs, batches, loops."""

import functools
from typing import Any

import jax
import numpy as np

from experiments.configs import defaults
from rljax import envs
from rljax.data.replay import Replay, make_replay
from rljax.data.windows import n_step
from rljax.loops.loop import Loop
from rljax.loops.off_policy import example_of, jax_loop
from rljax.types import Box, Discrete, Env, EnvSpec, NStepBatch, OffPolicyAlgo

from .small import make_algo

CHOOSE = EnvSpec("Choose-v0", (3,), np.float32, Discrete(4), 5)
# Two real actions, in boxes of different width and centre.
MOVE = EnvSpec("Move-v0", (3,), np.float32, Box(np.array([-1, 0], "f"), np.array([1, 4], "f")), 5)
SPECS = {"dqn": CHOOSE, "c51": CHOOSE, "ddpg": MOVE, "td3": MOVE, "sac": MOVE}


def small_config(algo: str, env: str, changes: dict[str, Any] | None = None):
    """The defaults of `algo`, small; `changes` are fields by their dotted names."""
    config = defaults.off_policy(env, getattr(defaults, algo)())
    config.net.hidden_sizes = (8, 8)
    config.net.activation = "tanh"
    config.env.num_envs = 2
    config.unroll_length = 4
    config.log_interval = 8
    config.eval_episodes = 2
    config.replay.capacity = 64
    config.replay.batch_size = 8
    config.replay.warmup_steps = 10
    config.replay.updates_per_step = 0.25  # two gradient steps an update
    config.update_from_flattened_dict(changes or {})
    return config


def make_small(algo: str, spec: EnvSpec | None = None, **changes: Any) -> OffPolicyAlgo:
    """An algorithm without an environment; `changes` are fields of its section."""
    spec = spec or SPECS[algo]
    fields = {name if "." in name else f"algo.{name}": value for name, value in changes.items()}
    made = make_algo(small_config(algo, spec.name, fields), spec, num_updates=10)
    act, act_greedy, update = map(jax.jit, (made.act, made.act_greedy, made.update))
    return made._replace(act=act, act_greedy=act_greedy, update=update)


def random_batch(rng, spec: EnvSpec, size: int = 16) -> NStepBatch:
    """Single steps of no policy in particular; a quarter of them end."""
    terminated = rng.random(size) < 0.25
    space = spec.action_space
    if isinstance(space, Discrete):
        actions = rng.integers(0, space.num_actions, size).astype(np.int32)
    else:
        actions = rng.uniform(space.low, space.high, (size, len(space.low))).astype(np.float32)
    return NStepBatch(
        observation=rng.normal(size=(size, *spec.observation_shape)).astype(np.float32),
        action=actions,
        reward=rng.normal(size=size).astype(np.float32),
        discount=np.where(terminated, 0.0, 0.99).astype(np.float32),
        next_observation=rng.normal(size=(size, *spec.observation_shape)).astype(np.float32),
        terminated=terminated,
        truncated=np.zeros(size, bool),
    )


def make_parts(config: Any, spec: EnvSpec) -> tuple[OffPolicyAlgo, Replay, dict[str, Any]]:
    """Algorithm, replay, and the settings of the loop, as `config` asks for them."""
    replay = make_replay(
        example_of(spec),
        capacity=config.replay.capacity,
        num_envs=config.env.num_envs,
        window=n_step(config.algo.n_step, discount=config.algo.discount),
        memory_limit=10**12,
    )
    steps = config.env.num_envs * config.unroll_length
    settings = dict(
        num_envs=config.env.num_envs,
        unroll_length=config.unroll_length,
        gradient_steps=round(config.replay.updates_per_step * steps),
        batch_size=config.replay.batch_size,
        warmup_steps=config.replay.warmup_steps,
        max_updates=config.log_interval,
        eval_episodes=config.eval_episodes,
        noise_hold=config.noise_hold,
        save_replay=config.replay.checkpoint,
    )
    return make_algo(config, spec, num_updates=100), replay, settings


def small_loop(config: Any, env: Env, **settings: Any) -> Loop:
    algo, replay, own = make_parts(config, env.spec)
    return jax_loop(env, algo, replay, **{**own, **settings})


ENVS = {"dqn": "CartPole-v1", "sac": "Pendulum-v1", "ddpg": "Pendulum-v1"}


def classic_loop(algo: str, changes: dict[str, Any] | None = None, **settings: Any) -> Loop:
    """`algo` on one of the pure-JAX environments."""
    return small_loop(small_config(algo, ENVS[algo], changes), envs.make(ENVS[algo]), **settings)


@functools.cache
def shared_loop(algo: str) -> Loop:
    """The loop that all tests of `algo` share, compiled once."""
    return classic_loop(algo)
