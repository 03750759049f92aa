"""Every config runs from its command to its curve and its number."""

import csv
import json
import re
import shutil
import struct

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from experiments.build import build
from experiments.cli import parse

from .command import (
    NAMES,
    checkpoint_steps,
    digests,
    finish,
    quick,
    read_checkpoint,
    run_here,
    start,
)

NUMBER = r"-?\d+(\.\d+)?(e[+-]?\d+)?"
EVALUATION = ("return_mean", "return_std", "return_min", "return_max", "length_mean", "episodes")


@pytest.fixture(autouse=True)
def _compile_fast():
    """What is compiled here runs for a moment only."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def final_numbers(line: str) -> dict[str, float]:
    word, *pairs = line.split(" ")
    assert word == "final"
    assert all(re.fullmatch(rf"eval/\w+(/seed\d+)?={NUMBER}", pair) for pair in pairs)
    return {name: float(value) for name, value in (pair.split("=") for pair in pairs)}


def read_rows(workdir) -> list[dict[str, str]]:
    with open(workdir / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


# One of each algorithm and kind of environment and action; of the others, which are put together
# from the same parts, the programs are traced and not compiled.
RUN = (
    *("a2c_line_world", "vpg_cartpole", "ppo_cartpole", "trpo_pendulum", "ppo_swimmer"),
    *("dqn_cartpole", "sac_pendulum", "td3_hopper"),
)
ON_POLICY = {"loss/policy", "loss/value", "policy/entropy", "value/explained_variance"}
OFF_POLICY = {"loss/critic"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in RUN])
def test_every_quick_variant_makes_a_run(name, tmp_path):
    config, _ = parse(["run", *quick(name, tmp_path)])
    run = build(config)
    off_policy = "replay" in config
    assert run.num_updates == (20 if off_policy else 4)
    assert (OFF_POLICY if off_policy else ON_POLICY) <= {*run.loop.metric_names}
    assert run.loop.template.key.dtype == jax.random.key(0).dtype


@pytest.mark.parametrize("name", RUN)
def test_a_quick_variant_runs_from_command_to_curve(name, finished, tmp_path):
    if name == "a2c_line_world":
        workdir, result = finished
    else:
        workdir = tmp_path / "deep" / "run"
        result = run_here(quick(name, workdir))
    assert (result.code, result.err) == (0, [])

    config = json.loads((workdir / "config.json").read_text())
    assert config["algo"]["name"] == name.split("_")[0]
    steps_per_update = config["env"]["num_envs"] * config["unroll_length"]
    first_step = config.get("replay", {}).get("warmup_steps", 0)  # of one environment: no rounding
    num_updates = -(-(config["total_steps"] - first_step) // steps_per_update)

    rows = read_rows(workdir)
    assert next(iter(rows[0])) == "step"
    for column in OFF_POLICY if first_step else ON_POLICY:
        assert all(np.isfinite(float(row[column])) for row in rows)
    updates = [(int(row["step"]) - first_step) // steps_per_update for row in rows]
    assert updates == ([5, 10, 15, 20] if first_step else [1, 2, 3, 4])
    for row, update in zip(rows, updates):
        evaluated = update % config["eval_interval"] == 0 or update == num_updates
        assert (row["eval/return_mean"] != "") == evaluated

    final = final_numbers(result.out[-1])
    assert list(final) == [f"eval/{statistic}" for statistic in EVALUATION]
    assert final == {key: float(rows[-1][key]) for key in final}
    assert final["eval/episodes"] == config["eval_episodes"]
    assert final["eval/return_min"] <= final["eval/return_mean"] <= final["eval/return_max"]

    assert result.out[-2] == f"curves: {workdir / 'curves.png'}"
    signature, width, height = struct.unpack(">8s8x2I", (workdir / "curves.png").read_bytes()[:24])
    assert signature == b"\x89PNG\r\n\x1a\n"
    assert min(width, height) >= 400
    assert list((workdir / "tensorboard").glob("events.out.tfevents.*"))
    assert checkpoint_steps(workdir)[-1] == first_step + num_updates * steps_per_update
    if first_step:  # its size is said before anything else
        assert result.out[0].startswith("replay: 1,000 transitions of each of 1 seed(s), ")


def test_seeds_run_side_by_side_each_as_if_alone(finished, tmp_path):
    alone, _ = finished  # of seed 0
    result = run_here(quick("a2c_line_world", tmp_path, "num_seeds=2"))
    assert (result.code, result.err) == (0, [])
    rows, alone_rows = read_rows(tmp_path), read_rows(alone)
    names = [name for name in alone_rows[0] if not name.startswith("time/")]
    assert any(row["loss/policy/seed0"] != row["loss/policy/seed1"] for row in rows)
    for row, alone_row in zip(rows, alone_rows, strict=True):
        assert row["step"] == alone_row["step"]
        for name in names[1:]:
            seeds = [row[f"{name}/seed{s}"] for s in range(2)]
            if alone_row[name] == "":  # no episode ended, or no evaluation
                assert (row[name], *seeds) == ("", "", "")
                continue
            first, second = map(float, seeds)
            assert float(row[name]) == pytest.approx((first + second) / 2)
            # Side by side the same sums may be rounded otherwise.
            assert first == pytest.approx(float(alone_row[name]), rel=1e-3, abs=1e-4)

    final = final_numbers(result.out[-1])
    assert list(final) == [
        f"eval/{statistic}{seed}" for statistic in EVALUATION for seed in ("", "/seed0", "/seed1")
    ]
    assert final == {key: float(rows[-1][key]) for key in final}


def test_a_finished_run_is_only_said_again(finished):
    workdir, first = finished
    files = digests(workdir)
    again = run_here(quick("a2c_line_world", workdir))
    assert (again.code, again.err) == (0, [])
    assert again.out == first.out[-2:]
    assert digests(workdir) == files


def test_a_run_of_any_length_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # 401 steps at 16 x 25 = 400 per update are two updates; the intervals end after them.
    settings = "total_steps=401", "log_interval=8", "eval_interval=8", "checkpoint_interval=16"
    assert run_here(quick("a2c_line_world", "here", *settings)).code == 0
    (row,) = read_rows(tmp_path / "here")
    assert row["step"] == "800"
    assert row["eval/return_mean"] != ""
    assert checkpoint_steps(tmp_path / "here") == [800]
    assert read_checkpoint(tmp_path / "here", 800)[1]["metadata"]["update"] == 2


def test_help():
    result = run_here(["--help"])
    assert (result.code, result.err) == (0, [])
    assert "--config=" in result.out[0]
    assert "--workdir=" in result.out[0]


class Faulty(CartPoleEnv):
    """Breaks in the middle of training."""

    def step(self, action):
        if self.np_random.random() < 0.01:
            raise ValueError("an array of the environment's own has a wrong shape")
        return super().step(action)


class BadlyPaid(CartPoleEnv):
    """Its rewards are no numbers, once in a while."""

    def step(self, action):
        observation, reward, *others = super().step(action)
        return observation, np.nan if self.np_random.random() < 0.1 else reward, *others


def test_rewards_that_are_not_finite_end_a_run_in_one_line(tmp_path):
    """What is learned from them is found in the first chunk of five updates after 40 steps."""
    gymnasium.register("BadlyPaid-v0", BadlyPaid, max_episode_steps=500)
    try:
        result = run_here(
            quick(
                *("dqn_cartpole", tmp_path / "run", "eval_episodes=1"),
                *("env.name=BadlyPaid-v0", "env.backend=gymnasium"),
            )
        )
    finally:
        del gymnasium.registry["BadlyPaid-v0"]
    assert (result.code, len(result.err)) == (1, 1), result
    assert re.match(r"error: \S+ is nan at step 4[1-5] \(update [0-4], ", result.err[0])
    assert result.err[0].endswith("last good: no checkpoint")
    assert checkpoint_steps(tmp_path / "run") == []


def test_a_replay_that_was_not_saved_is_filled_again(tmp_path):
    """As after a stop at update 10: the newest checkpoint is gone."""
    argv = quick("dqn_cartpole", tmp_path, "replay.checkpoint=False", "total_steps=60")
    first = run_here(argv)
    assert (first.code, first.err) == (0, [])
    arrays, _ = read_checkpoint(tmp_path, 50)
    assert not any("replay" in path for path in arrays)
    shutil.rmtree(tmp_path / "checkpoints" / f"{60:012d}")
    again = run_here(argv)
    assert (again.code, again.err) == (0, [])
    assert f"resuming at step 50 of {tmp_path}" in again.out
    (line,) = [line for line in again.out if "config.replay.checkpoint is False" in line]
    assert "40 random steps fill a new one" in line
    assert not any("config.replay.checkpoint" in line for line in first.out)
    assert [row["step"] for row in read_rows(tmp_path)] == ["45", "50", "55", "60"]


def test_a_fault_while_running_is_no_wrong_argument(tmp_path):
    gymnasium.register("Faulty-v0", Faulty, max_episode_steps=500)
    try:
        with pytest.raises(RuntimeError, match="the run failed") as failure:
            run_here(
                quick(
                    *("ppo_cartpole", tmp_path / "run"),
                    *("env.name=Faulty-v0", "env.backend=gymnasium", "eval_episodes=1"),
                )
            )
    finally:
        del gymnasium.registry["Faulty-v0"]
    assert isinstance(failure.value.__cause__, ValueError)


@pytest.mark.slow
def test_the_cores_of_a_cpu_count_as_devices(tmp_path):
    """In a process that nobody has told how many there are."""
    argv = quick("sac_pendulum", tmp_path / "run", "num_seeds=2", "num_devices=2")
    result = finish(start(argv, cache=tmp_path / "cache"))
    assert (result.code, result.err) == (0, [])
