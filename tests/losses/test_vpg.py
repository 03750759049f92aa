"""Policy-gradient weights against sums written out per episode, and exact policy gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses.vpg import vpg_loss, vpg_weights

KINDS = ("return", "reward_to_go", "reward_to_go_baseline", "advantage")


def test_loss_and_gradient_by_hand():
    # -mean(logp A) = -(-1·2 + -2·-1 + -0.3·0.5)/3 = 0.15/3 = 0.05; its gradient is -A/3.
    log_probs, advantages = jnp.array([-1.0, -2.0, -0.3]), jnp.array([2.0, -1.0, 0.5])
    (loss, metrics), grad = jax.value_and_grad(vpg_loss, has_aux=True)(log_probs, advantages)
    np.testing.assert_allclose(loss, 0.05, rtol=1e-5)
    np.testing.assert_allclose(grad, [-2 / 3, 1 / 3, -1 / 6], rtol=1e-6)
    assert metrics["loss/policy"] == loss


def test_token_mean_through_mask_and_denominator():
    # Losses per token are -log_probs where the advantage is 1. Kept: 1, 2 | 3, 3, 3, 3 = 15.
    # Mean over the 6 kept tokens 15/6; per row (2 rows) 15/2; over 2 rows of 8 tokens 15/16.
    log_probs = -jnp.array([[1.0, 2.0, 9.0, 9.0, 9.0], [3.0, 3.0, 3.0, 3.0, 9.0]])
    mask = jnp.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    one = jnp.ones((2, 5))
    for denominator, wanted in ((None, 2.5), (2, 7.5), (16, 0.9375)):
        loss, _ = vpg_loss(log_probs, one, mask, denominator)
        np.testing.assert_allclose(loss, wanted, rtol=1e-6)


def test_micro_batches_of_unequal_length_weigh_every_token_alike():
    # One token of loss 2, then four of 1, 1, 1, 3: (2 + 6)/5 = 1.6, each token weighs 1/5.
    # The mean of the two means would be (2 + 1.5)/2 = 1.75.
    parts = (jnp.array([-2.0]), jnp.array([-1.0, -1.0, -1.0, -3.0]))

    def total(parts):
        return sum(vpg_loss(p, jnp.ones_like(p), denominator=5)[0] for p in parts)

    loss, grads = jax.value_and_grad(total)(parts)
    np.testing.assert_allclose(loss, 1.6, rtol=1e-6)
    np.testing.assert_allclose(jnp.concatenate(grads), [-0.2] * 5, rtol=1e-6)


def test_batch_without_a_kept_token_is_zero_down_to_the_logits():
    logits = jnp.array([[[1.0, 0.0], [0.0, 2.0]]])

    def loss_fn(logits):
        log_probs = jax.nn.log_softmax(logits)[:, jnp.arange(2), jnp.arange(2)]
        return vpg_loss(log_probs, jnp.ones((1, 2)), jnp.zeros((1, 2), jnp.int32))[0]

    loss, grad = jax.value_and_grad(loss_fn)(logits)
    assert loss == 0.0
    np.testing.assert_array_equal(grad, np.zeros((1, 2, 2)))


def test_weights_by_hand():
    # γ = 0.5. Episode one is steps 0, 1, 2 and terminates; episode two is steps 3, 4 and goes on.
    # Without a value function: one is 4 + 2/2 + 8/4 = 7, 2 + 8/2 = 6, 8; two is 1 + 6/2 = 4, 6.
    rewards = jnp.array([4.0, 2.0, 8.0, 1.0, 6.0])
    terminated, truncated = jnp.array([0, 0, 1, 0, 0]), jnp.zeros(5)
    common = {"terminated": terminated, "truncated": truncated, "discount": 0.5}
    to_go = vpg_weights(rewards, **common, kind="reward_to_go")
    np.testing.assert_allclose(to_go, [7, 6, 8, 4, 6], rtol=1e-6)
    whole = vpg_weights(rewards, **common, kind="return")
    np.testing.assert_allclose(whole, [7, 7, 7, 4, 4], rtol=1e-6)

    # With next values 100 at step 2 (terminated: not read) and 10 after step 4: 6 + 10/2 = 11,
    # 1 + 11/2 = 6.5. Baseline 1, 1, 1, 2, 3. λ = 0: A_t = r + next/2 - V, here
    # 4+1/2-1, 2+1/2-1, 8-1, 1+3/2-2, 6+10/2-3.
    values = jnp.array([1.0, 1.0, 1.0, 2.0, 3.0])
    common |= {"values": values, "next_values": jnp.array([1.0, 1.0, 100.0, 3.0, 10.0])}
    for kind, wanted in (
        ("return", [7, 7, 7, 6.5, 6.5]),
        ("reward_to_go", [7, 6, 8, 6.5, 11]),
        ("reward_to_go_baseline", [6, 5, 7, 4.5, 8]),
    ):
        actual = vpg_weights(rewards, **common, kind=kind)
        np.testing.assert_allclose(actual, wanted, rtol=1e-6, err_msg=kind)
    actual = vpg_weights(rewards, **common, kind="advantage", lambda_=0.0)
    np.testing.assert_allclose(actual, [3.5, 1.5, 7.0, 0.5, 8.0], rtol=1e-6)


def weights_of_one_episode(r, v, bootstrap, kind, discount, lambda_):
    """Sums over the steps of one episode, float64; v holds V(s_0) ... and bootstrap V(s_end)."""
    n = len(r)
    r_and_bootstrap = [*r, bootstrap]
    to_go = [
        sum(discount ** (k - t) * r_and_bootstrap[k] for k in range(t, n + 1)) for t in range(n)
    ]
    if kind == "return":
        return [to_go[0]] * n
    if kind == "reward_to_go":
        return to_go
    if kind == "reward_to_go_baseline":
        return [g - b for g, b in zip(to_go, v)]
    following = [*v[1:], bootstrap]
    delta = [r[t] + discount * following[t] - v[t] for t in range(n)]
    decay = discount * lambda_
    return [sum(decay ** (k - t) * delta[k] for k in range(t, n)) for t in range(n)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_equal_sums_per_episode(kind, masked):
    """Episodes of any length, ends of either sort (or both), several in one column."""
    rng = np.random.default_rng(3)
    num_steps, width, lambda_ = 17, 12, 0.7
    shape = (num_steps, width)
    rewards, values = rng.normal(size=(2, *shape))
    terminated, truncated = rng.random((2, *shape)) < 0.2
    terminated[:, 0] = truncated[:, 0] = False  # one column without an end
    terminated[-1, 1], truncated[-1, 2] = True, True  # ends at the end of the array
    mask = np.ones(shape, bool)
    if masked:  # the call after an end was spent on the reset; sometimes in mid-episode, too
        ended = (terminated | truncated)[:-1]
        mask[1:] = ~((ended | (rng.random(ended.shape) < 0.1)) & (rng.random(ended.shape) < 0.7))
        mask[0, 3] = False
    discounts = np.linspace(0.3, 1.0, width)

    # V(s_{t+1}) is the next step's value inside an episode and a number of its own at a cut.
    next_values = rng.normal(size=shape)
    inside = ~(terminated | truncated)[:-1] & mask[1:] & mask[:-1]
    next_values[:-1][inside] = values[1:][inside]

    for bootstrap in (True, False) if kind != "advantage" else (True,):
        wanted = np.zeros(shape)
        for b in range(width):
            start = 0
            for t in range(num_steps):
                last = t == num_steps - 1
                if not mask[t, b]:
                    start = t + 1
                elif terminated[t, b] or truncated[t, b] or last or not mask[t + 1, b]:
                    steps = slice(start, t + 1)
                    end_value = 0.0 if terminated[t, b] or not bootstrap else next_values[t, b]
                    episode = (rewards[steps, b], values[steps, b], end_value)
                    wanted[steps, b] = weights_of_one_episode(*episode, kind, discounts[b], lambda_)
                    start = t + 1

        poisoned_next = np.where(terminated | ~mask, np.nan, next_values)
        actual = jax.jit(
            lambda r, v, nv: vpg_weights(
                r,
                terminated,
                truncated,
                v,
                nv,
                mask if masked else None,
                kind=kind,
                discount=np.float32(discounts),
                lambda_=lambda_,
            )
        )(
            np.float32(np.where(mask, rewards, np.inf)),
            np.float32(np.where(mask, values, np.nan)),
            np.float32(poisoned_next) if bootstrap else None,
        )
        assert actual.dtype == jnp.float32
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-5)


def test_advantage_with_lambda_one_is_reward_to_go_minus_baseline():
    rng = np.random.default_rng(0)
    rewards, values = jnp.asarray(rng.normal(size=(2, 9)), jnp.float32)
    next_values = jnp.append(values[1:], 0.5)
    terminated, truncated = jnp.zeros(9), jnp.zeros(9, bool)
    arrays = (rewards, terminated, truncated, values, next_values)
    baseline, advantage = (
        vpg_weights(*arrays, kind=kind, discount=0.9, lambda_=1.0) for kind in KINDS[2:]
    )
    np.testing.assert_allclose(advantage, baseline, rtol=1e-5, atol=1e-6)


def test_every_kind_gives_the_exact_policy_gradient():
    """All trajectories of a chain of 3 positions, 2 actions, 3 steps, weighted by probability.

    With a discount the return of the whole trajectory is still exact; the others are compared
    at γ = 1, where the state's weight γ^t, which they leave out, is 1. The baseline is arbitrary:
    any function of the state leaves the expected gradient as it is; the advantage with the true
    values does so for every λ.
    """
    logits = jnp.array([[0.3, -0.5], [-0.2, 0.1], [0.7, 0.4]])
    num_steps = 3
    table = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 2.0]])  # reward of state, action
    actions = np.array(list(itertools.product([0, 1], repeat=num_steps))).T  # [T, 8]
    states = np.zeros_like(actions)
    for t in range(num_steps - 1):  # action 1 moves on, action 0 falls back to the start
        states[t + 1] = np.where(actions[t] == 1, np.minimum(states[t] + 1, 2), 0)
    rewards = np.float32(table[states, actions])
    terminated = np.zeros(actions.shape, bool)
    terminated[-1] = True
    no = np.zeros_like(terminated)

    # The true V_t(s) at γ = 1, by backward induction.
    probs = np.asarray(jax.nn.softmax(logits), np.float64)
    true = np.zeros((num_steps + 1, 3))
    for t in reversed(range(num_steps)):
        after = [[true[t + 1, 0], true[t + 1, min(s + 1, 2)]] for s in range(3)]
        true[t] = (probs * (table + np.array(after))).sum(axis=1)
    values = np.float32(np.stack([true[t, states[t]] for t in range(num_steps)]))
    next_values = np.concatenate([values[1:], np.zeros_like(values[:1])])
    baseline = np.float32([5.0, -3.0, 2.0])[states]

    def log_probs(logits):
        return jax.nn.log_softmax(logits)[states, actions]

    weight = jnp.exp(log_probs(logits).sum(axis=0))  # of each trajectory, held constant

    def expected_return(logits, discount):
        total = (rewards * discount ** np.arange(num_steps, dtype=np.float32)[:, None]).sum(axis=0)
        return jnp.sum(jnp.exp(log_probs(logits).sum(axis=0)) * total)

    weights_of = jax.jit(vpg_weights, static_argnames="kind")
    policy_gradient = jax.jit(jax.grad(lambda x, w: vpg_loss(log_probs(x), w, denominator=1)[0]))
    return_gradient = jax.jit(jax.grad(expected_return))
    for kind, discount, v in (
        ("return", 0.8, None),
        ("return", 1.0, None),
        ("reward_to_go", 1.0, None),
        ("reward_to_go_baseline", 1.0, baseline),
        ("advantage", 1.0, values),
    ):
        arrays = (rewards, terminated, no, v, next_values)
        weights = weights_of(*arrays, kind=kind, discount=discount, lambda_=0.6)
        actual = policy_gradient(logits, weights * jnp.broadcast_to(weight, weights.shape))
        wanted = -return_gradient(logits, discount)
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5, err_msg=kind)


@pytest.mark.errors
def test_bad_arguments_of_weights():
    x, no = jnp.zeros((4, 2)), jnp.zeros((4, 2), bool)
    with pytest.raises(ValueError, match=r"one of return, .*'to_go'"):
        vpg_weights(x, no, no, kind="to_go", discount=0.9)
    with pytest.raises(ValueError, match="'reward_to_go_baseline' needs values, got None"):
        vpg_weights(x, no, no, kind="reward_to_go_baseline", discount=0.9)
    with pytest.raises(ValueError, match="'advantage' needs next_values, got None"):
        vpg_weights(x, no, no, x, kind="advantage", discount=0.9)
    with pytest.raises(ValueError, match="'advantage' needs values and next_values, got None"):
        vpg_weights(x, no, no, kind="advantage", discount=0.9)
    with pytest.raises(ValueError, match=r"\(4, 2\).*\(4,\)"):
        vpg_weights(x, no[:, 0], no, kind="return", discount=0.9)
    with pytest.raises(ValueError, match=r"discount .*\(3,\)"):
        vpg_weights(x, no, no, kind="return", discount=jnp.ones(3))
