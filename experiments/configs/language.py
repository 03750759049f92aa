"""The fields of language models' configs that several of their config files share."""

from typing import Any

from ml_collections import ConfigDict

Config = Any  # a ConfigDict; type checkers do not know its fields


def sampler() -> Config:
    """How completions are generated. `experiments.sampling` makes `generate`'s arguments of it."""
    config: Config = ConfigDict()
    config.group_size = 8  # completions of each prompt
    config.max_new_tokens = 256
    config.min_new_tokens = 0  # a stop token is not sampled before so many others
    config.temperature = 1.0  # 0: greedy, which training refuses
    config.top_k = 0  # 0: all; training refuses others, as it scores with the temperature only
    config.top_p = 1.0  # 1: all; likewise
    config.num_rows = 0  # under way at a time on a device, refilled from the queue; 0: all at once
    config.stop_strings = ()  # end a completion, besides the tokenizer's stop tokens
    return config
