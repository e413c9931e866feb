"""Chat templates: sandboxed Jinja that renders exactly what transformers renders.

The environment and the treatment of messages are those of `apply_chat_template`
(https://huggingface.co/docs/transformers/chat_templating_writing, `render_jinja_template` in
https://github.com/huggingface/transformers/blob/main/src/transformers/utils/chat_template_utils.py).
"""

import asyncio
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import jinja2
from jinja2 import meta, nodes

import enginebay
from enginebay.contract.errors import InvalidRequestError
from enginebay.models.template.bounds import TOO_LATE, deadline
from enginebay.models.template.environment import template_environment
from enginebay.models.template.extents import TemplateLimitError
from enginebay.models.template.final_message import (
    REASONING_FIELDS,
    cut_at_mark,
    mark_final_message,
)

_PACKAGE = Path(enginebay.__file__).parent
_INSTALLED = _PACKAGE / "templates"
TEMPLATES_FOLDER = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parents[1] / "templates"
"""The shipped templates: inside `enginebay` if it is installed, else at the top of the checkout."""
Arguments = ParamSpec("Arguments")
Built = TypeVar("Built")

_ALWAYS_THERE = ("messages", "tools", "documents", "add_generation_prompt")
_COMPUTED = ("datetime", "functions")  # by `TemplateFeatures`, for the few that read them
_ALIKE = 0.85  # from 0 to 1


class TemplateError(InvalidRequestError):
    """A chat template that cannot be compiled, or that rejected these messages."""

    code = "chat_template_error"


