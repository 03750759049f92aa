"""n-step sums and sequences from a ring against the whole history, one environment at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.data.replay import cut_episodes, make_replay
from rljax.data.windows import n_step, sequences
from rljax.ops.returns import n_step as n_step_returns
from rljax.types import Experience

B, STEPS = 3, 7  # environments, and steps kept of each
LENGTHS = (2, 5, 7, 11, 18)  # histories, from a ring not yet full to one several times over


def history(seed, length):
    """Steps numbered 0 ... [length, B]; the number is in all fields, and after an end comes 500."""
    rng = np.random.default_rng(seed)
    time = np.broadcast_to(np.arange(length)[:, None], (length, B))
    number = (time + 100 * np.arange(B)).astype(np.int32)
    ends = rng.random((2, length, B)) < 0.2
    return Experience(
        observation=number.astype(np.float32),
        action=number,
        reward=rng.normal(size=(length, B)).astype(np.float32),
        terminated=ends[0],
        truncated=ends[1],
        next_observation=number + np.float32(0.5),
    )


def compiled(replay):
    return replay._replace(
        add=jax.jit(replay.add),
        read=jax.jit(replay.read),
        sample=jax.jit(replay.sample, static_argnums=2),
    )


@pytest.fixture(scope="module")
def replays():
    """By window: the replay, and state -> what is read at all its places [STEPS, B]."""
    example = jax.tree.map(lambda x: x[0, 0], history(0, 1))
    windows = {f"n{n}": n_step(n, discount=0.9) for n in (1, 3, 7)}
    windows |= {f"l{length}": sequences(length) for length in (1, 3, 7)}
    made = {}
    places = jnp.arange(STEPS * B, dtype=jnp.int32).reshape(STEPS, B)
    for name, window in windows.items():
        replay = make_replay(example, capacity=STEPS * B, num_envs=B, window=window)
        made[name] = compiled(replay), jax.jit(lambda state, read=replay.read: read(state, places))
    return made


def filled(replay, steps):
    state = replay.init()
    for t in range(len(steps.reward)):
        state = replay.add(state, jax.tree.map(lambda x, t=t: x[t], steps))
    return state


def newest(steps):
    """[min(length, STEPS), B]: what the ring keeps, oldest first, and the slot of each."""
    length = len(steps.reward)
    start = max(length - STEPS, 0)
    slots = np.arange(start, length) % STEPS
    return jax.tree.map(lambda x: x[start:], steps), slots


@pytest.mark.parametrize("n", [1, 3, 7])
@pytest.mark.parametrize("length", LENGTHS)
def test_n_step_is_that_of_the_kept_history(replays, n, length):
    replay, read_all = replays[f"n{n}"]
    steps = history(length, length)
    rows, slots = newest(steps)
    batch = jax.tree.map(lambda x: np.asarray(x)[slots], read_all(filled(replay, steps)))
    returns, discounts, last = n_step_returns(
        rows.reward, rows.terminated, rows.truncated, discount=0.9, n=n
    )
    np.testing.assert_allclose(batch.reward, returns, rtol=1e-6)
    np.testing.assert_allclose(batch.discount, discounts, rtol=1e-6)
    np.testing.assert_array_equal(batch.observation, rows.observation)
    np.testing.assert_array_equal(batch.action, rows.action)
    for name in ("next_observation", "terminated", "truncated"):
        expected = np.take_along_axis(getattr(rows, name), np.asarray(last), 0)
        np.testing.assert_array_equal(getattr(batch, name), expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_n_step_by_a_loop(replays, length):
    """The same without anybody's code: walk on until an end, n steps, or the newest step."""
    replay, read_all = replays["n3"]
    steps = history(50 + length, length)
    rows, slots = newest(steps)
    batch = jax.tree.map(lambda x: np.asarray(x)[slots], read_all(filled(replay, steps)))
    for env in range(B):
        for start in range(len(slots)):
            total, t = 0.0, start
            while True:
                total += 0.9 ** (t - start) * rows.reward[t, env]
                ended = rows.terminated[t, env] or rows.truncated[t, env]
                if ended or t - start == 2 or t == len(slots) - 1:
                    break
                t += 1
            discount = 0.0 if rows.terminated[t, env] else 0.9 ** (t - start + 1)
            assert batch.reward[start, env] == pytest.approx(total, abs=1e-5)
            assert batch.discount[start, env] == pytest.approx(discount, abs=1e-6)
            assert batch.next_observation[start, env] == rows.next_observation[t, env]


