"""What a sampler is compiled for, checked."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from rljax.llm.filters import check_filter
from rljax.types import LanguageNet


class Settings(NamedTuple):
    """What is fixed when a sampler is compiled."""

    group_size: int  # G
    max_new_tokens: int  # N
    stop_tokens: tuple[int, ...]
    pad_token: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_new_tokens: int = 0  # stop tokens are not sampled before
    unroll: bool = False  # the layers of a decoding step
    num_rows: int = 0  # completions at a time; 0: all of them


def make_settings(
    net: LanguageNet,
    *,
    stop_tokens: Sequence[int],
    unroll: bool | None = None,
    **others: Any,
) -> Settings:
    """Checked against each other and the vocabulary.

    Raises:
      ValueError: of one line, if one is out of range.
    """
    settings = Settings(
        stop_tokens=tuple(int(token) for token in stop_tokens),
        unroll=jax.default_backend() == "cpu" if unroll is None else unroll,
        **others,
    )
    check_filter(settings.temperature, settings.top_k, settings.top_p)
    for name in ("group_size", "max_new_tokens"):
        if (value := getattr(settings, name)) < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    for name, most in (
        ("min_new_tokens", settings.max_new_tokens),
        ("num_rows", 2**20),
    ):
        if not 0 <= (value := getattr(settings, name)) <= most:
            raise ValueError(f"{name} is {value}: it must be in 0 ... {most}")
    vocab_size = net.config.vocab_size
    for token in (*settings.stop_tokens, settings.pad_token):
        if not 0 <= token < vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary, 0 ... {vocab_size - 1}")
    return settings


def keeps_all_tokens(settings: Settings, vocab_size: int) -> bool:
    """Whether every token may be drawn at every step."""
    return (
        settings.temperature > 0
        and (settings.top_k == 0 or settings.top_k >= vocab_size)
        and settings.top_p >= 1
        and not (settings.min_new_tokens and settings.stop_tokens)
    )
