"""One test for every environment and adaptor: all obey the same `Transition`.

Each case is driven once; the tests look at the recording.
"""

import gymnasium
import numpy as np
import pytest

from rljax.envs import PURE_JAX
from rljax.envs.gymnasium import env_seeds
from rljax.envs.mujoco import quiet_models
from rljax.types import Box

from .recordings import CASES, ENDLESS, LIMITS, MODES, SEED, B, Case, drive, open_runner, record

all_cases = pytest.mark.parametrize("case", CASES, ids=str)
HOST = ("sync", "async", "workers")
host_cases = pytest.mark.parametrize("case", [c for c in CASES if c.how in HOST], ids=str)


@all_cases
def test_shapes_and_dtypes_match_the_spec(case):
    spec, first, _, _, steps = record(case)
    assert spec.name == case.name
    assert first.shape == (B, *spec.observation_shape)
    for x in (first, steps.observation, steps.next_observation):
        assert x.dtype == spec.observation_dtype
        assert x.shape[-1 - len(spec.observation_shape) :] == (B, *spec.observation_shape)
    floats, flags = ("reward", "episode_return"), ("terminated", "truncated", "mask")
    for fields, dtype in ((floats, np.float32), (flags, np.bool_), (("episode_length",), np.int32)):
        for field in fields:
            assert getattr(steps, field).dtype == dtype, field
            assert getattr(steps, field).shape == (case.num_steps, B), field
    if isinstance(spec.action_space, Box):
        assert spec.action_space.low.dtype == spec.action_space.high.dtype == np.float32


@all_cases
def test_next_observation_is_the_one_before_the_reset(case):
    steps = record(case).steps
    ended = steps.terminated | steps.truncated
    assert ended.any()
    for b in range(B):
        for t in range(case.num_steps):
            final, fresh = steps.next_observation[t, b], steps.observation[t, b]
            if ended[t, b] and case.mode == "next_step":
                np.testing.assert_array_equal(fresh, final)  # the reset comes with the next call
            elif ended[t, b] and not (case.name == "LineWorld-v0" and final[2] == 1):
                assert not np.array_equal(final, fresh)  # the line world may end where it starts
            elif not ended[t, b]:
                np.testing.assert_array_equal(final, fresh)


@all_cases
def test_only_next_step_spends_calls_and_only_after_an_end(case):
    steps = record(case).steps
    ended = steps.terminated | steps.truncated
    spent = np.zeros((case.num_steps, B), np.bool_)
    if case.mode == "next_step":
        spent[1:] = ended[:-1]
    np.testing.assert_array_equal(~steps.mask, spent)
    assert not ended[spent].any()
    assert not steps.reward[spent].any()


@all_cases
def test_statistics_equal_a_hand_count(case):
    steps = record(case).steps
    num_ends = 0
    for b in range(B):
        total, length = 0.0, 0
        for t in range(case.num_steps):
            if not steps.mask[t, b]:
                continue
            total, length = total + float(steps.reward[t, b]), length + 1
            if steps.terminated[t, b] or steps.truncated[t, b]:
                assert steps.episode_length[t, b] == length
                # The adaptor adds up float64 rewards, this loop those rounded to float32.
                np.testing.assert_allclose(steps.episode_return[t, b], total, rtol=1e-5, atol=1e-4)
                total, length, num_ends = 0.0, 0, num_ends + 1
    assert num_ends >= 2


@all_cases
def test_truncated_at_the_limit_and_only_there(case):
    spec, _, _, _, steps = record(case)
    options = dict(case.options)
    limit = options.get("max_episode_steps", LIMITS.get(case.name, 1000))
    assert spec.max_episode_steps == limit
    ended = steps.terminated | steps.truncated
    assert (steps.episode_length[ended] <= spec.max_episode_steps).all()
    # No step is both: an episode of these that falls does so long before its limit.
    np.testing.assert_array_equal(
        steps.truncated[ended], steps.episode_length[ended] == spec.max_episode_steps
    )
    np.testing.assert_array_equal(steps.terminated[ended], ~steps.truncated[ended])
    endless = case.name in ENDLESS or "terminate_when_unhealthy" in options
    assert steps.terminated.any() == (not endless)
    assert steps.truncated.any() == (case.num_steps > spec.max_episode_steps)


