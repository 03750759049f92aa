"""How near PPO on a MuJoCo environment comes to the speed of the simulator alone.

python -m experiments.bench.host --config=experiments/configs/ppo_halfcheetah.py --workdir=unused

Rounds of training (acting, stepping and learning) and of stepping the same kind of vector
environment with random actions take turns; printed is the ratio of the best of each.
"""

import sys
import time
from collections.abc import Sequence

import numpy as np

from experiments.build import build
from experiments.cli import parse
from experiments.run import fail
from rljax.envs.gymnasium import make_host
from rljax.envs.mujoco import quiet_models

ROUNDS = 5


def main(argv: Sequence[str]) -> int:
    import gymnasium

    try:
        config, _ = parse(argv)
        loop = build(config).loop
    except ValueError as error:
        return fail(error, 2)
    num_envs, length = config.env.num_envs, config.unroll_length
    ours = make_host(config.env.name, num_envs, workers=config.num_workers)
    ours.reset(0)
    with quiet_models(config.env.name):
        theirs = gymnasium.make_vec(config.env.name, num_envs=num_envs, vectorization_mode="sync")
    theirs.reset(seed=0)
    space = theirs.action_space
    low, high = (np.float32(bound) for bound in (space.low, space.high))  # pyright: ignore
    generator = np.random.default_rng(0)
    state, _ = loop.advance(loop.init(), 1)
    best = {"gymnasium alone": 0.0, "adaptor alone": 0.0, "training": 0.0}

    def note(name: str, start: float, steps: int) -> None:
        best[name] = max(best[name], steps / (time.perf_counter() - start))

    for _ in range(ROUNDS):
        actions = generator.uniform(low, high, (length, *low.shape)).astype(np.float32)
        for name, step in (("gymnasium alone", theirs.step), ("adaptor alone", ours.step)):
            start = time.perf_counter()
            for action in actions:
                step(action)
            note(name, start, num_envs * length)
        start = time.perf_counter()
        state, _ = loop.advance(state, 1)
        note("training", start, loop.steps_per_update)
    for name, rate in best.items():
        print(f"{name:16}{rate:10,.0f} steps/s{rate / best['gymnasium alone']:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
