"""Grouped completions: the same whatever the batch, the rows, the layers and the devices are."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.llm.sampler import bucket, completion_log_probs, completion_mask, generate
from rljax.llm.stops import stop_table
from rljax.nets.transformer import TransformerConfig, make_transformer
from rljax.sharding import make_mesh

NET = make_transformer(TransformerConfig(31, 2, 16, 4, 2, 6, 20, tie_embeddings=False))
PARAMS = jax.tree.map(lambda x: 1.2 * x, NET.init(jax.random.key(0)))
LENGTHS = np.array([7, 3, 1, 5])
MASK = np.arange(7)[None] >= 7 - LENGTHS[:, None]
PROMPTS = np.where(MASK, np.random.default_rng(0).integers(3, 31, (4, 7)), 0)
STOPS, PAD, G, N = (1, 2), 0, 3, 12


def sample(prompts=PROMPTS, mask=MASK, key=5, **changes):
    settings = dict(group_size=G, max_new_tokens=N, stop_tokens=STOPS, pad_token=PAD) | changes
    return generate(jax.random.key(key), NET, PARAMS, prompts, mask, **settings)


@pytest.fixture(scope="module")
def plain():
    return sample()


def assert_same(a, b, atol=1e-5):
    for name in ("tokens", "mask", "lengths", "finished"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    np.testing.assert_allclose(a.log_probs, b.log_probs, atol=atol)


def test_what_comes_out(plain):
    tokens, mask = np.asarray(plain.tokens), np.asarray(plain.mask)
    assert tokens.shape == mask.shape == plain.log_probs.shape == (4, G, N)
    np.testing.assert_array_equal(mask.sum(-1), plain.lengths)
    np.testing.assert_array_equal(mask, np.arange(N) < np.asarray(plain.lengths)[..., None])
    stops = np.isin(tokens, STOPS) & mask
    np.testing.assert_array_equal(stops.any(-1), plain.finished)
    assert stops.sum(-1).max() == 1  # kept, and the last
    assert (stops[..., :-1] <= ~mask[..., 1:]).all()
    np.testing.assert_array_equal(tokens[~mask], PAD)
    np.testing.assert_array_equal(np.asarray(plain.log_probs)[~mask], 0)
    assert (np.asarray(plain.log_probs)[mask] < 0).all()
    assert 0 < np.asarray(plain.finished).sum() < 4 * G  # both kinds are here
    assert (np.asarray(plain.lengths)[~np.asarray(plain.finished)] == N).all()


FILTERS = [
    {},
    {"temperature": 0.6},
    {"top_k": 4},
    {"top_p": 0.8},
    {"temperature": 1.4, "top_k": 9, "top_p": 0.9, "min_new_tokens": 5},
]


@pytest.mark.parametrize("settings", FILTERS)
def test_log_probs_are_those_of_a_whole_forward(settings):
    """Of cached steps, with any filter; and the tokens are ones that the filter keeps."""
    completions = sample(**settings)
    again = completion_log_probs(
        *(NET, PARAMS, PROMPTS, MASK, completions), stop_tokens=STOPS, **settings
    )
    np.testing.assert_allclose(completions.log_probs, again, atol=1e-5)
    if "min_new_tokens" in settings:
        assert np.asarray(completions.lengths).min() > 5


def test_greedy():
    """Each token is the argmax of the whole forward; its log-probability is 0."""
    greedy = sample(temperature=0.0)
    assert (np.asarray(greedy.log_probs) == 0).all()
    np.testing.assert_array_equal(greedy.tokens, np.asarray(greedy.tokens[:, :1]).repeat(G, 1))
    rows = np.concatenate([PROMPTS, greedy.tokens[:, 0]], axis=1)
    mask = np.concatenate([MASK, greedy.mask[:, 0]], axis=1)
    best = NET.apply(PARAMS, rows, mask=mask).argmax(-1)[:, 6:-1]
    np.testing.assert_array_equal(best[mask[:, 7:]], rows[:, 7:][mask[:, 7:]])


@pytest.mark.parametrize(
    "changes",
    [{"unroll": False}, {"num_rows": 5}, {"num_rows": 1, "unroll": False}, {"num_rows": 40}],
    ids=str,
)
def test_rows_and_layers_change_nothing(changes, plain):
    assert_same(sample(**changes), plain)


@pytest.mark.parametrize("num_rows", [0, 2])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_devices_change_nothing(devices, num_rows, plain):
    """sample-09. Three devices share four prompts, too."""
    assert_same(sample(mesh=make_mesh(devices), num_rows=num_rows), plain)


def test_a_prompt_has_its_completions_whatever_else_is_in_the_batch(plain):
    """group-04: completions stand with their own prompt. By bits, as the shapes are equal."""
    others = np.where(MASK, (PROMPTS + 5) % 28 + 3, 0)
    for p in range(4):
        prompts = others.copy()
        prompts[p] = PROMPTS[p]
        mixed = sample(prompts)
        np.testing.assert_array_equal(mixed.tokens[p], plain.tokens[p])
        np.testing.assert_array_equal(mixed.log_probs[p], plain.log_probs[p])


def test_a_prompt_alone(plain):
    """Not padded, of its own length (one token, too), with its index in the list."""
    for p, length in enumerate(LENGTHS):
        alone = sample(
            PROMPTS[p : p + 1, 7 - length :], MASK[p : p + 1, 7 - length :], first_prompt=p
        )
        assert_same(alone, jax.tree.map(lambda x, p=p: x[p : p + 1], plain))


def test_keys_differ():
    """sample-09: of the members of a group, of repeated prompts, of calls."""
    prompts, mask = np.repeat(PROMPTS[:1], 4, axis=0), np.repeat(MASK[:1], 4, axis=0)
    one = np.asarray(sample(prompts, mask, stop_tokens=()).tokens).reshape(-1, N)
    assert len(np.unique(one, axis=0)) == 4 * G
    other = np.asarray(sample(prompts, mask, key=6, stop_tokens=()).tokens).reshape(-1, N)
    assert (one != other).any(axis=1).all()


def test_no_stop_tokens_and_a_single_new_token(plain):
    assert not np.asarray(sample(stop_tokens=()).finished).any()
    first = sample(max_new_tokens=1)
    np.testing.assert_array_equal(first.tokens[..., 0], plain.tokens[..., 0])
    np.testing.assert_array_equal(first.finished, np.isin(first.tokens[..., 0], STOPS))


def test_the_stop_token_may_be_the_padding(plain):
    """The mask comes from what was generated, not from ids."""
    same = sample(pad_token=1)
    np.testing.assert_array_equal(same.mask, plain.mask)
    np.testing.assert_array_equal(same.finished, plain.finished)


@pytest.mark.parametrize("num_rows", [0, 4])
def test_stop_strings(num_rows):
    """Token t writes one letter, but 3 and 4 write two: strings may begin within a token."""
    letters = [bytes([ord("a") + t % 26]) for t in range(31)]
    letters[3], letters[4] = b"xa", b"ay"
    words = ["ay", "bc", "f"]
    free = sample(stop_tokens=(), max_new_tokens=40)
    stopped = sample(
        stop_tokens=(),
        max_new_tokens=40,
        stop_table=stop_table(words, letters),
        num_rows=num_rows,
    )
    for row, length, finished in zip(
        np.asarray(free.tokens).reshape(-1, 40),
        np.asarray(stopped.lengths).ravel(),
        np.asarray(stopped.finished).ravel(),
    ):
        texts = [b"".join(letters[t] for t in row[: n + 1]).decode() for n in range(40)]
        found = [any(word in text for word in words) for text in texts]
        assert finished == any(found)
        assert length == (found.index(True) + 1 if any(found) else 40)
    assert np.asarray(stopped.finished).any()


def test_prompts_of_many_lengths_need_few_programs():
    lengths = [bucket(length) for length in range(1, 513)]
    assert len(set(lengths)) == 13
    assert all(1 <= b / n <= 1.5 for n, b in zip(range(8, 513), lengths[7:]))


def test_bfloat16():
    """The cache is in the dtype of the computation; log-probabilities come from float32 logits."""
    net = make_transformer(NET.config._replace(compute_dtype="bfloat16"))
    settings = dict(group_size=2, max_new_tokens=6, stop_tokens=STOPS, pad_token=PAD)
    completions = generate(jax.random.key(5), net, PARAMS, PROMPTS, MASK, **settings)
    again = completion_log_probs(net, PARAMS, PROMPTS, MASK, completions, stop_tokens=STOPS)
    assert completions.log_probs.dtype == jnp.float32
    np.testing.assert_allclose(completions.log_probs, again, atol=0.1)


def test_completion_mask_by_hand():
    """mask-03: pad and stop token share an id. Row 2: what stands behind is not read."""
    tokens = jnp.array([[5, 7, 2, 2, 2], [5, 3, 6, 2, 2], [5, 6, 7, 8, 2], [2, 2, 2, 2, 2]])
    mask, lengths, finished = completion_mask(tokens, jnp.array([3, 4, 4, 0]), stop_tokens=[2])
    assert lengths.tolist() == [3, 4, 4, 0]
    assert finished.tolist() == [True, True, False, False]
    np.testing.assert_array_equal(mask, np.arange(5) < np.asarray(lengths)[:, None])
    mask, lengths, _ = completion_mask(tokens, jnp.array([5, 5, 5, 5]), stop_tokens=[3, 2])
    assert lengths.tolist() == [3, 2, 5, 1]


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 63, 512])
def test_prompts_of_any_length(length):
    """Cached decoding equals the whole forward to 1e-5, left-padded or not."""
    rng = np.random.default_rng(length)
    prompts = rng.integers(3, 31, (2, length))
    mask = np.arange(length) >= np.array([[0], [length // 2]])
    completions = sample(prompts, mask, group_size=2)
    again = completion_log_probs(NET, PARAMS, prompts, mask, completions, stop_tokens=STOPS)
    np.testing.assert_allclose(completions.log_probs, again, atol=1e-5)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask": MASK[:, 1:]}, r"\(4, 7\) and prompt_mask \(4, 6\)"),
        ({"mask": MASK[:, ::-1]}, "prompt 1 has no token at its end"),
        ({"prompts": PROMPTS[:0], "mask": MASK[:0]}, "there must be one prompt"),
        ({"prompts": PROMPTS + 31}, r"prompt token \d+ is outside the vocabulary, 0 \.\.\. 30"),
        ({"group_size": 0}, "group_size is 0: it must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"min_new_tokens": 13}, r"min_new_tokens is 13: it must be in 0 \.\.\. 12"),
        ({"num_rows": -1}, "num_rows is -1"),
        ({"stop_tokens": (31,)}, r"token 31 is outside the vocabulary, 0 \.\.\. 30"),
        ({"pad_token": -1}, "token -1 is outside"),
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"top_p": -0.5}, "top_p is -0.5"),
        ({"stop_table": np.zeros((2, 40), int)}, r"stop_table is \(2, 40\)"),
    ],
    ids=str,
)
def test_bad_input(changes, words):
    with pytest.raises(ValueError, match=words):
        sample(**changes)


@pytest.mark.errors
def test_other_bad_input():
    with pytest.raises(ValueError, match=re.escape("(2, 3) and num_generated (3,)")):
        completion_mask(jnp.zeros((2, 3), int), jnp.zeros(3, int), stop_tokens=[1])
    with pytest.raises(ValueError, match="a stop string is empty"):
        stop_table(["a", ""], [b"a"])
