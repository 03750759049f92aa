"""Prioritised draws against exact probabilities, and the sum tree against sums written out."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.data.priority import make_prioritised_replay
from rljax.data.sum_tree import (
    LEVELS,
    draw_places,
    empty_tree,
    set_weights,
    total_weight,
    weights_at,
)
from rljax.data.windows import n_step, sequences
from rljax.types import Experience


def compiled(replay):
    return replay._replace(
        add=jax.jit(replay.add),
        sample=jax.jit(replay.sample, static_argnums=2),
        set_priorities=jax.jit(replay.set_priorities),
        can_sample=jax.jit(replay.can_sample),
    )


def make(**changes):
    settings = {"capacity": 6, "num_envs": 2, "alpha": 0.5, "beta": 0.5, **changes}
    return compiled(make_prioritised_replay(jnp.int32(0), **settings))


@pytest.fixture(scope="module")
def small():
    """Two environments, three steps of each, α = β = 1/2."""
    return make()


def weights_of(state):
    return weights_at(state.tree, jnp.arange(6)).tolist()


def shares(replay, state):
    """How often each place is drawn, of 12000 draws: deviation at most 0.0046."""
    keys = jax.random.split(jax.random.key(0), 2000)
    draws = jax.vmap(lambda key: replay.sample(key, state, 6).places)(keys)
    return np.bincount(np.asarray(draws).ravel(), minlength=6) / 12_000


# The sum tree.


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 300])
def test_every_level_is_the_sum_of_the_one_below(size):
    rng = np.random.default_rng(size)
    expected, tree = np.zeros(size), empty_tree(size)
    update = jax.jit(set_weights)
    for _ in range(6):
        places = rng.integers(0, size, 8)
        weights = rng.random(8).astype(np.float32) * (rng.random(8) < 0.7)
        tree = update(tree, places, weights)
        for place in set(places.tolist()):
            expected[place] = weights[places == place].max()
        np.testing.assert_array_equal(weights_at(tree, jnp.arange(size)), np.float32(expected))
        for above, below in itertools.pairwise(tree):
            sums = np.asarray(below, np.float64).sum(-1)
            np.testing.assert_allclose(above.ravel()[: len(sums)], sums, rtol=1e-6)
            assert (np.asarray(above).ravel()[len(sums) :] == 0).all()
        np.testing.assert_allclose(total_weight(tree), expected.sum(), rtol=1e-6)


def test_places_out_of_bounds_are_dropped():
    tree = set_weights(empty_tree(20), jnp.arange(20), jnp.ones(20))
    after = set_weights(tree, jnp.array([2**30, 2**30 + 77, 2**31 - 1]), jnp.full(3, 9.0))
    jax.tree.map(np.testing.assert_array_equal, tree, after)


def test_draws_have_their_probabilities():
    """Seventeen weights, some 0, over a factor of a thousand; 20000 draws, deviation < 0.0036."""
    weights = np.array([0, 5, 0.01, 1, 0, 0, 3, 10, 2, 0.5, 0, 7, 1, 1, 0, 4, 0], np.float32)
    tree = set_weights(empty_tree(17), jnp.arange(17), jnp.asarray(weights))
    places, drawn = jax.jit(draw_places)(
        jax.random.uniform(jax.random.key(0), (20_000, LEVELS)), tree
    )
    np.testing.assert_array_equal(drawn, weights[np.asarray(places)])
    counts = np.bincount(places, minlength=17)
    assert (counts[weights == 0] == 0).all()
    np.testing.assert_allclose(counts / 20_000, weights / weights.sum(), atol=0.018)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2**-23, 1.0])
@pytest.mark.parametrize("place", [0, 1, 98, 99])
@pytest.mark.parametrize("weight", [1.0, 1e-37, 1e28])
def test_no_number_leads_to_a_weight_of_zero(uniform, place, weight):
    tree = set_weights(empty_tree(100), jnp.array([place]), jnp.array([weight]))
    places, _ = draw_places(jnp.full((1, LEVELS), uniform), tree)
    assert places.tolist() == [place]


def test_a_million_weights():
    """Half of them 0; the drawn ones are spread evenly: 64 blocks, deviation 22 about 512."""
    size = 2**20
    levels, sums = [], (np.arange(size) % 2).astype(np.float32)  # 2^20 = 32^4
    for _ in range(LEVELS):
        levels.insert(0, jnp.asarray(sums.reshape(-1, 32)))
        sums = levels[0].sum(-1)
    assert jax.tree.map(jnp.shape, tuple(levels)) == jax.tree.map(jnp.shape, empty_tree(size))
    uniforms = jax.random.uniform(jax.random.key(2), (2**15, LEVELS))
    places, drawn = jax.jit(draw_places)(uniforms, tuple(levels))
    assert (np.asarray(places) % 2 == 1).all()
    assert (np.asarray(drawn) == 1).all()
    np.testing.assert_allclose(np.bincount(places // 2**14, minlength=64), 512, atol=115)
    # Single places, too: of 2^15 draws from 2^19, some 1000 pairs fall on one place.
    assert abs(2**15 - len(set(np.asarray(places).tolist())) - 1000) < 160


# The replay.


def test_by_hand(small):
    """Priorities 9, 1, 4 and α = 1/2: weights 3, 1, 2, probabilities 1/2, 1/6, 1/3. With β = 1/2
    the corrections (3 P)^-1/2 are as √(1/3), 1, √(1/2), and then over the batch's largest."""
    state = small.init()
    assert not bool(small.can_sample(state))
    state = small.add(state, jnp.array([[0, 1], [2, 3]]), jnp.array([[1, 1], [1, 0]]))
    assert weights_of(state) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    state = small.set_priorities(state, jnp.arange(3), jnp.array([9.0, 1.0, 4.0]))
    assert weights_of(state) == [3.0, 1.0, 2.0, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(shares(small, state)[:3], [1 / 2, 1 / 6, 1 / 3], atol=0.023)
    for seed in range(4):
        sample = small.sample(jax.random.key(seed), state, 6)
        np.testing.assert_array_equal(sample.batch, sample.places)
        expected = np.sqrt([1 / 3, 1, 1 / 2])[np.asarray(sample.places)]
        np.testing.assert_allclose(sample.weights, expected / expected.max(), rtol=1e-6)
        annealed = small.sample(jax.random.key(seed), state, 6, 1.0)
        np.testing.assert_allclose(annealed.weights, (expected / expected.max()) ** 2, rtol=1e-6)


def test_the_corrections_undo_the_priorities():
    """With β = 1 the weighted mean over draws is the plain mean over what is kept."""
    replay = make(alpha=1.0, beta=1.0)
    state = replay.add(replay.init(), jnp.arange(6).reshape(3, 2) * 10)
    priorities = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    state = replay.set_priorities(state, jnp.arange(6), priorities)
    samples = jax.vmap(lambda key: replay.sample(key, state, 6))(
        jax.random.split(jax.random.key(4), 4000)
    )
    weights = 1 / np.asarray(priorities)[np.asarray(samples.places)]
    mean = np.sum(weights * np.asarray(samples.batch)) / np.sum(weights)
    np.testing.assert_allclose(mean, 25.0, atol=0.6)
    ratio = np.asarray(samples.weights) / weights
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1], ratio.shape), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(samples.weights).max(1), 1.0)


