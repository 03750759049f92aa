"""A run that was killed, stopped or damaged ends as the one that never was, to the last bit.

Real processes. The reference compiles its programs, the others read them from its cache, so that
equal results also say that the cache changes nothing.
"""

import random
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from .command import (
    Result,
    assert_same_run,
    being_written,
    checkpoint_steps,
    finish,
    quick,
    read_table,
    start,
    wait_for,
)

pytestmark = pytest.mark.slow

UPDATES = 20
SIZES = {  # environments x steps per update, and what is set besides
    "ppo_cartpole": (4, 32, "algo.target_kl=0.02", "env.normalize_rewards=True"),
    "ppo_halfcheetah": (2, 32, "eval_episodes=1", "eval_interval=10", "env.normalize_rewards=True"),
    "dqn_cartpole": (4, 4, "log_interval=1"),
    "td3_hopper": (2, 4, "log_interval=1", "eval_episodes=1", "eval_interval=10"),
}
WARMUP = {"dqn_cartpole": 40, "td3_hopper": 40}  # steps before the first update
NAMES = tuple(SIZES)


class Chain(NamedTuple):
    """Two runs of one command: never disturbed, and killed several times."""

    name: str
    folder: Path
    argv: Callable[[Path], list[str]]  # for a workdir
    reference: Result
    last: Result

    @property
    def cache(self) -> Path:
        return self.folder / "cache"


def command(name: str, workdir: Path) -> list[str]:
    num_envs, length, *others = SIZES[name]
    return quick(
        *(name, workdir),
        *(f"env.num_envs={num_envs}", f"unroll_length={length}"),
        *(f"total_steps={steps_after(name, UPDATES)}", "eval_interval=4", "checkpoint_interval=1"),
        *others,
    )


def steps_after(name: str, updates: int) -> int:
    num_envs, length, *_ = SIZES[name]
    return WARMUP.get(name, 0) + updates * num_envs * length


def kill(process, when: Callable[[], bool], delay: float = 0.0) -> None:
    wait_for(when, process)
    time.sleep(delay)
    process.kill()
    result = finish(process)
    assert result.code == -signal.SIGKILL, result


def run_chain(name: str, folder: Path) -> Chain:
    """The reference; then the same command killed four times, and left alone in the end."""
    cache, workdir = folder / "cache", folder / "killed"
    reference = finish(start(command(name, folder / "reference"), cache=cache))
    assert reference.code == 0, reference

    def again():
        return start(command(name, workdir), cache=cache)

    def reached(update: int) -> bool:
        return checkpoint_steps(workdir)[-1:] >= [steps_after(name, update)]

    chance = random.Random(name)  # other moments for each algorithm
    early, late = sorted(chance.sample(range(2, UPDATES - 3), 2))
    kill(again(), lambda: True, delay=chance.uniform(0.2, 2.0))  # while it starts
    kill(again(), lambda: being_written(workdir) and not checkpoint_steps(workdir))
    kill(again(), lambda: reached(early), delay=chance.uniform(0.0, 0.05))
    kill(again(), lambda: reached(late) and being_written(workdir))
    last = finish(again())
    return Chain(name, folder, lambda path: command(name, path), reference, last)


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """All of them, two at a time; each test waits for its own."""
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(run_chain, name, tmp_path_factory.mktemp(name)) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_killed_runs_end_as_if_never_killed(name, chains):
    chain = chains[name].result()
    assert chain.last.code == 0, chain.last
    assert chain.last.out[name in WARMUP].startswith("resuming at step ")  # after the replay's size
    assert chain.last.out[-1] == chain.reference.out[-1]
    assert chain.last.out[-1].startswith("final eval/return_mean=")
    assert len(read_table(chain.folder / "reference")) == 1 + UPDATES
    assert_same_run(chain.folder / "killed", chain.folder / "reference")


@pytest.mark.parametrize("name", ["ppo_cartpole", "ppo_halfcheetah"])
def test_stopped_runs_save_and_say_how_to_go_on(name, chains, tmp_path):
    chain = chains[name].result()
    argv = chain.argv(tmp_path / "a run")
    for update, number, code in [(4, signal.SIGINT, 130), (11, signal.SIGTERM, 143)]:
        process = start(argv, cache=chain.cache)

        def reached(update=update) -> bool:
            steps = checkpoint_steps(tmp_path / "a run")
            return steps[-1:] >= [steps_after(name, update)]

        wait_for(reached, process)
        process.send_signal(number)
        result = finish(process)
        assert result.code == code, result
        what, _, how = result.out[-1].partition("; to continue: ")
        newest = checkpoint_steps(tmp_path / "a run")[-1]
        assert what == f"stopped at step {newest}, saved"
        assert newest < steps_after(name, UPDATES)
        program = "python -m experiments.run "
        assert how.startswith(program)
        argv = shlex.split(how.removeprefix(program))
    last = finish(start(argv, cache=chain.cache))
    assert last.code == 0, last
    assert last.out[-1] == chain.reference.out[-1]
    assert_same_run(tmp_path / "a run", chain.folder / "reference")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_can_be_stopped_before_it_has_begun(number, code, chains, tmp_path):
    chain = chains["ppo_cartpole"].result()
    process = start(chain.argv(tmp_path / "w"), cache=chain.cache)
    wait_for((tmp_path / "w" / "config.json").exists, process)
    process.send_signal(number)
    result = finish(process)
    assert result.code == code, result
    assert "stopped" in result.out[-1]
    assert "; to continue: python -m experiments.run" in result.out[-1]
    assert "Traceback" not in "".join(result.err)


def flip_a_byte(checkpoint: Path) -> None:
    largest = max((p for p in checkpoint.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def test_a_damaged_checkpoint_is_refused_and_the_one_before_used(chains, tmp_path):
    chain = chains["ppo_cartpole"].result()
    workdir = tmp_path / "w"
    shutil.copytree(chain.folder / "reference", workdir)
    newest = workdir / "checkpoints" / f"{steps_after('ppo_cartpole', UPDATES):012d}"
    flip_a_byte(newest)
    result = finish(start(chain.argv(workdir), cache=chain.cache))
    assert result.code == 0, result
    (line,) = [line for line in result.err if line.startswith("warning: ")]
    assert line.startswith(f"warning: checkpoint {newest} is not used: ")
    assert "SHA-256 differs" in line
    assert result.out[0] == (
        f"resuming at step {steps_after('ppo_cartpole', UPDATES - 1)} of {workdir}"
    )
    assert result.out[-1] == chain.reference.out[-1]
    assert_same_run(workdir, chain.folder / "reference")
