"""Each algorithm learns. The line world: past the worst place to the best, 985 in 100 steps."""

import numpy as np
import pytest

from experiments.configs import defaults
from rljax import envs

from .small import ALGOS, shared_loop, small_loop


@pytest.mark.parametrize("name", ALGOS)
def test_line_world(name):
    """From a policy that stays at the left wall (-100) to -5 once and 99 times 10."""
    loop = shared_loop(name)
    state = loop.init()
    assert loop.evaluate(state)["eval/return_mean"] == -100.0  # all logits 0: the first action
    state, first = loop.advance(state, 50)
    state, _ = loop.advance(state, 50)
    state, last = loop.advance(state, 20)
    assert loop.evaluate(state)["eval/return_mean"] == 985.0
    assert last["episode/return_sum"].sum() / last["episode/count"].sum() > 850
    if name == "trpo":  # max_kl is 0.01
        assert (first["policy/kl"] <= 0.01).all()
        assert first["trpo/accepted"].mean() > 0.5
    for metrics in (first, last):
        assert all(np.isfinite(x).all() for x in metrics.values())


CARTPOLE = {
    # learning rate, environments, steps of an unroll, updates, mean return to reach;
    # fields of the algorithm
    "ppo": (2.5e-3, 8, 128, 100, 300, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CARTPOLE)
def test_cartpole(name):
    """Mean over six seeds of an evaluated return that is 500 at most.

    Measured over 24 seeds: before 19 to 119 (some seeds balance by luck), after at least 377, where
    a seed or two still stands badly. The others learn it in `experiments/baselines`; here the line
    world has to do.
    """
    rate, num_envs, length, updates, wanted, changes = CARTPOLE[name]
    config = defaults.run("CartPole-v1")
    config.algo = getattr(defaults, name)()
    config.algo.update(changes)
    config.net.hidden_sizes = (32, 32)
    config.optimizer.learning_rate = rate
    config.optimizer.anneal = True
    config.optimizer.max_grad_norm = 0.5
    config.env.num_envs, config.unroll_length, config.log_interval = num_envs, length, updates
    config.eval_episodes = 20
    loop = small_loop(config, envs.make("CartPole-v1"), num_updates=updates, num_seeds=6)
    state = loop.init()
    assert loop.evaluate(state)["eval/return_mean"].mean() < 200
    state, _ = loop.advance(state, updates)
    after = loop.evaluate(state)["eval/return_mean"]
    assert after.mean() > wanted, after
