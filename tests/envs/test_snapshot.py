"""A snapshot put back continues bit for bit: single environments, vectors, other processes."""

import subprocess
import sys
import textwrap

import gymnasium
import numpy as np
import pytest

from rljax.envs.gymnasium import adapt, make_host
from rljax.envs.mujoco import quiet_models
from rljax.envs.snapshot import Snapshot, decode, encode

from .recordings import make_async

MUJOCO = (
    *("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5", "Ant-v5", "Humanoid-v5"),
    *("HumanoidStandup-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5"),
    *("Reacher-v5", "Pusher-v5"),
)
CLASSIC = (
    *("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"),
)


def single(name, **options):
    with quiet_models(name):
        return Snapshot(gymnasium.make(name, disable_env_checker=True, **options))


def same(a, b):
    """Equal values and equal types all the way down; -0.0 and 0.0 differ."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        x, y = np.asarray(a), np.asarray(b)
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


@pytest.mark.parametrize("name", MUJOCO + CLASSIC)
def test_stepping_after_restoring_equals_stepping_on(name):
    env, other = single(name), single(name)
    env.reset(seed=1)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(40)]
    for action in actions[:20]:
        if any(env.step(action)[2:4]):
            env.reset()
    other.reset(seed=2)
    other.step(actions[0])
    env.np_random.integers(9, dtype=np.uint32)  # the generator keeps the other half of 64 bits
    tree = env.snapshot
    other.snapshot = tree
    same(other.snapshot, tree)
    if name in MUJOCO:  # what an environment shows before its next step comes back too
        same(env.unwrapped._get_obs(), other.unwrapped._get_obs())
    for action in actions[20:]:
        result = env.step(action)
        same(result, other.step(action))
        if result[2] or result[3]:
            same(env.reset(), other.reset())
    same(*(e.np_random.integers(9, size=3, dtype=np.uint32) for e in (env, other)))
    same(env.reset(), other.reset())


@pytest.mark.parametrize("name", ["Ant-v5", "Humanoid-v5", "MountainCar-v0", "CartPole-v1"])
def test_the_arrays_keep_their_shapes_and_dtypes(name):
    env = single(name, max_episode_steps=15)
    env.reset(seed=0)

    def kinds():
        return {key: (value.shape, value.dtype) for key, value in env.snapshot.items()}

    first = kinds()
    ended = False
    while not ended:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        ended = terminated or truncated
        assert kinds() == first
    assert env.snapshot["ended"]
    env.reset()
    assert kinds() == first
    assert not env.snapshot["ended"]


def test_types_of_attributes_survive():
    """MountainCar keeps an array after reset and a tuple later; both must come back."""
    env, other = single("MountainCar-v0"), single("MountainCar-v0")
    env.reset(seed=0)
    tree = env.snapshot
    env.step(2)
    assert type(env.unwrapped.state) is tuple
    later = env.snapshot
    other.snapshot = later
    same(other.unwrapped.state, env.unwrapped.state)
    other.snapshot = tree
    assert type(other.unwrapped.state) is np.ndarray


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            -3,
            2**63 - 1,
            0.1,
            -0.0,
            float("inf"),
            np.float32(0.1),
            np.uint64(2**64 - 1),
        ),
        *(np.int8(-1), np.bool_(True), (1, None, np.float32(0.5), False, -2.5), (7,)),
        *(np.array([[1, -2], [3, 4]], np.int16), np.array([0.1, np.nan], np.float16)),
        *(np.array(3.5), np.array([True, False]), np.array([2**64 - 1], np.uint64)),
    ],
    ids=repr,
)
def test_plain_values_come_back_as_they_were(value):
    same(decode(encode(value), np.shape(value)), value)


@pytest.mark.parametrize(
    "value", [[1, 2], {"a": 1}, "text", 2**63, 1j, ((1, 2), 3), np.array(["a"]), np.array([1j])]
)
def test_other_values_are_not_plain(value):
    assert encode(value) is None


def test_a_pending_reset_comes_first():
    env, other = (
        single("CartPole-v1", max_episode_steps=3),
        single("CartPole-v1", max_episode_steps=3),
    )
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    other.snapshot = env.snapshot
    assert other.snapshot["ended"]
    observation, reward, terminated, truncated, _ = other.step(1)
    same(observation, env.reset()[0])
    assert (reward, terminated, truncated) == (0.0, False, False)
    same(other.step(1), env.step(1))  # and the episode goes on as usual


def actions_for(envs, num_steps):
    rng = np.random.default_rng(3)
    space = envs.spec.action_space
    if hasattr(space, "num_actions"):
        return rng.integers(0, space.num_actions, (num_steps, envs.num_envs), np.int32)
    shape = (num_steps, envs.num_envs, len(space.low))
    return rng.uniform(-1, 1, shape).astype(np.float32) * space.high


MODES = ("same_step", "next_step", "disabled")
VECTORS = [
    *((name, mode, "sync") for name in CLASSIC[:2] + MUJOCO[:2] for mode in MODES),
    *((name, mode, "sync") for name in (*MUJOCO[2:5], "InvertedPendulum-v5") for mode in MODES[:2]),
    *(("CartPole-v1", mode, "async") for mode in MODES),
    ("Hopper-v5", "same_step", "workers"),
]


@pytest.mark.parametrize(("name", "mode", "how"), VECTORS)
def test_vector_environments_continue_bit_for_bit(name, mode, how):
    """From each of several moments, that after the first end among them: a reset may be due."""

    def make():
        if how == "async":
            return adapt(make_async(name, 2, mode, max_episode_steps=13))
        workers = 1 if how == "workers" else 0
        return make_host(name, 2, autoreset_mode=mode, workers=workers, max_episode_steps=13)

    envs, fresh = make(), make()
    envs.reset(0)
    actions = actions_for(envs, 45)
    trees, transitions, ends = {}, [], []
    for t in range(45):
        if t in (0, 7, 27) or ends == [t]:
            trees[t] = envs.snapshot()
        transitions.append(envs.step(actions[t]))
        if (transitions[t].terminated | transitions[t].truncated).any():
            ends.append(t + 1)
    assert ends[0] <= 13
    if mode == "next_step":
        assert trees[ends[0]]["adaptor"]["reset_due"].any()
        assert trees[ends[0]]["envs"]["ended"].any()
    # `fresh` has not been reset; later it stands somewhere else, at times at an end, when restored.
    for target in (fresh, envs):
        for t, tree in trees.items():
            observation = target.restore(tree)
            if t > 0:
                same(observation, transitions[t - 1].observation)
            same(target.snapshot(), tree)
            for k in range(t, t + 15):
                same(tuple(target.step(actions[k])), tuple(transitions[k]))
    envs.close()
    fresh.close()


def test_the_snapshot_is_not_touched_by_going_on():
    envs = make_host("Pendulum-v1", 2)
    envs.reset(0)
    tree = envs.snapshot()
    before = {part: {k: v.copy() for k, v in tree[part].items()} for part in tree}
    actions = actions_for(envs, 5)
    for action in actions:
        envs.step(action)
    envs.restore(tree)
    for action in actions:
        envs.step(action)
    same(tree, before)


FRESH_PROCESS = textwrap.dedent(
    """
    import sys
    import numpy as np
    from rljax.envs.gymnasium import make_host

    given = np.load(sys.argv[1])
    tree = {"envs": {}, "adaptor": {}}
    for key in given.files:
        if "/" in key:
            part, name = key.split("/")
            tree[part][name] = given[key]
    envs = make_host("HalfCheetah-v5", 2, max_episode_steps=30)
    envs.restore(tree)
    steps = [envs.step(action) for action in given["actions"]]
    fields = {name: np.stack([getattr(s, name) for s in steps]) for name in steps[0]._fields}
    np.savez(sys.argv[2], **fields)
    """
)


def test_a_fresh_process_continues_bit_for_bit(tmp_path):
    envs = make_host("HalfCheetah-v5", 2, max_episode_steps=30)
    envs.reset(0)
    actions = actions_for(envs, 60)
    for action in actions[:20]:
        envs.step(action)
    tree = envs.snapshot()
    flat = {f"{part}/{key}": value for part in tree for key, value in tree[part].items()}
    np.savez(tmp_path / "given.npz", actions=actions[20:], **flat)
    subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, tmp_path / "given.npz", tmp_path / "got.npz"],
        check=True,
    )
    got = np.load(tmp_path / "got.npz")
    steps = [envs.step(action) for action in actions[20:]]
    for name in steps[0]._fields:
        same(got[name], np.stack([getattr(step, name) for step in steps]))
    assert got["truncated"].any()
