"""Chat templates: from messages to text, and which parts of the text the messages wrote."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from rljax.llm.packages import need
from rljax.llm.vocabulary import Vocabulary

PRIVATE = range(0xF0000, 0xFFFFE)  # characters that no text means anything by


@cache
def compile_template(source: str) -> Any:
    """A template of Hugging Face's kind, in a sandbox: it can neither call out nor change data.

    `raise_exception`, `tojson`, `break` and `continue` are as there. `{% generation %}`, which
    marks what an assistant wrote, changes nothing.
    """
    jinja2, sandbox = need("jinja2", "a chat template"), need("jinja2.sandbox", "a chat template")
    loops = need("jinja2.ext", "a chat template").loopcontrols

    class Generation(jinja2.ext.Extension):  # jinja2 offers no other way to add a tag
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loops]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error


def to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys=False
) -> str:
    """The filter `tojson` of chat templates: unlike jinja2's own it leaves <, > and & alone."""
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def make_renderer(templates: Mapping[str, str], names: Mapping[str, str]) -> Callable[..., str]:
    """`apply_chat_template` of `Tokenizer`; `names` has the special tokens that templates ask for.

    Of several templates, "tool_use" is taken for messages with tools and "default" otherwise.
    """
    compiled = {name: compile_template(source) for name, source in templates.items()}

    def apply_chat_template(
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        now: Any = None,
        **more: Any,
    ) -> str:
        if not templates:
            raise ValueError("this model has no chat template; its text is written without one")
        check_messages(messages)
        kind = "tool_use" if tools and "tool_use" in templates else "default"
        if kind not in templates:
            raise ValueError(f"no chat template {kind!r} among {', '.join(sorted(templates))}")
        given = {"add_generation_prompt": add_generation_prompt, "tools": tools}
        given |= {"documents": documents, **names, **more}
        if now is not None:
            given["strftime_now"] = now.strftime
        messages = [{k: v for k, v in m.items() if v is not None} for m in messages]
        try:
            return compiled[kind].render(messages=messages, **given)
        except (need("jinja2", "a chat template").TemplateError, TypeError) as error:
            hint = ""
            if now is None and "strftime_now" in str(error):
                hint = ": pass the date, now=datetime.datetime.now()"
            raise ValueError(f"chat template: {' '.join(str(error).split())}{hint}") from error

    return apply_chat_template


def check_messages(messages: Any) -> None:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise ValueError(f"messages is a {type(messages).__name__}; a list of dicts is wanted")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(
                f"messages[{i}] is {str(message)[:60]!r}; a dict such as "
                '{"role": "user", "content": "Hi"} is wanted'
            )


def replace_strings(value: Any, replace: Callable[[str], str]) -> Any:
    """`value` with every string in it replaced, the keys of dicts too."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, Mapping):
        return {replace_strings(k, replace): replace_strings(v, replace) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [replace_strings(item, replace) for item in value]
    return value


def strings(value: Any) -> Iterator[str]:
    """All strings in `value`, the keys of dicts too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else value
        for item in items:
            yield from strings(item)


def make_chat_encoder(render: Callable[..., str], vocabulary: Vocabulary) -> Callable[..., list]:
    """`encode_chat` of `Tokenizer`.

    Before the template sees the messages, each special token inside them is replaced by one
    private character that stands nowhere else. What is special in the rendered text is then the
    template's own. The text between two of these is ordinary: the private characters are replaced
    back there and it is encoded as such. Without special tokens in the messages nothing is
    replaced, and the ids are those of the rendered text.
    """

    def encode_chat(messages: Sequence[Mapping[str, Any]], *args: Any, **more: Any) -> list[int]:
        written = "\0".join(strings([messages, more]))
        smuggled = [token for token in vocabulary.special if token in written]
        smuggled.sort(key=len, reverse=True)  # the longest first, as they are looked for
        free = (c for c in map(chr, PRIVATE) if c not in written and escaped(c) not in written)
        private = dict(zip(smuggled, free))

        def hide(text: str) -> str:
            for token, character in private.items():
                text = text.replace(token, character)
            return text

        hidden = replace_strings([messages, more], hide) if private else [messages, more]
        text = render(hidden[0], *args, **hidden[1])
        if not private:
            return vocabulary.encode_special(text)
        ids = []
        for i, (id, part) in enumerate(vocabulary.split(text)):
            for token, character in private.items():
                part = part.replace(character, token)
                part = part.replace(escaped(character), escaped(token))
            ids += vocabulary.encode(part, i == 0) if id is None else [id]
        return ids

    return encode_chat


def escaped(text: str) -> str:
    """`text` as it stands in JSON that is all ASCII, as some templates ask for."""
    return json.dumps(text)[1:-1]


def turn_end(render: Callable[..., str], vocabulary: Vocabulary) -> int | None:
    """The special token that a template puts after an assistant's words, if there is one."""
    mark = chr(PRIVATE[-1])
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": mark}]
    try:
        text = render(messages, add_generation_prompt=False)
    except ValueError:  # a template that wants something else
        return None
    for id, part in vocabulary.split(text.rpartition(mark)[2]):
        if id is not None:
            return id
        if part.strip():
            return None
    return None
