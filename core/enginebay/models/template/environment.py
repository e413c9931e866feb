"""The Jinja environment of chat templates, with what transformers provides and nothing else.

Trimmed blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that leaves non-ASCII
text and HTML characters alone, `dict` and `namespace` that cannot be used to reach Python, and `{%
generation %}` blocks, which mark text for training and have no effect here. Without `lipsum`.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.utils import Namespace

from enginebay.models.template.bounds import BoundedEnvironment
from enginebay.models.template.extents import TemplateLimitError, text_extent

_MOST_INDENT = 100


def template_environment() -> BoundedEnvironment:
    """A new environment to compile one chat template in."""
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.add_filter("tojson", _tojson, text_extent)
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012  (Jinja's own way to declare it)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_passed_through"), [], [], body).set_lineno(line)

    def _passed_through(self, caller: Any) -> str:
        return str(caller())


class _Dict:
    """`dict` as a function: the class itself would lead to everything else in Python."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """`namespace()` whose attributes cannot begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `namespace(self=...)` works
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"chat templates cannot store {name!r} on a namespace")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    between = (indent or 0, *(separators or ()))
    if any((len(x) if isinstance(x, str) else x) > _MOST_INDENT for x in between):
        raise TemplateLimitError(f"it indents JSON by more than {_MOST_INDENT} characters")
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
    return datetime.now().strftime(form)
