"""Completions on the command line, by a tiny model of bytes."""

import io
import re

import jax
import numpy as np
import pytest

from experiments.generate import main
from rljax.llm.load import model_from_config, save_language_model
from rljax.llm.sampler import generate
from rljax.llm.tokenizer import byte_tokenizer
from rljax.nets.transformer import TransformerConfig

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")


@pytest.fixture(scope="module")
def model():
    tokenizer = byte_tokenizer(special_tokens=SPECIAL, chat_template=TEMPLATE)
    config = TransformerConfig(tokenizer.vocab_size, 2, 16, 2, 1, 8, 24, max_positions=100)
    return model_from_config(config, jax.random.key(0), tokenizer)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    save_language_model(path, model)
    return path


def call(capsys, *argv):
    code = main(["generate", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def test_completions_are_those_of_the_sampler(model, folder, capsys):
    """Chunks of steps change nothing; log-probabilities are sums over each completion."""
    code, out, err = call(
        capsys,
        *(f"--model={folder}", "--prompt=ab", "--raw", "--num_completions=3"),
        *("--max_new_tokens=11", "--seed=4"),
    )
    assert code == 0, err
    tokenizer = model.tokenizer
    expected = generate(
        *(jax.random.key(4), model.net, model.params),
        *(np.array([tokenizer.encode("ab")]), np.ones((1, 2))),
        **dict(group_size=3, max_new_tokens=11),
        **dict(stop_tokens=tokenizer.stop_tokens, pad_token=tokenizer.pad_id),
    )
    for i in range(3):
        length = int(expected.lengths[0, i])
        assert f"[{i}] {length} tokens" in out
        assert (
            tokenizer.decode(expected.tokens[0, i, :length].tolist(), skip_special_tokens=True)
            in out
        )
    scores = sorted(float(x) for x in re.findall(r"log-prob (\S+)", out))
    np.testing.assert_allclose(scores, np.sort(expected.log_probs[0].sum(-1)), atol=0.006)
    assert "3 completions, " in err
    assert "tokens/s" in err


def test_rows_that_are_refilled_give_the_same(folder, capsys):
    """With any text, and settings at their ends."""
    argv = (f"--model={folder}", "--prompt=ä €\U0001f600\n\0", "--num_completions=3")
    argv += ("--max_new_tokens=11", "--temperature=1e9", "--top_p=0.9", "--top_k=4000000")
    code, out, err = call(capsys, *argv)
    assert code == 0, err
    queued = call(capsys, *argv, "--num_rows=2")[1]
    assert {*re.findall(r"\[\d\] \d+ tokens", out)} == {*re.findall(r"\[\d\] \d+ tokens", queued)}
    scores = [sorted(map(float, re.findall(r"log-prob (\S+)", x))) for x in (out, queued)]
    np.testing.assert_allclose(*scores, atol=0.011)


def test_a_single_completion_is_printed_as_text(folder, capsys):
    argv = (f"--model={folder}", "--prompt=ab", "--max_new_tokens=9", "--temperature=0")
    code, out, err = call(capsys, *argv)
    assert code == 0, err
    assert call(capsys, *argv)[1] == out
    assert len(out) >= 2
    assert "9 tokens in" in err
    raw = call(capsys, *argv, "--raw")[1]
    assert raw != out  # without the template


def test_a_stop_string_ends_the_text(folder, capsys):
    argv = (f"--model={folder}", "--prompt=ab", "--max_new_tokens=30", "--raw", "--seed=1")
    text = call(capsys, *argv)[1]
    word = next(c for c in text[5:] if c.isascii() and c.isprintable() and c not in " -")
    stopped = call(capsys, *argv, f"--stop={word}")[1].rstrip("\n")
    assert stopped == text[: text.index(word) + 1]


def test_a_conversation(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\nagain\n/exit\nnot this\n"))
    code, out, err = call(capsys, f"--model={folder}", "--chat", "--max_new_tokens=5", "--system=x")
    assert code == 0
    assert out.count("you> ") == 4
    assert err.count("tokens/s") == 2


def test_the_end_of_the_input_ends_a_conversation(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert call(capsys, f"--model={folder}", "--chat")[0] == 0


@pytest.mark.parametrize(("stop", "code"), [((), 130), ((15,), 143)])
def test_signals_end_it(stop, code, folder, capsys, monkeypatch):
    """Ctrl-C, and SIGTERM, which `terminate` makes of it."""

    def interrupted(prompt):
        raise KeyboardInterrupt(*stop)

    monkeypatch.setattr("builtins.input", interrupted)
    got, out, err = call(capsys, f"--model={folder}", "--chat", "--max_new_tokens=5")
    assert (got, out, err) == (code, "", "\n")


def test_help(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert out.startswith("usage: ")


@pytest.mark.errors
@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--prompt=x"], 2, "--model is missing"),
        (["--model=DIR"], 2, "--prompt or --chat"),
        (["--model=DIR", "--prompt=x", "--chat"], 2, "--prompt or --chat"),
        (["--model=DIR", "--chat", "--num_completions=2"], 2, "one answer at a time"),
        (["--model=DIR", "--prompt=", "--raw"], 2, "--prompt is empty"),
        (["--model=DIR", "--prompt=x", "--temperature=-1"], 2, "--temperature=-1"),
        (["--model=DIR", "--prompt=x", "--max_new_tokens=0"], 2, "--max_new_tokens"),
        (["--model=DIR", "--prompt=x", "--dtype=int8"], 2, "float32|bfloat16"),
        (["--model=DIR", "--prompt=x", "--stop="], 2, "stop string is empty"),
        (["--model=DIR/none", "--prompt=x"], 2, "does not exist"),
        (["--model=DIR", "--prompt=\udcff"], 2, "--prompt is no UTF-8 text"),
        (["--model=DIR/config.json", "--prompt=x"], 2, "config.json"),
        (["--model=DIR", "--chat", "--num_rows=2"], 2, "one answer at a time"),
        (["--model=DIR", "--prompt=x", "--num_rows=-1"], 2, "--num_rows"),
        (["--model=DIR", "--prompt=x", "--top_k=-1"], 2, "--top_k"),
        (["--model=DIR", "--prompt=x", "--seed=-1"], 2, "--seed"),
        (["--model=DIR", "--prompt=x", "--temperature=nan"], 2, "--temperature is nan"),
        (["--model=DIR", "--prompt=x", "--top_p=inf"], 2, "--top_p is inf"),
        (["--model=DIR", "--prompt=x", "--temperature=1e-40"], 2, "temperature is 1e-40"),
        (["--model=DIR", "--prompt=x", "--temperature=hot"], 2, "--temperature=hot"),
        (["--model=DIR", "--prompt=x", "here"], 2, "unexpected argument 'here'"),
        (["--model=DIR", "--raw", "--max_new_tokens=60", f"--prompt={50 * 'x'}"], 2, "trained for"),
        (["--model=DIR", "--prompt=x", "--what=1"], 2, "usage"),
    ],
    ids=str,
)
def test_bad_input(argv, code, words, folder, capsys):
    got, out, err = call(capsys, *(x.replace("DIR", str(folder)) for x in argv))
    assert got == code, err
    assert out == ""
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1
