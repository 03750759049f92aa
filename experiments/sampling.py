"""A config's `sampler` as the arguments of `rljax.llm.sampler.generate`."""

from collections.abc import Sequence
from typing import Any

from experiments.check import check_fields, check_range
from experiments.configs import language

RANGES = {
    "group_size": "[1, 1e6]",
    "max_new_tokens": "[1, 1e6]",
    "temperature": "[0, inf)",
    "top_k": "[0, inf)",
    "top_p": "[0, inf)",
    "num_rows": "[0, 1e6]",
}


def check_sampler(config: Any, *, training: bool, where: str = "config.sampler") -> None:
    """Raises a ValueError of one line for fields that `language.sampler()` does not have or allow.

    With `training`, whose learner scores tokens with the temperature only, also for a filter.
    """
    check_fields(where, config, language.sampler())
    for name, allowed in RANGES.items():
        check_range(f"{where}.{name}", config[name], allowed)
    check_range(f"{where}.min_new_tokens", config.min_new_tokens, f"[0, {config.max_new_tokens}]")
    for text in config.stop_strings:
        if not isinstance(text, str) or not text:
            raise ValueError(f"{where}.stop_strings has {text!r}: each must be a text, not empty")
    if not training:
        return
    why = "training scores with the temperature only"
    if config.top_k:
        raise ValueError(f"{where}.top_k is {config.top_k}: it must be 0, as {why}")
    if config.top_p < 1:
        raise ValueError(f"{where}.top_p is {config.top_p}: it must be 1, as {why}")
    if config.temperature == 0:
        raise ValueError(f"{where}.temperature is 0: it must be above 0, or nothing is explored")


def sampler_arguments(
    config: Any, tokenizer: Any, *, training: bool, where: str = "config.sampler"
) -> dict[str, Any]:
    """The keyword arguments of `generate` for texts of `tokenizer`.

    Raises:
      ValueError: as `check_sampler`.
    """
    check_sampler(config, training=training, where=where)
    arguments = config.to_dict()
    strings = arguments.pop("stop_strings")
    if strings:
        arguments["stop_table"] = table_of(strings, tokenizer)
    return arguments | {"stop_tokens": tokenizer.stop_tokens, "pad_token": tokenizer.pad_id}


def table_of(strings: Sequence[str], tokenizer: Any) -> Any:
    """`generate`'s stop_table for strings, at least one, that end a completion."""
    from rljax.llm.stops import stop_table

    return stop_table(strings, [*map(tokenizer.token_bytes, range(tokenizer.vocab_size))])
