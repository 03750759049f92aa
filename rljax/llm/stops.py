"""What ends a completion: tokens, and strings that may begin and end anywhere within tokens."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from rljax.types import Array

NO_STRINGS = np.zeros((1, 1), np.int32)


def is_stop(tokens: Array, stop_tokens: tuple[int, ...]) -> Array:
    """Bool of the shape of `tokens`.

    >>> is_stop(jnp.array([3, 1]), (1, 2)).tolist()
    [False, True]
    """
    found = jnp.zeros(tokens.shape, bool)
    for token in stop_tokens:
        found |= tokens == token
    return found


def stop_table(stop_strings: Sequence[str], token_bytes: Sequence[bytes]) -> np.ndarray:
    """An automaton over tokens that knows when one of the strings has been written.

    Its states are the beginnings of the strings, of which the longest that the text so far ends
    with counts. A token leads from state s to table[s, token]; the value Q says that a string is
    complete, at the end of the token or within it.

    Args:
      stop_strings: matched as UTF-8; none may be empty.
      token_bytes: what each of the V tokens writes.

    Returns:
      [Q, V] int32 with values 0 ... Q; state 0 is that of the empty text.

    Raises:
      ValueError: if a string is empty.

    >>> stop_table(["ab"], [b"a", b"b", b"xab"]).tolist()
    [[1, 0, 2], [1, 2, 2]]
    """
    words = [word.encode() for word in stop_strings]
    if b"" in words:
        raise ValueError("a stop string is empty: each must have one character at least")
    states = {b"": 0}
    for word in words:
        for end in range(1, len(word)):
            states.setdefault(word[:end], len(states))
    number = len(states)
    of_byte = np.full((number + 1, 256), number, np.int32)  # the last row: complete, for good
    for text, state in states.items():
        for byte in range(256):
            longer = text + bytes([byte])
            if not any(longer.endswith(word) for word in words):
                endings = (longer[i:] for i in range(len(longer) + 1))
                of_byte[state, byte] = next(states[x] for x in endings if x in states)
    lengths = np.array([len(x) for x in token_bytes])
    written = np.zeros((len(token_bytes), max(lengths.max(), 1)), np.uint8)
    for row, text in zip(written, token_bytes):
        row[: len(text)] = np.frombuffer(text, np.uint8)
    table = np.repeat(np.arange(number, dtype=np.int32)[:, None], len(token_bytes), axis=1)
    for place in range(written.shape[1]):
        table = np.where(place < lengths[None], of_byte[table, written[None, :, place]], table)
    return table