class TemplateStoppedError(TemplateError):
    """A chat template that was stopped because it writes too much or takes too long."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the chat template ({name}) was stopped: {reason}", param="messages")
        self.reason = reason


class TemplateLateError(TemplateStoppedError):
    """A chat template that was stopped by the clock: a probe of it has found out nothing."""


class Template(Protocol):
    """What is asked of a chat template: of `ChatTemplate`, or of `ForeignTemplate`."""

    name: str
    source: str
    special_tokens: dict[str, str]

    @property
    def variables(self) -> frozenset[str]: ...
    @property
    def settings(self) -> frozenset[str]: ...
    @property
    def mistakes(self) -> Mapping[str, str]: ...
    @property
    def keys(self) -> frozenset[str]: ...
    @property
    def stop_strings(self) -> tuple[str, ...]: ...
    @property
    def render(self) -> Callable[..., str]: ...

    async def run(
        self,
        build: Callable[Arguments, Built],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Built:
        """What `build` returns, on a thread where it may render this template."""


class ChatTemplate:
    """A chat template that is compiled and rendered here, as only Enginebay's own are in a server.

    `special_tokens` (`bos_token`, `eos_token`, ...) are variables of every rendering. `name`
    identifies it in messages. Raises `TemplateError` when the source does not compile. What it may
    cost is bounded, as in `bounds`.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], *, name: str = "the model's"
    ) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.name = name
        self._environment = template_environment()
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template ({name}) does not compile: line {error.lineno}: {error.message}"
            ) from error
        except RecursionError as error:
            raise TemplateError(f"the chat template ({name}) is nested too deeply") from error
        except Exception as error:  # constant expressions are evaluated now and may fail
            raise TemplateError(
                f"the chat template ({name}) does not compile: {_words(error)}"
            ) from error

    @cached_property
    def variables(self) -> frozenset[str]:
        """Variables that the template reads beside messages, tools, documents and tokens."""
        read = meta.find_undeclared_variables(self._environment.parse(self.source))
        return frozenset(read) - {*_ALWAYS_THERE, *self._environment.globals, *self.special_tokens}

    @cached_property
    def keys(self) -> frozenset[str]:
        """Names of attributes and items that the template reads of anything, and other texts."""
        tree = self._environment.parse(self.source)
        texts = (each.value for each in tree.find_all(nodes.Const) if isinstance(each.value, str))
        return frozenset((*(each.attr for each in tree.find_all(nodes.Getattr)), *texts))

    @cached_property
    def settings(self) -> frozenset[str]:
        """The variables that callers can set: those it does not only use internally."""
        tree = self._environment.parse(self.source)
        asked_for = {
            test.node.name
            for test in tree.find_all(nodes.Test)
            if test.name in ("defined", "undefined") and isinstance(test.node, nodes.Name)
        }
        return (self._free - set(self.mistakes)) | (self.variables & asked_for)

    @cached_property
    def mistakes(self) -> Mapping[str, str]:
        """What is wrong with names that are probably mistakes, by name.

        The template never asks whether they have a value, or they resemble a name that it gets.
        """
        tree = self._environment.parse(self.source)
        asked_for = {name.name for name in _asked_for(tree)}
        found: dict[str, str] = {}
        for name in tree.find_all(nodes.Name):
            meant = difflib.get_close_matches(name.name, _ALWAYS_THERE, 1, _ALIKE)
            if name.name in self._free and (meant or name.name not in asked_for):
                hint = f"; did you mean {meant[0]!r}?" if meant else ""
                found.setdefault(name.name, f"line {name.lineno}: {name.name!r} is undefined{hint}")
        return found

    @cached_property
    def _free(self) -> frozenset[str]:
        """Variables that the template only reads."""
        tree = self._environment.parse(self.source)
        own = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
        return frozenset(
            name
            for name in self.variables - own
            if name not in _COMPUTED and not name.endswith("_token")
        )

    @cached_property
    def stop_strings(self) -> tuple[str, ...]:
        """Stop strings that the template declares: `{% set stop_strings = [...] %}`.

        At its top level, as in TabbyAPI's templates.
        """
        for node in self._environment.parse(self.source).body:
            if not isinstance(node, nodes.Assign) or not isinstance(node.target, nodes.Name):
                continue
            if node.target.name == "stop_strings" and isinstance(node.node, nodes.Expr):
                try:
                    stated = node.node.as_const()
                except nodes.Impossible:
                    return ()
                texts = stated if isinstance(stated, list | tuple) else [stated]
                return tuple(text for text in texts if isinstance(text, str) and text)
        return ()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | str = False,
        variables: Mapping[str, Any] | None = None,
        drop_nulls: bool = True,
    ) -> str:
        """The prompt text.

        `continue_final_message`: end inside the last message, so that the model continues it; a
        string names the field to continue, `content` by default. `variables` take precedence over
        special tokens of the same name. `drop_nulls`: leave out null fields of messages. Raises
        `TemplateError` with the template's own words.
        """
        chat = [_as_templates_read_it(message, drop_nulls=drop_nulls) for message in messages]
        field = "content" if continue_final_message is True else continue_final_message
        if field:
            mark_final_message(chat, field, self.source)
        context = {
            **self.special_tokens,
            **(variables or {}),
            "messages": chat,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._template.render(context | deadline())
        except (TemplateLimitError, MemoryError) as error:
            reason = str(error) or "it needs too much memory"
            kind = TemplateLateError if reason == TOO_LATE else TemplateStoppedError
            raise kind(self.name, reason) from error
        except Exception as error:  # a template is foreign code: any exception may come out of it
            raise TemplateError(
                f"the chat template ({self.name}) refused these messages: {_words(error)}",
                param="messages",
            ) from error
        return cut_at_mark(text, messages[-1], field) if field else text

    async def run(
        self,
        build: Callable[Arguments, Built],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Built:
        """What `build` returns, on a thread."""
        return await asyncio.to_thread(build, *args, **kwargs)


def _asked_for(node: nodes.Node) -> Iterator[nodes.Name]:
    """Names of which a template asks whether they have a value, or which one."""
    for each in node.find_all((nodes.If, nodes.CondExpr, nodes.Not, nodes.And, nodes.Or)):
        parts = (each.left, each.right) if isinstance(each, nodes.BinExpr) else ()
        asked = getattr(each, "test", None) or getattr(each, "node", None)
        yield from (part for part in (asked, *parts) if isinstance(part, nodes.Name))
    for each in node.find_all((nodes.Test, nodes.Filter)):
        if isinstance(each, nodes.Test) or each.name in ("default", "d"):
            yield from [each.node] if isinstance(each.node, nodes.Name) else ()
    for compared in node.find_all(nodes.Compare):
        sides = (compared.expr, *(operand.expr for operand in compared.ops))
        yield from (side for side in sides if isinstance(side, nodes.Name))


def _as_templates_read_it(message: Mapping[str, Any], *, drop_nulls: bool) -> dict[str, Any]:
    """With reasoning under the field names that templates read."""
    fields = {k: v for k, v in message.items() if v is not None or not drop_nulls}
    named = (fields.get(name) for name in REASONING_FIELDS)
    reasoning = next((text for text in named if text is not None), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    return fields


def _words(error: Exception) -> str:
    """The template's own message, or the error raised in it."""
    text = str(error)
    if isinstance(error, jinja2.TemplateError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def template_path(name: str, base: Path) -> Path | None:
    """The file of a config's `chat_template`: a path, or the name of one in `templates/`."""
    if (base / name).is_file():
        return base / name
    return template_files(base).get(name.removesuffix(".jinja"))


def template_files(base: Path) -> dict[str, Path]:
    """The templates that are shipped, next to the config file and in `templates/` there, by name.

    Of those with the same name, the last of these.
    """
    folders = (TEMPLATES_FOLDER, base, base / "templates")
    files = (path for folder in folders for path in sorted(folder.glob("*.jinja")))
    return {path.stem: path for path in files if path.stem.isprintable()}
