"""A vocabulary that is split over devices gives what one device gives, and sends only [N]."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from kernels_pallas import linear_policy_loss, linear_token_stats

N, D, V = 12, 6, 40
CHECKED = pytest.mark.parametrize("checked", [True, False])
ROW = pytest.mark.parametrize("implementation", ["reference", "xla"])


def mesh():
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "vocab"),
                axis_types=(AxisType.Auto,) * 2)  # fmt: skip


def arrays(dead=False):
    rng = np.random.default_rng(0)
    hidden, matrix, bias = (np.float32(rng.normal(size=s)) for s in ((N, D), (D, V), (V,)))
    tokens = rng.integers(0, V, N)
    tokens[:3] = -1, V, 19
    if dead:
        bias[:20] = -np.inf  # all of the first shard
    return hidden, matrix, bias, tokens, np.arange(N) % 4 != 2


def sharded(implementation, checked):
    data = PartitionSpec("data")
    columns = PartitionSpec(None, "vocab")

    def stats(hidden, matrix, bias, tokens, mask):
        return linear_token_stats(
            *(hidden, matrix, tokens), bias=bias, mask=mask, temperature=0.7, vocab_axis="vocab",
            implementation=implementation,
        )  # fmt: skip

    return jax.shard_map(
        stats,
        mesh=mesh(),
        in_specs=(data, columns, PartitionSpec("vocab"), data, data),
        out_specs=data,
        check_vma=checked,
    )


@ROW
@CHECKED
@pytest.mark.parametrize("dead", [False, True])
def test_shards_equal_one_device(implementation, checked, dead):
    hidden, matrix, bias, tokens, mask = arrays(dead)
    whole = partial(linear_token_stats, temperature=0.7, implementation="reference")
    many = sharded(implementation, checked)

    def total(function, hidden, matrix, bias):
        stats = function(hidden, matrix, bias)
        finite = jnp.where(stats.log_probs == -jnp.inf, 0.0, stats.log_probs)
        return jnp.sum(jnp.sin(finite) + stats.entropy + jnp.cos(stats.logsumexp)), stats

    def graded(function):
        grad = jax.value_and_grad(partial(total, function), (0, 1, 2), has_aux=True)
        return jax.jit(grad)(hidden, matrix, bias)

    got = graded(lambda h, w, b: many(h, w, b, tokens, mask))
    want = graded(lambda h, w, b: whole(h, w, tokens, bias=b, mask=mask))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), got, want)


@CHECKED
def test_forward_sends_three_rows_at_most_and_gathers_nothing(checked):
    many = jax.jit(sharded("xla", checked))
    text = many.lower(*arrays()).compile().as_text()
    reduced = re.findall(r"= (\S+) all-reduce", text)
    assert 1 <= len(reduced) <= 3, reduced
    for kind in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert kind not in text
    for shape in reduced:  # [N] of one device, or a few of them
        assert re.match(r"f32\[(3,|1,)?6\]", shape), shape


@CHECKED
def test_losses_of_shards(checked):
    hidden, matrix, bias, tokens, _ = arrays()
    tokens = np.clip(tokens, 0, V - 1)
    weights = np.linspace(-1, 2, N, dtype=np.float32)

    def each(log_prob, entropy, weight):
        return -weight * log_prob - 0.1 * entropy

    def loss(hidden, matrix, bias, weights, axis=None, tokens=tokens):
        return linear_policy_loss(
            *(hidden, matrix, tokens, weights, each), bias=bias, vocab_axis=axis
        )[0]

    data = PartitionSpec("data")

    def part(hidden, matrix, bias, weights, tokens):
        return loss(hidden, matrix, bias, weights, "vocab", tokens)[None]

    many = jax.shard_map(
        part,
        mesh=mesh(),
        in_specs=(data, PartitionSpec(None, "vocab"), PartitionSpec("vocab"), data, data),
        out_specs=data,
        check_vma=checked,
    )
    given = hidden, matrix, bias, weights
    got = jax.jit(jax.value_and_grad(lambda *x: jnp.sum(many(*x, tokens)), (0, 1, 2, 3)))(*given)
    want = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(*given)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), got, want)


@CHECKED
def test_the_fast_mode_where_rows_are_split(checked):
    hidden, matrix, bias, tokens, mask = arrays()
    tokens = np.clip(tokens, 0, V - 1)
    data, whole = PartitionSpec("data"), PartitionSpec()

    def loss(hidden, matrix, bias, tokens, mask):
        each = lambda log_prob, entropy, _: jnp.square(log_prob) - entropy  # noqa: E731
        return linear_policy_loss(hidden, matrix, tokens, None, each, bias=bias, mask=mask)[0]

    many = jax.shard_map(
        lambda *x: loss(*x)[None],
        mesh=mesh(),
        in_specs=(data, whole, whole, data, data),
        out_specs=data,
        check_vma=checked,
    )
    given = hidden, matrix, bias
    got = jax.jit(jax.value_and_grad(lambda *x: jnp.sum(many(*x, tokens, mask)), (0, 1, 2)))(*given)
    want = jax.jit(jax.value_and_grad(lambda *x: loss(*x, tokens, mask), (0, 1, 2)))(*given)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), got, want)
