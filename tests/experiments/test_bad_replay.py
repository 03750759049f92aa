"""Settings that no off-policy run can be made of are refused in one line, like all the others."""

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from .command import quick
from .test_bad_input import C51, DDPG, DQN, PPO, SAC, TD3, assert_refused

pytestmark = pytest.mark.errors


@pytest.mark.parametrize(
    ("name", "overrides", "needed"),
    [
        (
            DQN,
            ["replay.capacity=8"],
            ["config.replay.capacity is 8: it must be at least", "batch_size, 16"],
        ),
        (DQN, ["algo.n_step=1001"], ["1001", "1000"]),
        (DQN, ["env.num_envs=10", "algo.n_step=101"], ["101", "100 steps"]),
        (DQN, ["env.num_envs=3", "replay.updates_per_step=1"], ["1000", "multiple of the 3"]),
        *(
            (DQN, [*override, backend], ["config.replay.capacity is 1000", needed])
            for backend in ("env.backend=jax", "env.backend=gymnasium")
            for override, needed in [
                (["replay.warmup_steps=1001", "total_steps=2000"], "replay.warmup_steps, 1001"),
                (["unroll_length=1001", "total_steps=3000"], "config.unroll_length, 1001"),
            ]
        ),
        (DQN, ["replay.warmup_steps=60"], ["config.total_steps is 60", "above the 60 steps"]),
        (DQN, ["replay.updates_per_step=0.3"], ["config.replay.updates_per_step is 0.3", "0.3"]),
        (DQN, ["normalize_observations=True"], ["config.normalize_observations", "dqn"]),
        (SAC, ["env.normalize_rewards=True"], ["config.env.normalize_rewards", "sac"]),
        (DQN, ["env.name=Pendulum-v1"], ["Pendulum-v1 has real actions", "discrete"]),
        (C51, ["env.name=Pendulum-v1"], ["Pendulum-v1 has real actions", "discrete"]),
        *(
            (name, ["env.name=CartPole-v1"], ["CartPole-v1 has 2 discrete", "dqn, c51, sac"])
            for name in (DDPG, TD3)
        ),
        (DDPG, ["algo.noise=pink"], ["config.algo.noise is 'pink': allowed are gaussian, ou"]),
        (C51, ["algo.value_min=100.0"], ["from 100.0 to 100.0", "value_min below value_max"]),
        (DQN, ["net.name=tabular"], ["config.net.name is 'tabular': allowed are mlp"]),
        (DQN, ["algo.name=ddpg"], ["config.algo.double is unknown"]),
        (DQN, ["algo.name=ppo"], ["config.algo.", "missing"]),
        (PPO, ["algo.name=dqn"], ["config.algo.", "unknown"]),
        (DQN, ["replay.capacity=1000000000"], ["1000000000", "bytes"]),
    ],
)
def test_settings_of_a_replay_that_do_not_go_together(name, overrides, needed, tmp_path):
    assert_refused(quick(name, tmp_path / "w", *overrides), *needed)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("name", [DDPG, TD3, SAC])
def test_actions_without_bounds(name, tmp_path):
    """Of a host environment of somebody's own."""
    gymnasium.register("Unbounded-v0", Unbounded, max_episode_steps=200)
    try:
        argv = quick(name, tmp_path / "w", "env.name=Unbounded-v0", "env.backend=gymnasium")
        assert_refused(argv, "Unbounded-v0 has actions between [-inf] and [inf]", "must be finite")
    finally:
        del gymnasium.registry["Unbounded-v0"]
    assert not (tmp_path / "w").exists()


class Unbounded(PendulumEnv):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