@all_cases
def test_same_seed_same_data(case):
    first, num_steps = record(case).first, 30
    runner = open_runner(case)
    runner.reset(SEED + 1)
    drive(runner, first, 3)  # a reset in the middle of an episode starts all over
    again = runner.reset(SEED)
    np.testing.assert_array_equal(again, first)
    _, actions, steps = drive(runner, again, num_steps)
    np.testing.assert_array_equal(actions, record(case).actions[:num_steps])
    for ours, theirs in zip(steps, record(case).steps, strict=True):
        np.testing.assert_array_equal(ours, theirs[:num_steps])
    if case.name != "LineWorld-v0":  # which always starts at 0
        assert not np.array_equal(runner.reset(SEED + 1), first)
        assert len({row.tobytes() for row in first}) == B
    runner.close()


@host_cases
def test_equal_to_the_raw_single_environments(case):
    """Each environment on its own, reset by hand, gives every number, the statistics too."""
    spec, first, _, actions, steps = record(case)
    for b, seed in enumerate(env_seeds(SEED, B)):
        with quiet_models(case.name):
            raw = gymnasium.make(case.name, disable_env_checker=True, **dict(case.options))
        observation, _ = raw.reset(seed=seed)
        np.testing.assert_array_equal(observation.astype(np.float32), first[b])
        total, length = 0.0, 0
        for t in range(case.num_steps):
            if not steps.mask[t, b]:
                continue
            action = actions[t, b]
            if isinstance(spec.action_space, Box):
                action = np.minimum(np.maximum(action, raw.action_space.low), raw.action_space.high)
            observation, reward, terminated, truncated, _ = raw.step(action)
            total, length = total + float(reward), length + 1
            np.testing.assert_array_equal(
                steps.next_observation[t, b], observation.astype(np.float32)
            )
            assert steps.reward[t, b] == np.float32(reward)
            assert (steps.terminated[t, b], steps.truncated[t, b]) == (terminated, truncated)
            if terminated or truncated:
                assert steps.episode_return[t, b] == np.float32(total)
                assert steps.episode_length[t, b] == length
                observation, _ = raw.reset()
                total, length = 0.0, 0
                began = t + (case.mode == "next_step")
                if began < case.num_steps:
                    np.testing.assert_array_equal(
                        steps.observation[began, b], observation.astype(np.float32)
                    )
        raw.close()


@pytest.mark.parametrize("name", sorted({c.name for c in CASES if c.how == "sync"}))
def test_the_modes_give_the_same_episodes(name):
    def taken(case):
        """Per environment, the numbers of the steps that were really taken."""
        steps = record(case).steps
        fields = (steps.next_observation, steps.reward, steps.terminated, steps.truncated)
        return [[field[steps.mask[:, b], b] for field in fields] for b in range(B)]

    cases = [case for case in CASES if case[:2] == (name, "sync")]
    cases = [case for case in cases if case.options == cases[0].options]
    assert len(cases) == len({case.mode for case in cases}) >= 2
    runs = [taken(case) for case in cases]
    for b in range(B):
        shortest = min(len(run[b][0]) for run in runs)
        assert shortest > 50
        for run in runs[1:]:
            for ours, reference in zip(run[b], runs[0][b], strict=True):
                np.testing.assert_array_equal(ours[:shortest], reference[:shortest])


@pytest.mark.parametrize(
    ("how", "mode"), [*(("async", mode) for mode in MODES), ("workers", "same_step")]
)
def test_worker_processes_give_the_same_data(how, mode):
    ours = record(Case("CartPole-v1", how, mode, 60)).steps
    reference = record(Case("CartPole-v1", "sync", mode, 520)).steps
    for x, y in zip(ours, reference, strict=True):
        np.testing.assert_array_equal(x, y[:60])


def test_every_pure_jax_environment_is_a_case():
    assert set(PURE_JAX) == {case.name for case in CASES if case.how == "jax"}
