"""What cannot be saved or restored exactly is refused in one line, and goes on working."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rljax.envs.gymnasium import adapt, make_host
from rljax.envs.snapshot import Snapshot


class Diary(gymnasium.Env):
    """Keeps its state in a list, which has no fixed shape."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.pages = []
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.pages.append(action)
        return np.full(1, len(self.pages) % 2, np.float32), 0.0, False, False, {}


def diary():
    return Snapshot(gymnasium.wrappers.TimeLimit(Diary(), 5))


@pytest.mark.errors
def test_an_environment_that_cannot_be_saved_says_so():
    env = diary()
    with pytest.raises(ValueError, match=r"^Diary .* it has not been reset$"):
        _ = env.snapshot
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"^Diary .*Diary.pages \(list\) is neither plain .*$"):
        _ = env.snapshot


@pytest.mark.errors
@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
def test_being_refused_a_snapshot_does_no_harm(vector):
    options = {"context": "forkserver"} if vector is AsyncVectorEnv else {}
    envs = adapt(vector([diary] * 2, **options), name="Diary-v0", max_episode_steps=5)
    envs.reset(0)
    with pytest.raises(ValueError, match="Diary-v0: Diary cannot be saved exactly"):
        envs.snapshot()
    assert envs.step(np.zeros(2, np.int32)).mask.all()
    envs.close()


@pytest.mark.errors
@pytest.mark.parametrize("vectorization_mode", ["sync", "async", "vector_entry_point"])
def test_environments_without_the_wrapper_are_refused(vectorization_mode):
    options = {"context": "forkserver"} if vectorization_mode == "async" else {}
    vector_env = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode, vector_kwargs=options)
    envs = adapt(vector_env)
    envs.reset(0)
    with pytest.raises(ValueError, match="CartPole-v1: only environments made by make_host can be"):
        envs.snapshot()
    assert envs.step(np.zeros(2, np.int32)).mask.all()
    envs.close()


@pytest.mark.errors
def test_the_snapshot_of_another_environment_is_refused():
    cheetah, hopper = make_host("HalfCheetah-v5", 2), make_host("Hopper-v5", 2)
    cheetah.reset(0)
    with pytest.raises(ValueError, match=r"Hopper-v5: the snapshot holds .* needed is"):
        hopper.restore(cheetah.snapshot())
    fewer = make_host("HalfCheetah-v5", 1)
    with pytest.raises(ValueError, match=r"the snapshot holds .*\[2, 6\].* needed is .*\[1, 6\]"):
        fewer.restore(cheetah.snapshot())
    tree = cheetah.snapshot()
    tree["envs"]["layout"] = tree["envs"]["layout"] + np.uint64(1)
    with pytest.raises(ValueError, match="another environment or of other wrappers"):
        cheetah.restore(tree)
    pendulum, cartpole = (Snapshot(gymnasium.make(x)) for x in ("Pendulum-v1", "CartPole-v1"))
    pendulum.reset(seed=0)
    with pytest.raises(ValueError, match="not of a CartPoleEnv with the same wrappers"):
        cartpole.snapshot = pendulum.snapshot