def test_new_steps_have_the_largest_priority_so_far(small):
    state = small.add(small.init(), jnp.array([0, 1]))
    state = small.set_priorities(state, jnp.array([0, 1]), jnp.array([16.0, 0.25]))
    state = small.add(state, jnp.array([2, 3]))
    assert weights_of(state) == [4.0, 0.5, 4.0, 4.0, 0.0, 0.0]
    state = small.set_priorities(state, jnp.array([0, 2, 3]), jnp.array([1.0, 1.0, 1.0]))
    state = small.add(state, jnp.array([[4, 5], [6, 7]]))  # the ring is full: place 0 is new again
    assert weights_of(state) == [4.0, 4.0, 1.0, 1.0, 4.0, 4.0]


def test_priority_zero_is_never_drawn_again(small):
    state = small.add(small.init(), jnp.arange(6).reshape(3, 2))
    state = small.set_priorities(state, jnp.array([0, 3]), jnp.array([0.0, 0.0]))
    drawn = shares(small, state)
    assert drawn[0] == drawn[3] == 0
    np.testing.assert_allclose(drawn[[1, 2, 4, 5]], 0.25, atol=0.02)
    state = small.set_priorities(state, jnp.arange(6), jnp.zeros(6))
    assert not bool(small.can_sample(state))


def test_alpha_zero_is_uniform():
    replay = make(alpha=0.0)
    state = replay.add(replay.init(), jnp.arange(6).reshape(3, 2))
    state = replay.set_priorities(state, jnp.arange(6), jnp.array([0.0, 1.0, 5.0, 9.0, 2.0, 0.1]))
    np.testing.assert_allclose(shares(replay, state), 1 / 6, atol=0.018)
    np.testing.assert_allclose(replay.sample(jax.random.key(0), state, 6).weights, 1.0)


