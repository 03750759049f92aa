"""A run on EnvPool, which resumes with fresh episodes and says so."""

import shutil

import numpy as np

from .command import checkpoint_steps, quick, read_checkpoint, read_table, run_here

SAID = "EnvPool's environments cannot be saved: fresh episodes from here on"


def test_a_run_resumes_and_says_what_it_cannot_keep(tmp_path):
    argv = quick(
        *("ppo_cartpole", tmp_path / "w", "env.backend=envpool", "env.num_envs=4"),
        *("unroll_length=16", "total_steps=256", "eval_episodes=2", "net.hidden_sizes=(8,)"),
    )
    first = run_here(argv)
    assert (first.code, first.err) == (0, [])
    assert SAID not in "\n".join(first.out)
    table = read_table(tmp_path / "w")
    older, newest = checkpoint_steps(tmp_path / "w")
    kept, _ = read_checkpoint(tmp_path / "w", older)
    ended, _ = read_checkpoint(tmp_path / "w", newest)

    shutil.rmtree(tmp_path / "w" / "checkpoints" / f"{newest:012d}")
    again = run_here(argv)
    assert (again.code, again.err) == (0, [])
    printed = "\n".join(again.out)
    assert f"resuming at step {older} of" in printed
    assert printed.count(SAID) == 1
    assert again.out[-1].startswith("final eval/return_mean=")

    resumed = read_table(tmp_path / "w")
    assert [row[0] for row in resumed] == [row[0] for row in table]
    assert resumed[:3] == table[:3]  # names and two updates before the checkpoint
    assert resumed[3:] != table[3:]  # other episodes after it
    assert checkpoint_steps(tmp_path / "w") == [older, newest]
    arrays, _ = read_checkpoint(tmp_path / "w", newest)
    # The optimiser has counted on from where it was, to where the undisturbed run ended.
    counts = [path for path in ended if path.endswith("count")]
    assert counts
    for path in counts:
        assert kept[path] < arrays[path] == ended[path]
    params = [path for path in ended if "params" in path]
    assert any(not np.array_equal(arrays[path], ended[path]) for path in params)
