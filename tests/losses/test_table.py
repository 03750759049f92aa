"""What every loss must do, whatever it computes; the losses are the rows of table.py."""

import inspect
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .table import ROWS, Inputs, Row

every_loss = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


class Result(NamedTuple):
    loss: jax.Array
    metrics: dict
    grads: dict  # of every float argument


def evaluate(row: Row, arrays: Inputs, mask, denominator=None) -> Result:
    floats = {name: x for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}

    def loss_fn(floats):
        arguments = {**arrays, **floats, **row.settings}
        return row.loss(**arguments, mask=mask, denominator=denominator)

    (loss, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(floats)
    return Result(loss, metrics, grads)


COMPILED = {row.name: jax.jit(partial(evaluate, row)) for row in ROWS}


def compiled(row: Row):
    """evaluate for this row, compiled once for all tests that use the same shapes and dtypes."""
    return COMPILED[row.name]


def example(row: Row) -> tuple[Inputs, np.ndarray]:
    """Random arguments, and a mask whose first quarter (one device's share) is empty."""
    rng = np.random.default_rng(7)
    arrays = row.make(rng, row.shape)
    mask = rng.random(row.shape) < 0.6
    mask[: row.shape[0] // 4] = False
    mask[row.shape[0] // 2] = True
    return arrays, mask


def assert_close(actual: Result, wanted: Result, rtol=2e-6, atol=1e-7) -> None:
    def compare(a, w):
        np.testing.assert_allclose(np.float32(a), np.float32(w), rtol=rtol, atol=atol)

    jax.tree.map(compare, actual, wanted)


def batched(row: Row, arrays: Inputs) -> Inputs:
    return {name: x for name, x in arrays.items() if name not in row.shared}


def take(row: Row, arrays: Inputs, index) -> Inputs:
    """The arguments at `index` of the first axis."""
    return {name: x if name in row.shared else x[index] for name, x in arrays.items()}


def poisoned(row: Row, arrays: Inputs, mask: np.ndarray) -> Inputs:
    """NaN, inf and -inf in turn (numbers out of any range for integers) wherever masked."""
    result = dict(arrays)
    for name, x in batched(row, arrays).items():
        rows_only = x.shape[: mask.ndim] != mask.shape
        masked = ~(mask.reshape(len(mask), -1).any(axis=1) if rows_only else mask)
        poison = (-(2**31), 2**31 - 1) if x.dtype.kind in "iu" else (np.nan, np.inf, -np.inf)
        result[name] = x.copy()
        result[name][masked] = np.resize(poison, x[masked].shape)
    return result


@every_loss
def test_row_is_complete(row):
    arrays, mask = example(row)
    floats = [name for name, x in arrays.items() if x.dtype.kind == "f"]
    assert sorted([*row.trained, *row.held]) == sorted(floats)
    assert [other.name for other in ROWS].count(row.name) == 1
    assert 0 < np.count_nonzero(mask) < mask.size


@every_loss
def test_jit_equals_eager(row):
    arrays, mask = example(row)
    assert_close(compiled(row)(arrays, mask), evaluate(row, arrays, mask))


@every_loss
def test_gradients_are_finite_and_flow_only_where_they_should(row):
    arrays, mask = example(row)
    for mask_or_none in (mask, None):
        grads = compiled(row)(arrays, mask_or_none).grads
        for name in row.trained:
            assert np.isfinite(grads[name]).all(), name
            assert np.any(grads[name]), name
        for name in row.held:
            np.testing.assert_array_equal(grads[name], 0.0, err_msg=name)


@every_loss
def test_loss_and_metrics_are_float32_scalars(row):
    arrays, mask = example(row)
    loss, metrics, _ = evaluate(row, arrays, mask)
    assert type(metrics) is dict
    assert all(type(name) is str for name in metrics)
    for name, x in {"loss": loss, **metrics}.items():
        assert (x.shape, x.dtype) == ((), jnp.float32), name
        assert np.isfinite(x), name


@every_loss
def test_masked_elements_may_be_anything(row):
    arrays, mask = example(row)
    bad = poisoned(row, arrays, mask)
    assert any(not np.isfinite(x).all() for x in bad.values() if x.dtype.kind == "f")
    function = compiled(row)
    jax.tree.map(np.testing.assert_array_equal, function(bad, mask), function(arrays, mask))
    for name, grad in batched(row, function(bad, mask).grads).items():
        if grad.shape[: mask.ndim] == mask.shape:
            np.testing.assert_array_equal(grad[~mask], 0.0, err_msg=name)


@every_loss
@pytest.mark.parametrize("denominator", [None, 0.0, 5.0])
def test_empty_mask_gives_zero(row, denominator):
    arrays, mask = example(row)
    mask = np.zeros_like(mask)
    result = compiled(row)(poisoned(row, arrays, mask), mask, denominator)
    assert result.loss == 0.0
    for name, grad in result.grads.items():
        np.testing.assert_array_equal(grad, 0.0, err_msg=name)
    for name, metric in result.metrics.items():
        assert np.isfinite(metric), name


@every_loss
def test_mask_may_have_any_dtype_and_none_keeps_all(row):
    arrays, mask = example(row)
    function = compiled(row)
    wanted = function(arrays, mask)
    for dtype in (np.int8, np.float32):
        assert_close(function(arrays, mask.astype(dtype)), wanted)
    assert_close(function(arrays, None), function(arrays, np.ones_like(mask)))


@every_loss
def test_order_of_the_batch_does_not_matter(row):
    arrays, mask = example(row)
    order = np.random.default_rng(1).permutation(len(mask))
    function = compiled(row)
    actual, wanted = function(take(row, arrays, order), mask[order]), function(arrays, mask)
    assert_close(actual, wanted._replace(grads=take(row, wanted.grads, order)))


@every_loss
def test_default_denominator_is_the_count_and_divides_the_sum(row):
    arrays, mask = example(row)
    function, count = compiled(row), float(row.count(mask))
    wanted = function(arrays, mask)
    assert_close(function(arrays, mask, count), wanted)
    half = function(arrays, mask, 2.0 * count)
    np.testing.assert_allclose(2.0 * half.loss, wanted.loss, rtol=2e-6)
    for name in wanted.grads:
        np.testing.assert_allclose(2.0 * half.grads[name], wanted.grads[name], rtol=2e-6)


@every_loss
def test_micro_batches_add_up(row):
    arrays, mask = example(row)
    count, cuts = row.count(mask), [0, 1, 6, len(mask)]  # of unequal size; the first one is empty
    whole = compiled(row)(arrays, mask)

    def split(arrays: Inputs) -> Result:
        parts = [slice(a, b) for a, b in pairwise(cuts)]
        results = [evaluate(row, take(row, arrays, p), mask[p], float(count)) for p in parts]
        total = jax.tree.map(lambda *x: sum(x), *[(r.loss, r.metrics) for r in results])
        grads = {
            name: sum(r.grads[name] for r in results)
            if name in row.shared
            else jnp.concatenate([r.grads[name] for r in results])
            for name in results[0].grads
        }
        return Result(*total, grads)

    actual = jax.jit(split)(arrays)
    for name in row.local_metrics:
        actual.metrics[name] = whole.metrics[name]
    assert_close(actual, whole)


@every_loss
def test_bfloat16_goes_in_and_float32_maths_comes_out(row):
    arrays, mask = example(row)
    floats = {name for name, x in arrays.items() if x.dtype.kind == "f"}
    half = {n: x.astype(jnp.bfloat16) if n in floats else x for n, x in arrays.items()}
    same = {n: x.astype(np.float32) if n in floats else x for n, x in half.items()}
    function = compiled(row)
    actual, wanted = function(half, mask), function(same, mask)
    for x in (actual.loss, *actual.metrics.values()):
        assert x.dtype == jnp.float32
    assert_close(actual._replace(grads={}), wanted._replace(grads={}))
    assert_close(actual, wanted, rtol=8e-3)  # a bfloat16 argument gets a bfloat16 gradient


@every_loss
def test_four_devices_equal_one(row):
    arrays, mask = example(row)
    mesh = Mesh(np.asarray(jax.devices()[:4]), ("data",))
    spread, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["data"], []))
    sharded = {
        n: jax.device_put(x, whole if n in row.shared else spread) for n, x in arrays.items()
    }
    function = compiled(row)
    actual = function(sharded, jax.device_put(mask, spread))
    for name in set(row.trained) - set(row.shared):
        assert len(actual.grads[name].sharding.device_set) == 4, name
    assert_close(actual, function(arrays, mask))


@every_loss
@pytest.mark.errors
def test_wrong_shapes_raise_and_name_both(row):
    """(T, 1) against (T,), the one that would broadcast in silence to (T, T), is among them."""
    arrays, mask = example(row)
    optional_mask = inspect.signature(row.loss).parameters["mask"].default is None
    for masks in [{"mask": mask}, {}] if optional_mask else [{"mask": mask}]:
        arguments = batched(row, arrays) | masks
        for name, x in arguments.items() if len(arguments) > 1 else ():
            first_of_last = x.take([0], axis=min(x.ndim, mask.ndim) - 1)
            others = {str(other.shape) for n, other in arguments.items() if n != name}
            for wrong in (x[..., None], x[None], x[1:], first_of_last):
                with pytest.raises(ValueError, match="shape") as error:
                    row.loss(**{**arrays, **masks, name: wrong}, **row.settings)
                assert str(wrong.shape) in str(error.value), name
                assert any(shape in str(error.value) for shape in others), name
