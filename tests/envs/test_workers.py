"""Environments stepped in several processes: the same data, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rljax.envs.gymnasium import make_host
from rljax.envs.workers import WorkerVectorEnv

CARTPOLE = partial(gymnasium.make, "CartPole-v1", disable_env_checker=True, max_episode_steps=9)


@pytest.mark.parametrize(("num_envs", "workers"), [(1, 0), (5, 0), (5, 1), (7, 3)])
def test_the_steps_are_those_of_gymnasium(num_envs, workers):
    """In uneven shares too; of 40 steps at most 9 belong to one episode."""
    ours = WorkerVectorEnv([CARTPOLE] * num_envs, workers)
    theirs = SyncVectorEnv([CARTPOLE] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    seeds = list(range(10, 10 + num_envs))
    np.testing.assert_array_equal(ours.reset(seed=seeds)[0], theirs.reset(seed=seeds)[0])
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(40):
        actions = rng.integers(0, 2, num_envs)
        *got, got_infos = ours.step(actions)
        *expected, infos = theirs.step(actions)
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_array_equal(x, y)
        for b in np.flatnonzero(expected[2] | expected[3]):
            ends += 1
            np.testing.assert_array_equal(got_infos["final_obs"][b], infos["final_obs"][b])
    assert ends > 3 * num_envs
    assert ours.get_attr("_elapsed_steps") == theirs.get_attr("_elapsed_steps")
    ours.close()
    theirs.close()


@pytest.mark.parametrize("failing", [0, 2])
def test_an_environment_that_fails_is_reported_and_no_answer_is_left_over(failing):
    """In this process (0) and in a worker (2)."""
    envs = make_host("CartPole-v1", 3, workers=1)
    first = envs.reset(3)
    actions = np.zeros(3, np.int32)
    actions[failing] = 7
    with pytest.raises((AssertionError, RuntimeError), match="7") as caught:
        envs.step(actions)
    if failing:
        assert str(caught.value).startswith(
            "an environment failed in a worker process: AssertionError"
        )
    np.testing.assert_array_equal(envs.reset(3), first)
    assert envs.step(np.zeros(3, np.int32)).mask.all()
    envs.close()


PROGRAM = textwrap.dedent(
    """
    import multiprocessing, signal, sys, time
    import numpy as np
    from rljax.envs.gymnasium import make_host

    if __name__ == "__main__":
        heard = []
        signal.signal(signal.SIGINT, lambda *_: heard.append(True))  # a shell may ignore it
        envs = make_host("CartPole-v1", 3, workers=2)
        envs.reset(0)
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        while not heard:
            time.sleep(0.01)
        print(envs.step(np.zeros(3, np.int32)).episode_length.tolist(), flush=True)
        if sys.argv[1] == "return":
            sys.exit()
        time.sleep(100)
    """
)


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
@pytest.mark.parametrize("end", ["return", "kill"])
def test_workers_outlive_ctrl_c_but_not_their_parent(end, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, program, end],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as parent:
        assert parent.stdout
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(running, workers))
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.readline() == "[1, 1, 1]\n"
        if end == "kill":
            parent.kill()
        assert parent.wait(60) == (-signal.SIGKILL if end == "kill" else 0)
        deadline = time.monotonic() + 60
        while any(map(running, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(running, workers))
