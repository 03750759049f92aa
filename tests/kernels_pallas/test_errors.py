"""Messages of one line, before anything is compiled; and what `auto` chooses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import kernels_pallas as kernels
from kernels_pallas import Blocks, choose

H, W, T = np.ones((6, 5), np.float32), np.ones((5, 7), np.float32), np.zeros(6, int)
Z = np.ones((6, 7), np.float32)


def stats(hidden=H, matrix=W, tokens=T, **options):
    return kernels.linear_token_stats(hidden, matrix, tokens, **options)


def policy(loss=lambda log_prob, *_: -log_prob, **options):
    return kernels.linear_policy_loss(H, W, T, None, loss, **options)


def pallas(chip, config):
    return stats(implementation=f"pallas_{chip}", interpret=True, config=config)


BAD = [
    (lambda: stats(H[0]), r"hidden must be \[N, D\], got shape \(5,\)"),
    (lambda: stats(matrix=W[1:]), r"unembedding must be .* with D = 5, got \(4, 7\)"),
    (lambda: stats(tokens=T[:, None]), r"tokens must have shape \(6,\), got \(6, 1\)"),
    (lambda: stats(tokens=np.ones(6)), "tokens must be integers, got float64"),
    (lambda: stats("abc"), "hidden must be an array of numbers, got str"),
    (lambda: stats(matrix=[[1.0], []]), "unembedding must be an array of numbers, got list"),
    (lambda: stats(bias=1j * np.ones(7)), "bias must be real, got complex64"),
    (lambda: stats(H.astype(int)), "hidden must be float32 or bfloat16, got int32"),
    (lambda: stats(jnp.asarray(H, jnp.float16)), "hidden must be .*, got float16"),
    (lambda: stats(jnp.asarray(H, jnp.bfloat16)), "unembedding must be bfloat16 .*, got float32"),
    (lambda: stats(mask=np.ones((6, 1))), r"mask must have shape \(6,\), got \(6, 1\)"),
    (lambda: stats(bias=np.ones(6)), r"bias must have shape \(7,\), got \(6,\)"),
    (lambda: stats(temperature=np.ones(6)), r"temperature must have shape \(\), got \(6,\)"),
    (lambda: stats(temperature=0), "temperature must be above 0, got 0"),
    (lambda: stats(temperature=np.nan), "temperature must be above 0, got nan"),
    (lambda: stats(temperature=np.float32(-1)), r"temperature must be above 0, got -1\.0"),
    (lambda: stats(temperature=jnp.zeros(())), r"temperature must be above 0, got 0\.0"),
    (lambda: jax.jit(lambda x: stats(temperature=x * jnp.ones(2)))(1.0), r"\(\), got \(2,\)"),
    (lambda: stats(softcap=-2.0), r"softcap must be above 0, got -2\.0"),
    (lambda: stats(softcap=np.inf), r"softcap must be finite \(None is none\), got inf"),
    (lambda: jax.jit(lambda x: stats(softcap=x))(1.0), "softcap must be a number and not traced"),
    (lambda: stats(vocab_axis="model"), r"vocab_axis must be .* one of \(\), got 'model'"),
    (lambda: stats(config=(4, 8)), "config of 'xla' must be Blocks, got tuple"),
    (lambda: pallas("tpu", Blocks(4, 8)), "config of 'pallas_tpu' must be Config, got Blocks"),
    (lambda: pallas("gpu", Blocks(4, 8)), "config of 'pallas_gpu' must be GpuBlocks, got Blocks"),
    (lambda: stats(config=Blocks(4, 0)), r"whole numbers above 0, got Blocks\(rows=4, vocab.*=0\)"),
    (lambda: policy(denominator=np.ones(6)), r"denominator must have shape \(\), got \(6,\)"),
    (lambda: policy(denominator=np.int32(0)), "denominator must be above 0, got 0"),
    (lambda: policy(config=3), "config of 'xla' must be Blocks, got int"),
    (lambda: stats(implementation="cuda"), "implementation must be one of .*, got 'cuda'"),
    (lambda: stats(implementation="pallas_tpu"), "'pallas_tpu' cannot run: it needs a tpu and"),
    (lambda: stats(implementation="pallas_gpu"), "'pallas_gpu' cannot run: it needs a gpu and"),
    (lambda: stats(implementation="pallas_tpu", interpret=None), "it needs a tpu and this is"),
    (lambda: stats(H[:, :0], W[:0]), r"hidden must be .* at least one column, got \(6, 0\)"),
    (lambda: stats(matrix=W[:, :0]), r"unembedding must not be empty, got \(5, 0\)"),
    (lambda: kernels.token_stats(Z[0], T), r"logits must be \[N, V\], got shape \(7,\)"),
    (lambda: kernels.token_stats(Z, T[1:]), r"tokens must have shape \(6,\), got \(5,\)"),
    (lambda: kernels.categorical_kl(Z, Z[1:]), r"logits_q must have shape \(6, 7\), got \(5, 7\)"),
    (lambda: kernels.linear_kl(H, W), r"of_p must be 2 arrays .*, got ndarray"),
    (lambda: kernels.linear_kl((H, W), (H, W, W)), r"of_q must be 2 arrays .*, got 3"),
    (lambda: kernels.linear_kl((H, W), (H, W), config=3), "config of 'xla' must be Blocks"),
    (lambda: kernels.linear_kl((H, W), (H[1:], W)), "must have as many rows, got 6 and 5"),
    (lambda: kernels.linear_kl((H, W), (H, W[:, 1:])), "must have one vocabulary, got 7 and 6"),
    (lambda: kernels.linear_kl((H, W), (H, W), kind="both"), "kind must be .*, got 'both'"),
    (lambda: kernels.linear_kl((H, W), (H, W[1:])), r"unembedding_q .* D = 5, got \(4, 7\)"),
]  # fmt: skip


@pytest.mark.errors
@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_raises_one_line(number):
    call, message = BAD[number]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.errors
def test_rows_split_by_explicit_axes_need_a_shard_map():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    hidden, logits = (jax.device_put(x, NamedSharding(mesh, PartitionSpec("data"))) for x in (H, Z))
    kl = partial(kernels.linear_kl, (hidden, W), (H, W))
    for call in (partial(stats, hidden), partial(kernels.token_stats, logits, T), kl):
        with pytest.raises(ValueError, match=r"got P\('data', None\) of explicit mesh axes"):
            jax.jit(call)()


@pytest.mark.errors
@pytest.mark.parametrize("implementation", ["pallas_tpu", "pallas_gpu"])
def test_pallas_kernels_have_one_derivative(implementation):
    def slope(hidden):
        total = lambda x: stats(x, implementation=implementation, interpret=True)[0].sum()  # noqa: E731
        return jax.grad(total)(hidden)

    jax.eval_shape(slope, H)
    with pytest.raises(ValueError, match="has one derivative, of reverse mode; 'reference' has"):
        jax.eval_shape(jax.grad(lambda x: slope(x).sum()), H)


@pytest.mark.errors
def test_what_choose_is_asked_for():
    with pytest.raises(ValueError, match=r"kernel must be one of .*, got 'softmax'"):
        choose("softmax", dtype="float32", shape=(8, 9))
    with pytest.raises(ValueError, match=r"linear_kl must be \(N, D_p, D_q, V\), got \(8, 4, 9\)"):
        choose("linear_kl", dtype="float32", shape=(8, 4, 9))


def test_auto_says_what_it_chose():
    for kernel, shape in (("linear_token_stats", (8, 4, 9)), ("categorical_kl", (8, 9))):
        choice = choose(kernel, dtype="float32", shape=shape, platform="cpu")
        assert choice.implementation == "xla"
        assert "cpu" in choice.reason
        asked = choose(kernel, "reference", dtype="float32", shape=shape)
        assert asked == ("reference", "asked for")
