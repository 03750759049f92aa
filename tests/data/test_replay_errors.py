"""Bad input to replays: one line with both numbers, before anything is compiled or allocated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.data import memory
from rljax.data.memory import available_bytes, check_memory
from rljax.data.priority import make_prioritised_replay
from rljax.data.replay import make_replay
from rljax.data.windows import n_step, sequences

EXAMPLE = {"x": np.zeros(3, np.float32), "y": np.uint8(0)}


def make(**changes):
    return make_replay(EXAMPLE, **{"capacity": 12, "num_envs": 4, **changes})


def prioritised(**changes):
    settings = {"capacity": 12, "num_envs": 4, "alpha": 0.6, "beta": 0.4}
    return make_prioritised_replay(EXAMPLE, **{**settings, **changes})


def steps(*axes, x=np.float32, y=np.uint8):
    return {"x": np.zeros((*axes, 3), x), "y": np.zeros(axes, y)}


WRONG = [
    (dict(capacity=10), r"capacity is 10 transitions: .* multiple of the 4 environments"),
    (dict(capacity=2), r"capacity is 2 transitions: .* multiple of the 4 environments"),
    (dict(capacity=0), r"capacity is 0 transitions: .* the 4 environments"),
    (dict(capacity=-4), r"capacity is -4 transitions: .* the 4 environments"),
    (dict(num_envs=0), r"capacity is 12 transitions: .* the 0 environments"),
    (dict(capacity=2**31), r"capacity is 2147483648 transitions: .* at most 1073741824"),
    (dict(window=n_step(4, discount=0.9)), r"window of 4 steps is longer than the 3 steps"),
    (dict(window=sequences(4)), r"window of 4 steps is longer than the 3 steps"),
]


@pytest.mark.errors
@pytest.mark.parametrize(("changes", "message"), WRONG)
@pytest.mark.parametrize("factory", [make, prioritised])
def test_settings(factory, changes, message):
    with pytest.raises(ValueError, match=message) as error:
        factory(**changes)
    assert "\n" not in str(error.value)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("make_window", "message"),
    [
        (lambda: n_step(0, discount=0.9), r"n is 0: it must be at least 1"),
        (lambda: n_step(1, discount=1.1), r"discount is 1.1: it must be in 0.0 ... 1.0"),
        (lambda: n_step(1, discount=-0.1), r"discount is -0.1: it must be in 0.0 ... 1.0"),
        (lambda: n_step(1, discount=float("nan")), r"discount is nan: it must be in 0.0"),
        (lambda: sequences(0), r"length is 0: it must be at least 1"),
    ],
)
def test_windows(make_window, message):
    with pytest.raises(ValueError, match=message):
        make_window()


@pytest.mark.errors
@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_exponents(name, value):
    with pytest.raises(ValueError, match=rf"^{name} is {value}: it must be in 0.0 ... 1.0$"):
        prioritised(**{name: value})


@pytest.mark.errors
@pytest.mark.parametrize("factory", [make, prioritised])
@pytest.mark.parametrize("batch_size", [13, 0, -1])
def test_batches(factory, batch_size):
    replay = factory()
    state = replay.init()
    with pytest.raises(ValueError, match=rf"batch is {batch_size}: .* 1 ... capacity = 12$"):
        replay.sample(jax.random.key(0), state, batch_size)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("transitions", "message"),
    [
        (steps(3), r"\['x'\] is float32\[3, 3\]: this replay stores float32\[4, 3\]"),
        (steps(2, 3), r"\['x'\] is float32\[2, 3, 3\]: this replay stores float32\[2, 4, 3\]"),
        (steps(4, y=np.float32), r"\['y'\] is float32\[4\]: this replay stores uint8\[4\]"),
        (steps(), r"\['x'\] is float32\[3\]: this replay stores float32\[4, 3\]"),
        (steps(5, 4), r"5 steps at once are more than the 3 kept"),
        ({"x": steps(4)["x"]}, r"transitions are .*'x'.*: this replay stores .*'y'"),
    ],
)
def test_transitions(transitions, message):
    replay = make()
    with pytest.raises(ValueError, match=message) as error:
        replay.add(replay.init(), transitions)
    assert "\n" not in str(error.value)


@pytest.mark.errors
@pytest.mark.parametrize("shape", [(), (3,), (4, 1), (2, 4)])
def test_masks(shape):
    replay = make()
    with pytest.raises(ValueError, match=r"mask has shape .*: the steps are \(1, 4\)"):
        replay.add(replay.init(), steps(4), np.ones(shape, bool))


@pytest.mark.errors
@pytest.mark.parametrize("factory", [make, prioritised])
def test_memory_is_asked_before_it_is_taken(factory):
    """13 bytes per transition: 2^30 of them are 13 GB, which this must not even try to take."""
    replay = factory(capacity=2**30, memory_limit=10**9)
    assert replay.num_bytes > 13 * 2**30
    with pytest.raises(ValueError, match=rf"needs {replay.num_bytes:,} bytes .* 1,000,000,000 are"):
        replay.init()


@pytest.mark.errors
def test_more_than_the_machine_has():
    with pytest.raises(ValueError, match=r"^everything needs 9,007,199,254,740,992 bytes"):
        check_memory("everything", 2**53)


def test_what_is_available(tmp_path, monkeypatch):
    """Some memory on any machine; in a container what is left of its limit, if that is less."""
    here = available_bytes()
    assert here is not None
    assert 2**20 < here < 2**53
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    monkeypatch.setattr(memory, "GROUPS", tmp_path)
    assert available_bytes() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() > 2**20


def test_a_limit_that_is_enough():
    replay = make_replay(jnp.zeros(3), capacity=4, num_envs=1, memory_limit=4 * 12 + 8)
    assert replay.init().storage.shape == (4, 3)
