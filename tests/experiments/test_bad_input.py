"""What is wrong with a command is said in one line, before anything is compiled or written."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from .command import NAMES, ROOT, digests, quick, run_here

pytestmark = pytest.mark.errors

PPO, A2C, VPG, TRPO, TABLE, HOST = (
    *("ppo_cartpole", "a2c_cartpole", "vpg_cartpole", "trpo_cartpole"),
    *("a2c_line_world", "ppo_halfcheetah"),
)
DQN, C51, DDPG, TD3, SAC = (
    *("dqn_cartpole", "c51_cartpole", "ddpg_pendulum", "td3_pendulum", "sac_pendulum"),
)


def assert_refused(argv: list[str], *needed: str) -> str:
    """Exit 2, one line with all of `needed` in it, and nothing compiled."""
    result = run_here(argv)
    assert (result.code, result.out, len(result.err)) == (2, [], 1), result
    (line,) = result.err
    assert line.startswith("error: ")
    for text in needed:
        assert text in line
    assert result.compilations == 0
    return line


@pytest.mark.parametrize(
    ("name", "override", "needed"),
    [
        (PPO, "algo.clipp=0.1", "config.algo has no field 'clipp' (did you mean 'clip'?); allowed"),
        (PPO, "optimiser.name=sgd", "'optimizer'"),
        (PPO, "seed.x=1", "config.seed is 0: it has no fields"),
        (PPO, "algo.clip=abc", "--config.algo.clip=abc: could not convert string to float"),
        (PPO, "algo.clip=", "float"),
        (PPO, "algo.target_kl=abc", "--config.algo.target_kl=abc"),
        (PPO, "total_steps=1.5", "--config.total_steps=1.5"),
        (PPO, "total_steps=1e3", "int"),
        (PPO, "optimizer.anneal=3", "boolean"),
        (PPO, "net.hidden_sizes=('a',)", "config.net.hidden_sizes is ('a',)"),
        (PPO, "net.hidden_sizes=(6.5,)", "config.net.hidden_sizes is (6.5,)"),
        (PPO, "net.hidden_sizes=(64", "each size must be an integer, at least 1"),
        (PPO, "algo=3", "--config.algo=3"),
    ],
)
def test_unknown_fields_and_wrong_types(name, override, needed, tmp_path):
    assert_refused(quick(name, tmp_path / "w", override), needed)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("name", "field", "values"),
    [
        *(
            (name, field, values)
            for name, fields, values in [
                (PPO, "num_seeds total_steps unroll_length noise_hold", "0 -1"),
                (PPO, "env.num_envs log_interval", "0 -1"),
                (PPO, "eval_interval eval_episodes checkpoint_interval keep_checkpoints", "0 -1"),
                (PPO, "algo.epochs algo.minibatches", "0 -1"),
                (TRPO, "algo.value_iterations algo.cg_iterations algo.max_backtracks", "0 -1"),
                (PPO, "optimizer.learning_rate algo.entropy_coef algo.value_coef", "-1 nan inf"),
                (PPO, "algo.kl_coef", "-1 nan inf"),
                (VPG, "algo.value_learning_rate", "-1 nan inf"),
                (TRPO, "algo.damping", "-1 nan inf"),
                (PPO, "optimizer.eps optimizer.max_grad_norm algo.clip algo.clip_high", "0 -1 nan"),
                (PPO, "algo.value_clip algo.target_kl algo.kl_stop_factor", "0 -1 nan"),
                (TRPO, "algo.max_kl", "0 -1 nan"),
                (TRPO, "algo.backtrack_ratio", "0 1 nan"),
                (PPO, "algo.dual_clip", "1 nan"),
                (PPO, "algo.discount algo.lambda_", "-0.1 1.5 nan"),
                (PPO, "net.log_std_init solved_return", "nan inf"),
                (PPO, "num_devices", "-1"),
                (PPO, "seed", "-1 4294967295"),
                (PPO, "total_steps", "1000000000001"),
                (DQN, "replay.capacity replay.batch_size replay.warmup_steps noise_hold", "0 -1"),
                (DQN, "algo.n_step algo.target_period algo.epsilon_steps", "0 -1"),
                (DQN, "algo.target_rate algo.epsilon_start algo.epsilon_end", "-0.1 1.5 nan"),
                (DQN, "replay.updates_per_step algo.huber_delta", "0 -1 nan inf"),
                (C51, "algo.num_atoms", "0 1"),
                (DDPG, "algo.noise_scale", "-1 nan inf"),
                (TD3, "algo.policy_delay", "0 -1"),
                (TD3, "algo.target_noise algo.target_noise_clip", "-1 nan inf"),
                (SAC, "algo.temperature algo.init_temperature", "0 -1 nan inf"),
                (SAC, "algo.target_entropy", "nan inf"),
            ]
            for field in fields.split()
        ),
    ],
)
def test_numbers_that_make_no_sense(name, field, values, tmp_path):
    for value in values.split():
        line = assert_refused(quick(name, tmp_path / "w", f"{field}={value}"), f"config.{field} is")
        assert re.search(rf"is {re.escape(value)}(\.0)?: it must be ", line)
    assert not (tmp_path / "w").exists()


def test_every_number_of_every_config_has_a_range():
    """A new field is not forgotten: all fields that hold numbers are in one of the ranges."""
    from experiments.check import RANGES
    from experiments.cli import load_config

    known = {field for fields in RANGES.values() for field in fields} | {"seed"}
    for name in NAMES:
        config = load_config(f"{ROOT}/experiments/configs/{name}.py")
        flat = {
            f"{section}.{field}" if section else field: value
            for section, values in [("", config), *config.items()]
            if hasattr(values, "items")
            for field, value in values.items()
        }
        # None: a placeholder; in our configs these are all for numbers.
        numbers = {
            field
            for field, value in flat.items()
            if value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        }
        assert numbers <= known


@pytest.mark.parametrize(
    ("name", "overrides", "needed"),
    [
        (
            PPO,
            ["algo.name=sarsa"],
            "config.algo.name is 'sarsa': allowed are a2c, c51, ddpg, dqn,",
        ),
        (PPO, ["algo.name=actor_critic"], "config.algo.name is 'actor_critic'"),
        (PPO, ["algo.name=trpo"], "config.algo.backtrack_ratio is missing"),
        (PPO, ["algo.name=a2c"], "config.algo.clip is unknown"),
        (A2C, ["algo.name=ppo"], "config.algo.clip is missing"),
        (TRPO, ["algo.name=vpg"], "config.algo.backtrack_ratio is unknown"),
        (PPO, ["optimizer.name=lion"], "'lion': allowed are adam, rmsprop, sgd"),
        (PPO, ["net.name=cnn"], "'cnn': allowed are mlp, tabular"),
        (PPO, ["net.activation=step"], "'step': allowed are tanh, relu, silu, gelu"),
        (HOST, ["net.log_std=x"], "config.net.log_std is 'x': allowed are parameter, network"),
        (PPO, ["algo.kl_penalty=x"], "'x': allowed are none, fixed, adaptive"),
        (PPO, ["algo.kl_penalty=adaptive"], "it needs config.algo.target_kl"),
        (PPO, ["algo.normalize_advantages=x"], "'x': allowed are none, batch, minibatch"),
        (VPG, ["algo.weights=x"], "config.algo.weights is 'x': allowed are return, reward_to_go"),
        (PPO, ["env.backend=brax"], "'brax': allowed are jax, gymnasium, envpool"),
        (PPO, ["env.backend=envpool", "env.name=CartPole-v9"], "'CartPole-v9': did you mean"),
        (PPO, ["env.name=CartPole-v9"], "unknown environment 'CartPole-v9': allowed are Acrobot"),
        (HOST, ["env.name=HalfCheetah-v55"], "unknown environment 'HalfCheetah-v55': did you mean"),
        (HOST, ["env.name=nowhere:Env-v0"], "unknown environment 'nowhere:Env-v0'"),
        (HOST, ["env.autoreset_mode=x"], "autoreset_mode is 'x', allowed are"),
        (PPO, ["env.actions=x"], "config.env.actions is 'x': allowed are clip, scale, none"),
        (HOST, ["env.actions=none"], "config.env.actions is 'none': with config.env.backend"),
        (PPO, ["env.normalize_rewards=3"], "--config.env.normalize_rewards=3"),
        (HOST, ["net.name=tabular"], "needs discrete actions and one-hot observations"),
        (HOST, ["num_devices=2"], "config.num_devices is 2"),
        (PPO, ["num_devices=99"], "num_devices is 99: there are 4"),
        (PPO, ["num_devices=3"], "config.env.num_envs is 8: it must be divisible by the 3 devices"),
        (PPO, ["algo.minibatches=7"], "a batch of 1024"),
        (PPO, ["algo.minibatches=2048"], "is not divisible by config.algo.minibatches 2048"),
        (PPO, ["log_interval=4"], "config.eval_interval is 2: it must be a multiple of"),
        (PPO, ["log_interval=2", "checkpoint_interval=5"], "config.checkpoint_interval is 5"),
    ],
)
def test_settings_that_do_not_go_together(name, overrides, needed, tmp_path):
    assert_refused(quick(name, tmp_path / "w", *overrides), needed)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("program", "needed"),
    [
        ("def get_config(:\n", "SyntaxError"),
        ("import nothing_of_this_name\n", "No module named 'nothing_of_this_name'"),
        ("x = 1\n", "get_config"),
        ("def get_config():\n    return undefined\n", "NameError: name 'undefined'"),
        ("def get_config():\n    pass\n", "get_config returned NoneType, not a ConfigDict"),
        ("def get_config():\n    return {'seed': 0}\n", "get_config returned dict"),
        (
            "from ml_collections import ConfigDict\n"
            "def get_config():\n    return ConfigDict({'algo': {'name': 'ppo'}})\n",
            "config.algo.clip is missing",
        ),
        *(
            (
                "from experiments.configs.ppo_cartpole import get_config as base\n"
                f"def get_config():\n    config = base()\n    {change}\n    return config\n",
                needed,
            )
            for change, needed in [
                ("config.total_step = 5", "config.total_step is unknown; config has"),
                ("del config.env.backend", "config.env.backend is missing"),
                ("config.total_steps = 'many'", "cannot be casted"),
                ("config.seed = None", "config.seed is None: it must be of type int"),
                ("raise ValueError('two\\nlines')", "ValueError: two lines"),
            ]
        ),
    ],
)
def test_config_files_that_are_wrong(program, needed, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(program)
    argv = [f"--config={file}", f"--workdir={tmp_path / 'w'}"]
    assert_refused(argv, needed)
    assert not (tmp_path / "w").exists()


def test_flags_that_are_wrong(tmp_path):
    workdir = tmp_path / "w"
    good = quick(TABLE, workdir)
    allowed = "allowed are --config, --config.FIELD and --workdir"
    assert_refused([*good, "--epochs=3"], "unknown flag --epochs", allowed)
    assert_refused([*good, "please"], "unexpected argument 'please'", "usage:")
    assert_refused(good[:1], "--workdir is missing", "usage:")
    assert_refused([good[0], "--workdir="], "--workdir is missing")
    assert_refused([good[0], "--workdir"], "Missing value for flag --workdir")
    assert_refused(good[1:], "--config is missing", "usage:")
    assert_refused([], "--config is missing")
    assert_refused([f"--config={tmp_path}/none.py", good[1]], "no config file", *NAMES)
    assert_refused([f"--config={tmp_path}", good[1]], "no config file")
    variant = good[0].replace(":quick", ":slow")
    assert_refused([variant, good[1]], "unknown variant 'slow': allowed are none and 'quick'")
    assert not workdir.exists()


def test_overrides_are_found_wherever_they_stand(tmp_path):
    good = quick(TABLE, tmp_path / "w")
    for argv in (["--config.seed", "-1", *good], [*good, "--config.seed", "-1"]):
        assert_refused(argv, "config.seed is -1")
    assert not (tmp_path / "w").exists()


def test_a_workdir_of_another_config(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "w")
    files = digests(tmp_path / "w")
    line = assert_refused(
        quick(TABLE, tmp_path / "w", "algo.discount=0.8", "optimizer.learning_rate=0.25")
    )
    assert "algo.discount is 0.9 there and 0.8 here" in line
    assert digests(tmp_path / "w") == files


def test_a_workdir_that_cannot_be_one(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert_refused(quick(TABLE, tmp_path / "file"), "file", "cannot be used")
    assert_refused(quick(TABLE, tmp_path / "file" / "w"), "cannot be used")
    assert (tmp_path / "file").read_text() == "mine"

    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "config.json").write_text("not a config")
    assert_refused(quick(TABLE, tmp_path / "w"), "config.json is not JSON")


HOLD = """
import sys
from rljax.runtime.workdir import open_workdir
with open_workdir(sys.argv[1], {}):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_a_workdir_in_use(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "w"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "mine\n"
        assert_refused(quick(TABLE, tmp_path / "w"), "is in use by another process")
        other.stdin.close()
    assert json.loads((tmp_path / "w" / "config.json").read_text()) == {}
