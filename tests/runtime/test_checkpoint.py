"""Saving beside the training, pruning, and going on exactly where a run stopped."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.runtime.checkpoint import Checkpoints, list_steps
from rljax.runtime.manifest import find_damage


def saved(folder, *steps, **options):
    """A directory with a checkpoint of each step, the state of which is the step."""
    with Checkpoints(folder, **options) as checkpoints:
        for step in steps:
            checkpoints.save(step, {"w": np.full(3, step)}, {"step": step})
    return folder


TEMPLATE = {"w": np.zeros(3, np.int64)}


def test_an_empty_directory_restores_nothing(tmp_path):
    with Checkpoints(tmp_path / "a" / "b") as checkpoints:
        assert checkpoints.restore(TEMPLATE) is None
        assert checkpoints.restore(TEMPLATE, which="best") is None
        assert checkpoints.steps() == []


def test_steps_beyond_32_bits_and_their_names(tmp_path):
    step = 2**31 + 5  # 2147483653
    saved(tmp_path, step)
    assert os.listdir(tmp_path) == ["002147483653"]
    with Checkpoints(tmp_path) as checkpoints:
        state, metadata = checkpoints.restore(TEMPLATE)
        np.testing.assert_array_equal(state["w"], [step] * 3)
        assert metadata == {"step": step}
        assert checkpoints.path(step).is_dir()


def test_metadata_is_what_json_makes_of_it(tmp_path):
    metadata = {"position": 2**40, "x": 0.1, "nested": {"list": [1, None, "ü"]}, "np": np.int64(3)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": np.zeros(3, np.int64)}, metadata)
        metadata["position"] = 0  # the caller's dict is its own again
        _, got = checkpoints.restore(TEMPLATE)
    assert got == {"position": 2**40, "x": 0.1, "nested": {"list": [1, None, "ü"]}, "np": 3}


def test_the_last_and_the_best_are_kept(tmp_path):
    """Metrics 1 9 9 2 nan 3 - at steps 10 ... 70: the best is 30, the newer of the equals."""
    metrics = {10: 1.0, 20: 9.0, 30: 9.0, 40: 2.0, 50: float("nan"), 60: 3.0, 70: None}
    with Checkpoints(tmp_path, keep_last=2, keep_best=1) as checkpoints:
        for step, metric in metrics.items():
            checkpoints.save(step, {"w": np.full(3, step)}, {}, metric=metric)
        checkpoints.wait()
        assert checkpoints.steps() == [30, 60, 70]
        latest, _ = checkpoints.restore(TEMPLATE)
        best, _ = checkpoints.restore(TEMPLATE, which="best")
    assert (latest["w"][0], best["w"][0]) == (70, 30)
    assert sorted(os.listdir(tmp_path)) == ["000000000030", "000000000060", "000000000070"]


def test_negative_metrics_and_more_than_one_best(tmp_path):
    with Checkpoints(tmp_path, keep_last=1, keep_best=2) as checkpoints:
        for step, metric in [(1, -3.0), (2, -1.0), (3, -2.0), (4, -9.0)]:
            checkpoints.save(step, {"w": np.full(3, step)}, {}, metric=metric)
        checkpoints.wait()
        assert checkpoints.steps() == [2, 3, 4]
        assert checkpoints.restore(TEMPLATE, which="best")[0]["w"][0] == 2


def test_without_best_only_the_last_stay(tmp_path):
    saved(tmp_path, 1, 2, 3, keep_last=1, keep_best=0)
    assert list_steps(tmp_path) == [3]


def test_the_same_step_is_replaced(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for value in (1, 2):
            checkpoints.save(5, {"w": np.full(3, value)}, {"value": value})
        state, metadata = checkpoints.restore(TEMPLATE)
    assert (state["w"][0], metadata) == (2, {"value": 2})
    assert os.listdir(tmp_path) == ["000000000005"]


def test_later_steps_of_a_given_up_future_push_nothing_out(tmp_path):
    """After damage at 30 the run goes on from 10 and saves 20: 20 is the last one, and stays."""
    saved(tmp_path, 10, 30, keep_last=2)
    saved(tmp_path, 20, keep_last=1)
    assert list_steps(tmp_path) == [20, 30]
    saved(tmp_path, 40, keep_last=1)
    assert list_steps(tmp_path) == [40]


def test_saving_goes_on_beside_the_caller(tmp_path):
    """32 MB of noise take a tenth of a second and more to write; the copy alone is awaited."""
    noise = {"x": np.random.default_rng(0).standard_normal(2**22)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"w": np.zeros(1)}, {})  # imports orbax
        checkpoints.wait()
        start = time.monotonic()
        checkpoints.save(1, noise, {})
        returned = time.monotonic() - start
        assert checkpoints.steps() == [0]
        checkpoints.save(2, {"x": np.zeros(2**22)}, {})  # waits for the one before
        assert checkpoints.steps() == [0, 1]
        checkpoints.wait()
        written = time.monotonic() - start
    assert returned < written / 2
    assert list_steps(tmp_path) == [0, 1, 2]


def test_what_is_seen_under_its_name_is_complete(tmp_path):
    """A reader that looks all the time never finds a part of a checkpoint."""
    seen, deadline = set(), time.monotonic() + 60
    with Checkpoints(tmp_path, keep_last=100) as checkpoints:
        for step in range(8):
            checkpoints.save(step, {"w": np.full(3, step)}, {})
            while step not in seen:
                assert time.monotonic() < deadline
                seen.update(new := set(checkpoints.steps()) - seen)
                assert [find_damage(checkpoints.path(step)) for step in new] == [None] * len(new)


def test_a_state_that_is_donated_and_overwritten_at_once_is_saved_as_it_was(tmp_path):
    step = jax.jit(lambda x: x * 0.0 - 1.0, donate_argnums=0)
    device, host = jax.device_put(jnp.arange(200_000.0), jax.devices()[0]), np.arange(100_000.0)
    with Checkpoints(tmp_path) as checkpoints:
        for number in range(3):
            template = {"device": device, "host": host}
            checkpoints.save(number, template, {})
            device = step(device)
            host[:] = -1.0
            jax.block_until_ready(device)
            restored, _ = checkpoints.restore(template)
            np.testing.assert_array_equal(restored["device"], np.arange(200_000.0))
            np.testing.assert_array_equal(restored["host"], np.arange(100_000.0))
            # The next state is the restored one, whose buffers came from orbax: donate those too.
            device, host = restored["device"], restored["host"]


def test_leftovers_of_killed_processes_go_and_those_of_living_ones_stay(tmp_path):
    saved(tmp_path, 1)
    left = tmp_path / ".tmp-000000000002-abc"
    (left / "state").mkdir(parents=True)
    (left / "state" / "part").write_bytes(b"half")
    with Checkpoints(tmp_path) as living:
        assert not left.exists()
        with living._staging("2-") as staging:  # in use, as in the middle of a save
            Checkpoints(tmp_path).close()  # another reader comes by
            assert staging.exists()
    assert os.listdir(tmp_path) == ["000000000001"]


def test_others_may_read_a_checkpoint_if_they_may_read_new_folders(tmp_path):
    (tmp_path / "new").mkdir()
    saved(tmp_path, 1)
    assert (tmp_path / "000000000001").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_other_things_in_the_directory_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "12").mkdir()
    saved(tmp_path, 1, 2, keep_last=1, keep_best=0)
    assert sorted(os.listdir(tmp_path)) == ["000000000002", "12", "notes.txt"]


def test_adam_and_its_key_resume_bit_for_bit(tmp_path):
    """Four steps of Adam on one parameter, stopped after two.

    By hand, with learning rate 0.1, b1 = 0.9, b2 = 0.999, eps = 1e-8 and gradients 1, 1/2, -1/4, 2:
    m = 0.1, 0.14, 0.101, 0.2909; v = 0.001, 0.001249, 0.00131025.., 0.00530893..; each step is
    0.1 (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.999^t)) + 1e-8): 0.1, 0.093218, 0.056366, 0.073369.
    Lost moments would give 0.906782 at step 3, a lost count 0.718546.
    """
    optimizer = optax.adam(0.1, b1=0.9, b2=0.999, eps=1e-8)
    grads = [1.0, 0.5, -0.25, 2.0]

    @jax.jit
    def update(state, grad):
        params, opt_state, key = state
        key, noise = jax.random.split(key)
        updates, opt_state = optimizer.update(grad, opt_state, params)
        state = (optax.apply_updates(params, updates), opt_state, key)
        return state, (state[0], jax.random.key_data(key), jax.random.normal(noise))

    def start():
        return (jnp.float32(1.0), optimizer.init(jnp.float32(1.0)), jax.random.key(0))

    state, uninterrupted = start(), []
    with Checkpoints(tmp_path) as checkpoints:
        for step, grad in enumerate(grads):
            state, seen = update(state, grad)
            uninterrupted.append(seen)
            if step == 1:
                checkpoints.save(2, state, {})
    expected = [0.9000000009999999, 0.8067820382981609, 0.7504159014963293, 0.6770470281393887]
    np.testing.assert_allclose([seen[0] for seen in uninterrupted], expected, atol=1e-5, rtol=0)

    with Checkpoints(tmp_path) as checkpoints:
        state, _ = checkpoints.restore(start())
    assert state[2].dtype == jax.random.key(0).dtype
    assert int(state[1][0].count) == 2
    resumed = []
    for grad in grads[2:]:
        state, seen = update(state, grad)
        resumed.append(seen)
    for got, want in zip(jax.tree.leaves(resumed), jax.tree.leaves(uninterrupted[2:])):
        np.testing.assert_array_equal(got, want)


def test_the_schedule_goes_on_at_the_next_update(tmp_path):
    """Warm-up 0 -> 1 over 4 updates, then linearly to 0 at update 10; stopped after 3 updates.

    Update u, counted from 0, uses lr(u) = u/4 up to u = 4 and (10 - u)/6 after. Three are done, so
    the next is u = 3 with 0.75; 0.5 would repeat the last one and 1.0 would leave one out.
    """
    schedule = optax.join_schedules(
        [optax.linear_schedule(0.0, 1.0, 4), optax.linear_schedule(1.0, 0.0, 6)], [4]
    )
    optimizer = optax.sgd(schedule)

    @jax.jit
    def update(state):
        params, opt_state, step = state
        updates, opt_state = optimizer.update(jnp.float32(1.0), opt_state)
        return (params + updates, opt_state, step + 1), -updates  # gradient 1: the rate itself

    def start():
        return (jnp.float32(0.0), optimizer.init(jnp.float32(0.0)), jnp.int32(0))

    state, rates = start(), []
    with Checkpoints(tmp_path) as checkpoints:
        for done in range(1, 11):
            state, rate = update(state)
            rates.append(rate)
            if done == 3:
                checkpoints.save(done, state, {"updates": done})
    expected = [0, 0.25, 0.5, 0.75, 1, 5 / 6, 4 / 6, 0.5, 2 / 6, 1 / 6]
    np.testing.assert_allclose(rates, expected, atol=1e-5, rtol=0)

    with Checkpoints(tmp_path) as checkpoints:
        state, metadata = checkpoints.restore(start())
    counts = [leaf for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.int32]
    assert metadata == {"updates": 3}
    assert [int(count) for count in counts] == [3, 3]  # the optimiser's and ours
    resumed = []
    for _ in range(7):
        state, rate = update(state)
        resumed.append(rate)
    np.testing.assert_array_equal(resumed, rates[3:])


@pytest.mark.errors
def test_a_foreign_checkpoint_is_refused_in_one_line(tmp_path):
    saved(tmp_path, 10)
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(ValueError, match="another") as caught:
        checkpoints.restore({"w": np.zeros((3, 1), np.int64)})
    assert str(caught.value) == (
        f"checkpoint {tmp_path}/000000000010 is of another run: "
        "['w'] is int64[3] in the checkpoint and int64[3,1] here"
    )


@pytest.mark.errors
def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="not 0 and 1"):
        Checkpoints(tmp_path, keep_last=0)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match="not -1"):
            checkpoints.save(-1, {}, {})
        with pytest.raises(ValueError, match="not 1000000000000"):
            checkpoints.save(10**12, {}, {})
        with pytest.raises(ValueError, match="not 'newest'"):
            checkpoints.restore({}, which="newest")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"\['x'\]: a leaf of type object cannot be stored"):
            checkpoints.save(1, {"x": object()}, {})
        assert checkpoints.steps() == []
