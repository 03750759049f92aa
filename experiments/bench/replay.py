"""What a sample costs as the replay grows: python -m experiments.bench.replay

HalfCheetah's shapes, minibatches of 256, full rings of 10 thousand, 100 thousand and a million
transitions. One jitted, donated call scans pairs of adding a step and sampling (prioritised: and
setting the priorities of what was sampled; learning: and a DDPG update from it, as in training,
where a small ring does not stay in the cache for lack of anything else). Rings take turns, and the
best round of each counts.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.configs import ddpg_halfcheetah
from rljax.algos import ddpg
from rljax.data.priority import make_prioritised_replay
from rljax.data.replay import ReplayState, make_replay
from rljax.data.windows import n_step
from rljax.types import Box, EnvSpec, Experience

CAPACITIES = (10_000, 100_000, 1_000_000)
PAIRS, ROUNDS, BATCH = 50, 30, 256
EXAMPLE = Experience(
    observation=jnp.zeros(17),
    action=jnp.zeros(6),
    reward=jnp.zeros(()),
    terminated=jnp.zeros((), bool),
    truncated=jnp.zeros((), bool),
    next_observation=jnp.zeros(17),
)

Pair = Callable[[jax.Array, Any, Experience], tuple[Any, Any]]  # key, state, step -> state, batch


def uniform(capacity: int, n: int) -> tuple[Callable[[], Any], Pair]:
    """`init`, and one add with one sample."""
    window = n_step(n, discount=0.99)
    replay = make_replay(EXAMPLE, capacity=capacity, num_envs=1, window=window)

    def pair(key: jax.Array, state: Any, step: Experience) -> tuple[Any, Any]:
        state = replay.add(state, step)
        return state, replay.sample(key, state, BATCH)

    return replay.init, pair


def prioritised(capacity: int) -> tuple[Callable[[], Any], Pair]:
    """`init`, and one add with one sample whose priorities then change."""
    replay = make_prioritised_replay(EXAMPLE, capacity=capacity, num_envs=1, alpha=0.6, beta=0.4)

    def pair(key: jax.Array, state: Any, step: Experience) -> tuple[Any, Any]:
        state = replay.add(state, step)
        sample = replay.sample(key, state, BATCH)
        return replay.set_priorities(state, sample.places, sample.batch.reward), sample

    return replay.init, pair


def learning(capacity: int) -> tuple[Callable[[], Any], Pair]:
    """`init`, and one add, one sample and one update with it."""
    config: Any = ddpg_halfcheetah.get_config()
    ends = np.ones(EXAMPLE.action.shape, np.float32)
    shape = EXAMPLE.observation.shape
    algo = ddpg.make(config, EnvSpec("", shape, np.float32, Box(-ends, ends), 1000), num_updates=1)
    init, sampled = uniform(capacity, 1)

    def pair(key: jax.Array, state: Any, step: Experience) -> tuple[Any, Any]:
        ring, learner = state
        ring, batch = sampled(key, ring, step)
        learner, metrics = algo.update(key, learner, batch, jnp.int32(0))
        return (ring, learner), metrics

    return lambda: (init(), algo.init(jax.random.key(0))), pair


KINDS: dict[str, Callable[[int], tuple[Callable[[], Any], Pair]]] = {
    "uniform": lambda capacity: uniform(capacity, 1),
    "3 steps": lambda capacity: uniform(capacity, 3),
    "prioritised": prioritised,
    "learning": learning,
}


def full(init: Callable[[], Any], capacity: int) -> Any:
    """A state with every place written; what stands there costs the same whatever it is."""

    def fill(state: Any) -> Any:
        if not isinstance(state, ReplayState):
            return state
        storage = jax.tree.map(lambda x: x + jnp.ones((), x.dtype), state.storage)  # touches it
        return ReplayState(storage, state.position, jnp.full_like(state.size, capacity))

    return jax.tree.map(fill, init(), is_leaf=lambda x: isinstance(x, ReplayState))


def compile_pairs(init: Callable[[], Any], pair: Pair) -> Callable[[Any, Any], Any]:
    def run(state: Any, key: jax.Array) -> tuple[Any, Any]:
        step = jax.tree.map(lambda leaf: jnp.ones((1, *leaf.shape), leaf.dtype), EXAMPLE)
        keys = jax.random.split(key, PAIRS)
        return jax.lax.scan(lambda state, key: pair(key, state, step), state, keys)

    shapes = jax.eval_shape(init), jax.eval_shape(jax.random.key, 0)
    return jax.jit(run, donate_argnums=0).lower(*shapes).compile()


def measure(kind: str, capacities: Sequence[int] = CAPACITIES) -> dict[int, float]:
    """Seconds of one pair by capacity, the best of the rounds."""
    runs, states = {}, {}
    for capacity in capacities:
        init, pair = KINDS[kind](capacity)
        runs[capacity], states[capacity] = compile_pairs(init, pair), full(init, capacity)
    best = dict.fromkeys(capacities, float("inf"))
    for number in range(ROUNDS):
        for capacity in capacities:
            key = jax.random.key(number)
            start = time.perf_counter()
            states[capacity], batches = runs[capacity](states[capacity], key)
            jax.block_until_ready(batches)
            best[capacity] = min(best[capacity], (time.perf_counter() - start) / PAIRS)
    return best


def table(samples: dict[str, dict[int, float]]) -> str:
    """Microseconds by kind and capacity, and how many times those of the smallest."""
    lines = [f"{'add and sample':16}" + "".join(f"{capacity:>12,}" for capacity in CAPACITIES)]
    for kind, seconds in samples.items():
        first = seconds[CAPACITIES[0]]
        lines.append(f"{kind:16}" + "".join(f"{1e6 * s:9.1f} us" for s in seconds.values()))
        lines.append(f"{'':16}" + "".join(f"{s / first:10.2f} x" for s in seconds.values()))
    return "\n".join(lines)


def main() -> int:
    print(table({kind: measure(kind) for kind in KINDS}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
