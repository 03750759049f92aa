"""A config's `sampler` becomes what `generate` takes, or one line that says what is wrong."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments.cli import override
from experiments.configs import language
from experiments.sampling import sampler_arguments
from rljax.llm.load import model_from_config
from rljax.llm.sampler import generate
from rljax.llm.tokenizer import byte_tokenizer
from rljax.nets.transformer import TransformerConfig

TOKENIZER = byte_tokenizer()


def sampler(*changes):
    """As a config file has it, after `--config.sampler.FIELD=VALUE`."""
    config = ConfigDict({"sampler": language.sampler()})
    return override(config, ["run", *(f"--config.sampler.{change}" for change in changes)]).sampler


def test_each_field_reaches_generate():
    """Groups of 2, 4 tokens, a stop string that any letter ends: all at once or row by row."""
    model = model_from_config(
        TransformerConfig(TOKENIZER.vocab_size, 1, 8, 2, 1, 4, 16), jax.random.key(0), TOKENIZER
    )
    prompts = np.array([[72, 105], [72, 111]])

    def complete(*changes):
        fields = ("group_size=2", "max_new_tokens=4", "top_k=3", "stop_strings=('a','q')")
        arguments = sampler_arguments(sampler(*fields, *changes), TOKENIZER, training=False)
        assert arguments["stop_tokens"] == TOKENIZER.stop_tokens
        return generate(
            jax.random.key(1), model.net, model.params, prompts, prompts > 0, **arguments
        )

    plain, queued = complete(), complete("num_rows=1")
    assert plain.tokens.shape == (2, 2, 4)
    np.testing.assert_array_equal(plain.tokens, queued.tokens)
    greedy = complete("temperature=0.0", "stop_strings=()")
    assert (np.asarray(greedy.tokens) == np.asarray(greedy.tokens)[:, :1]).all()


def test_the_defaults_can_be_trained_with():
    arguments = sampler_arguments(sampler(), TOKENIZER, training=True)
    assert set(arguments) == {
        *("group_size", "max_new_tokens", "min_new_tokens", "temperature", "top_k", "top_p"),
        *("num_rows", "stop_tokens", "pad_token"),
    }
    assert sampler_arguments(sampler("top_p=1.5"), TOKENIZER, training=True)["top_p"] == 1.5


@pytest.mark.errors
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("rows=3", "config.sampler has no field 'rows'"),
        ("temprature=1.0", "did you mean 'temperature'"),
        ("group_size=many", "group_size=many"),
    ],
)
def test_flags_that_are_not_allowed(change, words):
    with pytest.raises(ValueError, match=words):
        sampler(change)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("group_size=0", "config.sampler.group_size is 0: it must be in [1, 1e6]"),
        ("max_new_tokens=0", "max_new_tokens is 0"),
        ("min_new_tokens=257", "min_new_tokens is 257: it must be in [0, 256]"),
        ("temperature=-0.1", "temperature is -0.1"),
        ("temperature=nan", "temperature is nan"),
        ("temperature=inf", "temperature is inf"),
        ("top_k=-1", "top_k is -1"),
        ("top_p=-1.0", "top_p is -1.0"),
        ("num_rows=-1", "num_rows is -1"),
        ("stop_strings=('',)", "stop_strings has ''"),
        ("stop_strings=(3,)", "stop_strings has 3"),
    ],
)
def test_settings_that_are_not_allowed(change, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        sampler_arguments(sampler(change), TOKENIZER, training=False)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.errors
def test_an_unknown_field_in_the_file():
    config = language.sampler()
    config.beams = 4
    with pytest.raises(ValueError, match=r"config\.sampler\.beams is unknown; config\.sampler has"):
        sampler_arguments(config, TOKENIZER, training=False)
    config = language.sampler()
    del config.top_k
    with pytest.raises(ValueError, match=r"config\.sampler\.top_k is missing"):
        sampler_arguments(config, TOKENIZER, training=False)


@pytest.mark.errors
@pytest.mark.parametrize("change", ["top_k=5", "top_p=0.9", "temperature=0.0"])
def test_what_training_cannot_score_is_refused(change):
    name = change.partition("=")[0]
    with pytest.raises(ValueError, match=rf"config\.sampler\.{name} is .*: it must be"):
        sampler_arguments(sampler(change), TOKENIZER, training=True)
    sampler_arguments(sampler(change), TOKENIZER, training=False)
