"""Chat templates: sandboxed Jinja, compatible with what models ship.

The environment is the one transformers renders `chat_template` with
(https://huggingface.co/docs/transformers/chat_templating_writing): trimmed blocks, loop controls,
`raise_exception`, `strftime_now`, a `tojson` that leaves non-ASCII text and HTML characters alone,
and `{% generation %}` blocks, which mean nothing when generating.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core.errors import InvalidRequestError

TEMPLATES_FOLDER = Path(__file__).parents[2] / "templates"


class TemplateError(InvalidRequestError):
    """A chat template that cannot be compiled, or that refused these messages."""

    code = "chat_template_error"


class _Generation(Extension):
    """`{% generation %}` blocks mark assistant text for training: transparent here."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own way to declare it)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_passed_through"), [], [], body).set_lineno(line)

    def _passed_through(self, caller: Any) -> str:
        return str(caller())


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


class ChatTemplate:
    """A compiled chat template.

    `special_tokens` (`bos_token`, `eos_token`, ...) are variables of every rendering. Raises
    `TemplateError` when the source does not compile.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template does not compile: line {error.lineno}: {error.message}"
            ) from error

    @cached_property
    def knows_developer_role(self) -> bool:
        """Whether the template has a place for `developer` messages of its own."""
        return "developer" in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text. Raises `TemplateError` with the template's own words."""
        context = {
            **self.special_tokens,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(context)
        except Exception as error:  # a template is foreign code: any exception may come out of it
            raise TemplateError(
                f"the chat template refused these messages: {error or type(error).__name__}",
                param="messages",
            ) from error


def template_path(name: str, base: Path) -> Path | None:
    """The file a config's `chat_template` means: a path, or the name of one in `templates/`."""
    for path in (base / name, TEMPLATES_FOLDER / name, TEMPLATES_FOLDER / f"{name}.jinja"):
        if path.is_file():
            return path
    return None
