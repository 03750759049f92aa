"""Cached attention against numbers worked out for whole sequences."""

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.llm.cache import KeysValues, cached_attention, prefill_attention

# sample-06: one head, K = 2; every split of the five positions must give the same rows.
Q = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5], [0.5, -1.0]]
K = [[0.5, 0.0], [1.0, 1.0], [0.0, -1.0], [2.0, 0.0], [0.3, 0.3]]
V = [[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [-1.0, 1.0], [0.5, 0.5]]
OUT = [
    [1.0, 0.0],
    [0.3302384506733431, 1.3395230986533138],
    [0.4814451372355938, 1.4459263687514186],
    [1.0919081861060103, 1.0],
    [0.8318718141292791, 0.8626713842820706],
]


def heads(x):
    """[1, T, KV, g, K] or [1, T, KV, K] of one head."""
    return jnp.array(x)[None, :, None]


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("ring", [4, 5])
@pytest.mark.parametrize("first_slot", [0, 3])
@pytest.mark.parametrize("prompt", [1, 3, 4, 5])
def test_every_split_gives_the_same(prompt, first_slot, ring, padding):
    """The ring may begin anywhere and go round; what stood in it before is not seen."""
    length = prompt + padding
    mask = jnp.arange(length)[None] >= padding
    q, k, v = (
        jnp.pad(jnp.array(x)[:prompt], ((padding, 0), (0, 0)), constant_values=9) for x in (Q, K, V)
    )
    empty = KeysValues(*(jnp.zeros((1, 1, 1, length, 2)) for _ in range(2)))
    outs, prompts = prefill_attention(mask)(heads(q)[:, :, :, None], heads(k), heads(v), empty, 0)
    rows = list(outs[0, padding:, 0, 0])
    cache = KeysValues(*(jnp.full((1, 1, 1, 1, ring, 2), 7.0) for _ in range(2)))
    for i in range(prompt, 5):
        slot = (first_slot + i - prompt) % ring
        attend = cached_attention(prompts, mask, jnp.int32(slot), jnp.array([[i - prompt + 1]]))
        out, cache = attend(
            heads(Q[i : i + 1])[:, :, :, None], heads(K[i : i + 1]), heads(V[i : i + 1]), cache, 0
        )
        rows.append(out[0, 0, 0, 0])
    np.testing.assert_allclose(jnp.stack(rows), OUT, atol=1e-5)


def test_groups_share_a_prompt_and_rows_have_their_own_past():
    """Two prompts, two completions each, g = 2 queries per head: against each row by itself."""
    rng = np.random.default_rng(0)
    prompt_k, prompt_v = rng.normal(size=(2, 1, 2, 3, 4, 6)).astype(np.float32)  # [N, P, KV, L, K]
    ring_k, ring_v = rng.normal(size=(2, 1, 2, 3, 2, 5, 6)).astype(np.float32)
    query = rng.normal(size=(4, 1, 3, 2, 6)).astype(np.float32)
    key, value = rng.normal(size=(2, 4, 1, 3, 6)).astype(np.float32)
    mask = np.array([[False, True, True, True], [True, True, True, True]])
    generated = np.array([[1, 3], [5, 2]])
    slot = 1
    attend = cached_attention(
        KeysValues(*map(jnp.asarray, (prompt_k, prompt_v))),
        *map(jnp.asarray, (mask, slot, generated)),
    )
    memory = KeysValues(*map(jnp.asarray, (ring_k, ring_v)))
    out, _ = attend(*map(jnp.asarray, (query, key, value)), memory, 0)
    for row in range(4):
        p, c = divmod(row, 2)
        slots = [(slot - age) % 5 for age in range(1, generated[p, c])]
        for h in range(3):
            parts = (
                (prompt_k[0, p, h][mask[p]], ring_k[0, p, h, c][slots], key[row, :, h]),
                (prompt_v[0, p, h][mask[p]], ring_v[0, p, h, c][slots], value[row, :, h]),
            )
            keys, values = (np.concatenate(x) for x in parts)
            scores = query[row, 0, h] @ keys.T / np.sqrt(6)
            weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            np.testing.assert_allclose(out[row, 0, h], weights @ values, atol=1e-5)
