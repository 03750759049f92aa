"""The ring against lists in Python: what is kept, where it goes on, what can be drawn."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.data.memory import num_bytes
from rljax.data.replay import cut_episodes, make_replay, wrap
from rljax.types import Experience

EXAMPLE = Experience(
    observation=jax.ShapeDtypeStruct((2,), np.uint8),
    action=jax.ShapeDtypeStruct((), np.int32),
    reward=jax.ShapeDtypeStruct((), np.float32),
    terminated=jax.ShapeDtypeStruct((), np.bool_),
    truncated=jax.ShapeDtypeStruct((), np.bool_),
    next_observation=jax.ShapeDtypeStruct((2,), np.uint8),
)


def numbered(ids):
    """Transitions that lead from number i to number i + 1."""
    ids = np.asarray(ids, np.int32)
    pair = np.stack([ids, 2 * ids], -1).astype(np.uint8)
    none = np.zeros(ids.shape, bool)
    return Experience(pair, ids, ids.astype(np.float32), none, none, pair + 1)


def kept(replay, state):
    """The numbers that `read` finds at every place that `draw` gives, in many draws."""
    places = replay.draw(jax.random.key(1), state, (64, 4))
    return set(np.asarray(replay.read(state, places).action).ravel().tolist())


def compiled(replay):
    return replay._replace(
        add=jax.jit(replay.add),
        draw=jax.jit(replay.draw, static_argnums=2),
        read=jax.jit(replay.read),
        sample=jax.jit(replay.sample, static_argnums=2),
    )


@pytest.fixture(scope="module")
def small():
    """Two environments, five steps of each; its functions compiled once."""
    return compiled(make_replay(EXAMPLE, capacity=10, num_envs=2))


def test_a_ring_of_four_takes_six():
    """Slot = number modulo 4; a stored next observation keeps all four, the newest one too."""
    replay = compiled(make_replay(EXAMPLE, capacity=4, num_envs=1))
    state, sizes, nexts = replay.init(), [], {}
    for number in range(6):
        state = replay.add(state, numbered([number]))
        sizes.append(int(state.size[0]))
        if number == 1:
            assert kept(replay, state) == {0, 1}
    assert sizes == [1, 2, 3, 4, 4, 4]
    np.testing.assert_array_equal(state.storage.action, [4, 5, 2, 3])
    assert int(state.position[0]) == 2
    batch = replay.sample(jax.random.key(0), state, (50, 4))
    for number, following in zip(batch.action.ravel(), batch.next_observation.reshape(-1, 2)):
        nexts[int(number)] = int(following[0])
    assert nexts == {2: 3, 3: 4, 4: 5, 5: 6}


def test_a_chunk_goes_over_the_end():
    replay = make_replay(EXAMPLE, capacity=4, num_envs=1)
    state = replay.add(replay.init(), numbered([[0], [1], [2]]))
    state = replay.add(state, numbered([[10], [11], [12]]))
    np.testing.assert_array_equal(state.storage.action, [11, 12, 2, 10])
    assert (int(state.position[0]), int(state.size[0])) == (2, 4)


def test_chunks_are_their_steps(small):
    rng = np.random.default_rng(0)
    one = many = small.init()
    for length in (1, 5, 2, 3, 5, 4):
        ids, mask = rng.integers(0, 99, (length, 2)), rng.random((length, 2)) < 0.7
        many = small.add(many, numbered(ids), mask)
        for row, row_mask in zip(ids, mask):
            one = small.add(one, numbered(row), row_mask)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many)):
            np.testing.assert_array_equal(a, b)


def test_against_lists(small):
    """Random masks: each environment keeps the last five steps that it took, and no others."""
    rng = np.random.default_rng(1)
    state = small.init()
    lists = [collections.deque(maxlen=5) for _ in range(2)]
    for t in range(30):
        mask = rng.random(2) < 0.6
        state = small.add(state, numbered([t, 100 + t]), mask)
        for env in range(2):
            if mask[env]:
                lists[env].append(100 * env + t)
        expected = {number for one in lists for number in one}
        assert int(jnp.sum(state.size)) == sum(len(one) for one in lists)
        assert bool(small.can_sample(state)) == bool(expected)
        if expected:
            assert kept(small, state) == expected


def test_what_is_masked_leaves_no_trace(small):
    """Not even when it is NaN, at the head of a full ring, or the first thing ever added."""
    poison = numbered([55, 66])._replace(reward=np.full(2, np.nan, np.float32))
    state = small.add(small.init(), poison, np.zeros(2, bool))
    assert not bool(small.can_sample(state))
    full = state
    for t in range(7):
        full = small.add(full, numbered([t, 10 + t]))
    for before in (state, full):
        after = small.add(before, poison, np.zeros(2, np.float32))
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after)):
            np.testing.assert_array_equal(a, b)


def test_every_kept_step_is_equally_likely(small):
    """Sizes 5 and 2: seven places, 7000 draws, deviation √(7000·1/7·6/7) = 29 about 1000."""
    state = small.init()
    for t in range(8):
        state = small.add(state, numbered([t, 100 + t]), np.array([True, t in (2, 5)]))
    places = small.draw(jax.random.key(3), state, (1000, 7))
    numbers, counts = np.unique(small.read(state, places).action, return_counts=True)
    assert numbers.tolist() == [3, 4, 5, 6, 7, 102, 105]
    np.testing.assert_allclose(counts, 1000, atol=150)


def test_draws_are_the_keys_and_independent(small):
    state = small.add(small.init(), numbered([[t, 10 + t] for t in range(5)]))
    draws = [np.asarray(small.draw(jax.random.key(k), state, (200, 10))) for k in (0, 0, 1)]
    np.testing.assert_array_equal(draws[0], draws[1])
    # Any two draws are equal once in ten; 2000 pairs, deviation 0.0067.
    for other in (draws[2], np.roll(draws[0], 1, 0), np.roll(draws[0], 1, 1)):
        assert abs(np.mean(draws[0] == other) - 0.1) < 0.035


def test_sample_is_read_of_draw(small):
    state = small.add(small.init(), numbered([[t, 10 + t] for t in range(3)]))
    sampled = small.sample(jax.random.key(5), state, 4)
    read = small.read(state, small.draw(jax.random.key(5), state, 4))
    assert sampled.observation.shape == (4, 2)
    assert sampled.observation.dtype == np.uint8
    for a, b in zip(jax.tree.leaves(sampled), jax.tree.leaves(read)):
        np.testing.assert_array_equal(a, b)


def test_can_sample_counts(small):
    state = small.add(small.init(), numbered([1, 2]))
    assert [bool(small.can_sample(state, n)) for n in (1, 2, 3)] == [True, True, False]


def test_counters_never_run_over(small):
    """Counters after k steps and k + 5 are the same once the ring is full, and `add` knows nothing
    else of the past: so they are after 2^31 steps, and after any number."""
    state = small.init()
    seen = []
    for t in range(17):
        state = small.add(state, numbered([t, t]))
        seen.append((state.position.tolist(), state.size.tolist()))
    assert seen[7:12] == seen[12:17]
    assert all(p < 5 and s == 5 for ps, ss in seen[7:] for p, s in zip(ps, ss))
    # In the largest ring the sum of two positions still fits.
    last = jnp.int32(2**30 - 1)
    assert int(wrap(last + last, 2**30)) == 2**30 - 2


def test_seeds_side_by_side(small):
    """Under `vmap`, masks that differ and all, each seed is what it is alone."""
    rng = np.random.default_rng(2)
    states = jax.vmap(lambda _: small.init())(jnp.arange(3))
    alone = [small.init() for _ in range(3)]
    add = jax.jit(jax.vmap(small.add))
    for _ in range(9):
        ids, masks = rng.integers(0, 99, (3, 2)), rng.random((3, 2)) < 0.5
        states = add(states, numbered(ids), masks)
        alone = [small.add(s, numbered(i), m) for s, i, m in zip(alone, ids, masks)]
    keys = jax.random.split(jax.random.key(0), 3)
    batches = jax.vmap(lambda key, state: small.sample(key, state, 6))(keys, states)
    for s in range(3):
        expected = small.sample(keys[s], alone[s], 6)
        jax.tree.map(lambda a, b, s=s: np.testing.assert_array_equal(a[s], b), states, alone[s])
        jax.tree.map(lambda a, b, s=s: np.testing.assert_array_equal(a[s], b), batches, expected)


def test_the_state_goes_on_after_a_trip_to_the_host(small):
    state = small.add(small.init(), numbered([[t, 10 + t] for t in range(4)]))
    loaded = jax.tree.map(lambda x: jnp.asarray(np.array(x)), jax.device_get(state))
    for s in (state, loaded):
        s = small.add(s, numbered([7, 8]))
    a, b = (
        small.sample(jax.random.key(2), small.add(s, numbered([7, 8])), 5) for s in (state, loaded)
    )
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("seeds", [0, 2])
def test_a_large_ring_is_updated_in_place(seeds):
    """A donated program of many adds and samples needs as little beside a million transitions as
    beside ten thousand. Compiled only: nothing large is allocated."""
    extra = []
    for capacity in (10_000, 1_000_000):
        replay = make_replay(EXAMPLE, capacity=capacity, num_envs=4, memory_limit=10**12)

        def run(state, keys, replay=replay):
            def step(state, key):
                state = replay.add(state, numbered([1, 2, 3, 4]))
                return state, replay.sample(key, state, 8).reward.sum()

            return jax.lax.scan(step, state, keys)

        init, keys = replay.init, jax.random.split(jax.random.key(0), 3)
        if seeds:
            init, run = jax.vmap(lambda _, init=init: init()), jax.vmap(run)
            keys = jnp.stack([keys] * seeds)
        shapes = jax.eval_shape(init, *([jnp.arange(seeds)] if seeds else []))
        program = jax.jit(run, donate_argnums=0).lower(shapes, keys)
        program = program.compile({"xla_backend_optimization_level": 3})  # as outside the tests
        memory = program.memory_analysis()
        assert memory.alias_size_in_bytes >= num_bytes(shapes)
        extra.append(memory.temp_size_in_bytes)
    assert extra[1] < extra[0] + 1000 < 100_000


def test_bytes_by_hand():
    """Two observations of 2 bytes, action and reward of 4, flags of 1: 14 bytes, 8 more per env."""
    assert make_replay(EXAMPLE, capacity=10, num_envs=2).num_bytes == 10 * 14 + 2 * 8


def test_cut_episodes(small):
    state = small.init()
    for t in range(6):  # environment 1 has no step at all
        state = small.add(state, numbered([t, 50]), np.array([True, False]))
    cut = cut_episodes(state)
    np.testing.assert_array_equal(np.flatnonzero(cut.storage.truncated), [0])  # slot 5 mod 5
    rest = cut.storage._replace(truncated=state.storage.truncated)
    jax.tree.map(np.testing.assert_array_equal, rest, state.storage)