def test_of_equal_places_the_largest_counts(small):
    state = small.add(small.init(), jnp.arange(6).reshape(3, 2))
    for order in ([4.0, 9.0, 1.0], [9.0, 1.0, 4.0]):
        after = small.set_priorities(state, jnp.array([2, 2, 2]), jnp.array(order))
        assert weights_of(after) == [1.0, 1.0, 3.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_bad_priority_counts_as_the_largest(small, bad):
    state = small.add(small.init(), jnp.arange(6).reshape(3, 2))
    state = small.set_priorities(state, jnp.array([0, 1]), jnp.array([4.0, 1.0]))
    state = small.set_priorities(state, jnp.array([2, 1]), jnp.array([bad, 0.25]))
    assert weights_of(state) == [2.0, 0.5, 2.0, 1.0, 1.0, 1.0]
    assert float(state.largest) == 2.0


def test_places_without_a_step_stay_at_zero(small):
    """Masked steps, and priorities for places that were never written."""
    state = small.add(small.init(), jnp.array([0, 1]), jnp.array([True, False]))
    state = small.set_priorities(state, jnp.array([1, 2, 5]), jnp.full(3, 9.0))
    assert weights_of(state) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    np.testing.assert_array_equal(small.sample(jax.random.key(0), state, 4).places, 0)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_sequences_start_only_where_they_are_whole(length):
    """After every add, single or in chunks, over and over: the starts with L steps, no others."""
    example = Experience(*[jnp.float32(0)] * 3, jnp.bool_(0), jnp.bool_(0), jnp.float32(0))
    replay = compiled(
        make_prioritised_replay(
            example, capacity=10, num_envs=2, alpha=1.0, beta=1.0, window=sequences(length)
        )
    )
    rng = np.random.default_rng(length)
    state, kept = replay.init(), [[], []]  # (time, place) of what each ring holds
    time = 0
    for chunk in (1, 1, 2, 1, 5, 1, 3, 4, 5, 1, 2):
        mask = rng.random((chunk, 2)) < 0.8
        times = np.broadcast_to(
            np.arange(time, time + chunk, dtype=np.float32)[:, None], (chunk, 2)
        )
        steps = Experience(times, times, times, times < 0, times < 0, times)
        state = replay.add(state, steps, mask)
        for env in range(2):
            kept[env] = (kept[env] + times[mask[:, env], env].tolist())[-5:]
        time += chunk
        weights = np.asarray(weights_at(state.tree, jnp.arange(10)))
        stored = np.asarray(state.ring.storage.reward)
        for env in range(2):
            starts = set(stored[env::2][weights[env::2] > 0].tolist())
            assert starts == set(kept[env][: max(len(kept[env]) - length + 1, 0)])


def test_n_step_windows_are_read_at_the_drawn_places():
    example = Experience(*[jnp.float32(0)] * 3, jnp.bool_(0), jnp.bool_(0), jnp.float32(0))
    replay = compiled(
        make_prioritised_replay(
            example, capacity=4, num_envs=1, alpha=1.0, beta=1.0, window=n_step(2, discount=0.5)
        )
    )
    x = jnp.arange(4.0)[:, None]
    state = replay.add(replay.init(), Experience(x, x, x, x < 0, x < 0, x + 1))
    state = replay.set_priorities(state, jnp.arange(4), jnp.array([0.0, 1.0, 0.0, 0.0]))
    batch = replay.sample(jax.random.key(0), state, 2).batch
    assert batch.reward.tolist() == [2.0, 2.0]  # 1 + 2/2
    assert batch.next_observation.tolist() == [3.0, 3.0]
    assert batch.discount.tolist() == [0.25, 0.25]


def test_seeds_side_by_side_and_bit_for_bit(small):
    def run(key):
        state = small.init()
        for i in range(4):
            state = small.add(state, jnp.array([2 * i, 2 * i + 1]))
            sample = small.sample(jax.random.fold_in(key, i), state, 3)
            state = small.set_priorities(state, sample.places, 1.0 + sample.batch)
        return state, sample

    keys = jax.random.split(jax.random.key(0), 2)
    together, run = jax.jit(jax.vmap(run))(keys), jax.jit(run)
    for s in range(2):
        alone = run(keys[s])
        jax.tree.map(lambda a, b, s=s: np.testing.assert_array_equal(a[s], b), together, alone)


def test_a_large_one_is_updated_in_place():
    extra = []
    for capacity in (10_000, 1_000_000):
        replay = make_prioritised_replay(
            jnp.zeros(3), capacity=capacity, num_envs=2, alpha=0.6, beta=0.4, memory_limit=10**12
        )

        def run(state, keys, replay=replay):
            def step(state, key):
                state = replay.add(state, jnp.ones((2, 3)))
                sample = replay.sample(key, state, 256)
                state = replay.set_priorities(state, sample.places, sample.batch[:, 0])
                return state, sample.weights.sum()

            return jax.lax.scan(step, state, keys)

        shapes = jax.eval_shape(replay.init)
        keys = jax.random.split(jax.random.key(0), 3)
        program = jax.jit(run, donate_argnums=0).lower(shapes, keys)
        # As outside the tests: the copies that this is about come with fusion.
        memory = program.compile({"xla_backend_optimization_level": 3}).memory_analysis()
        assert memory.alias_size_in_bytes >= replay.num_bytes
        extra.append(memory.temp_size_in_bytes)
    assert extra[1] < 200_000