def test_n_step_by_hand():
    """γ = 1/2, rewards 1, 2, 4, 8; step 1 truncated, step 3 terminated, n = 3.

    Start 0: 1 + 2/2 = 2, then γ² = 1/4 of step 1's next observation. Start 1: 2, γ = 1/2.
    Start 2: 4 + 8/2 = 8, nothing after. Start 3: 8, nothing after.
    """
    example = Experience(*[np.float32(0)] * 3, np.False_, np.False_, np.float32(0))
    window = n_step(3, discount=0.5)
    replay = compiled(make_replay(example, capacity=6, num_envs=1, window=window))
    reward = np.array([[1], [2], [4], [8]], np.float32)
    time = np.arange(4, dtype=np.float32)[:, None]
    state = replay.add(
        replay.init(), Experience(time, time, reward, time == 3, time == 1, time + 0.5)
    )
    batch = replay.read(state, jnp.arange(4))
    assert batch.reward.tolist() == [2.0, 2.0, 8.0, 8.0]
    assert batch.discount.tolist() == [0.25, 0.5, 0.0, 0.0]
    assert batch.next_observation.tolist() == [1.5, 1.5, 3.5, 3.5]
    assert batch.truncated.tolist() == [True, True, False, False]


def test_all_kept_steps_can_start_n_steps(replays):
    replay, _ = replays["n7"]
    state = filled(replay, history(0, 9))
    batch = replay.sample(jax.random.key(0), state, (100, 20))
    expected = {t + 100 * env for t in range(2, 9) for env in range(B)}
    assert set(np.asarray(batch.action).ravel().tolist()) == expected


@pytest.mark.parametrize("length", [1, 3, 7])
@pytest.mark.parametrize("added", LENGTHS)
def test_sequences_by_a_loop(replays, length, added):
    replay, read_all = replays[f"l{length}"]
    steps = history(added, added)
    state = filled(replay, steps)
    rows, slots = newest(steps)
    starts = max(len(slots) - length + 1, 0)
    assert bool(replay.can_sample(state)) == (starts > 0)
    if not starts:
        return
    batch = jax.tree.map(lambda x: np.asarray(x)[slots], read_all(state))
    assert batch.mask.shape == (len(slots), B, length)
    for env in range(B):
        for start in range(starts):
            ends = (rows.terminated | rows.truncated)[start : start + length, env]
            real = int(np.argmax(ends)) + 1 if ends.any() else length
            expected = rows.action[start : start + real, env].tolist()
            expected += [expected[-1]] * (length - real)
            assert batch.mask[start, env].tolist() == [i < real for i in range(length)]
            assert batch.steps.action[start, env].tolist() == expected
            assert batch.steps.next_observation[start, env].tolist() == [
                i % 1000 + 0.5 for i in expected
            ]
    drawn = replay.sample(jax.random.key(1), state, (100, 20)).steps.action[..., 0]
    assert set(np.asarray(drawn).ravel().tolist()) == set(rows.action[:starts].ravel().tolist())


def test_a_masked_call_lies_between_two_episodes(replays):
    """Environment 0 ends, spends a call on its reset, and goes on: no window sees the call."""
    replay, _ = replays["n3"]
    steps = history(0, 5)
    steps = steps._replace(terminated=np.zeros((5, B), bool), truncated=np.zeros((5, B), bool))
    steps.truncated[1, 0] = True
    mask = np.ones((5, B), bool)
    mask[2, 0] = False
    state = replay.add(replay.init(), steps, mask)
    batch = replay.read(state, jnp.arange(4) * B)
    assert batch.action.tolist() == [0, 1, 3, 4]
    np.testing.assert_allclose(batch.discount, [0.9**2, 0.9, 0.9**2, 0.9], rtol=1e-6)
    assert batch.next_observation.tolist() == [1.5, 1.5, 4.5, 4.5]


def test_nothing_leads_over_a_cut(replays):
    replay, _ = replays["n3"]
    steps = history(0, 4)
    none = np.zeros((4, B), bool)
    steps = steps._replace(terminated=none, truncated=none)
    half = [jax.tree.map(lambda x, i=i: x[i : i + 2], steps) for i in (0, 2)]
    state = replay.add(cut_episodes(replay.add(replay.init(), half[0])), half[1])
    batch = replay.read(state, jnp.arange(4 * B).reshape(4, B))
    np.testing.assert_allclose(batch.discount[:, 1], [0.9**2, 0.9, 0.9**2, 0.9], rtol=1e-6)
    assert batch.next_observation[:, 1].tolist() == [101.5, 101.5, 103.5, 103.5]


def test_other_envs_and_masked_content_cannot_leak(replays):
    """Environment 2 is all NaN: the windows of the others are as they were."""
    replay, read_all = replays["n3"]
    steps = history(3, 9)
    poisoned = steps._replace(reward=np.where(np.arange(B) == 2, np.nan, steps.reward))
    clean, dirty = (read_all(filled(replay, s)) for s in (steps, poisoned))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:, :2], b[:, :2]), clean, dirty)
    assert np.isnan(dirty.reward[:, 2]).all()
