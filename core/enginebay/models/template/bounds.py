"""What a chat template may cost: Jinja's sandbox keeps it from Python, not from memory and time.

`BoundedEnvironment` refuses a value above `MOST_BYTES` before it is made, wherever one operation
can make a large value of small ones, and checks the time at every turn of a loop and every call.
What is left to a template is many values below the limit, and a slow step on large ones; a
template of a request therefore also has a process of its own (`request_templates`).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from enginebay.models.template.extents import (
    FILTERS,
    METHODS,
    MOST_BYTES,
    OPERATORS,
    Extent,
    TemplateLimitError,
    check,
    extent_of,
    length,
    utf8_bytes,
    written,
)

MOST_SECONDS = 5.0
"""The longest that one rendering takes."""
TOO_LATE = f"it takes longer than {MOST_SECONDS:.0f} seconds"
"""Why a template was stopped then."""
_MOST_SPENT = 4 * MOST_BYTES  # by all expressions; those in blocks and macros may count twice
_JOINED_AT_ONCE = 16  # parts of the output
_SPENT = " spent"  # no variable of a template can be called that
_TICK, _CONCAT = " tick", " concat"


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates are bounded. Render with `**deadline(seconds)` among the variables.

    Raises `TemplateLimitError` from the rendering. One environment can render on several threads.
    """

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_finalized, **options)
        self.filters |= {_TICK: _tick, _CONCAT: _concat}
        self.filters |= {name: _bounded(self.filters[name], FILTERS[name]) for name in FILTERS}

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The joined output of a template, macro or block."""
        rest = iter(parts)
        texts: list[str] = []
        size = 0
        while some := list(islice(rest, _JOINED_AT_ONCE)):
            text = "".join(some)
            size += utf8_bytes(text)
            check(size)
            texts.append(text)
        return "".join(texts)

    def add_filter(self, name: str, function: Callable[..., Any], extent: Extent) -> None:
        """A filter of ours; `extent` bounds the length of what it returns, by its arguments."""
        self.filters[name] = _bounded(function, extent)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The result of an operator, unless that is too large."""
        if operator == "+":  # most often, and never much larger than what there was
            total = left + right
            if not isinstance(total, str) or len(total) > MOST_BYTES:
                check(length(total))
            return total
        OPERATORS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of a call, unless it is too late for one, or its result is too large."""
        _tick(__context)
        method = getattr(__obj, "__wrapped__", __obj)  # of `format`, which the sandbox wraps
        extent = METHODS.get(method.__name__) if isinstance(method, BuiltinMethodType) else None
        if extent and isinstance(method.__self__, str | bytes | int):
            args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
            check(extent_of(extent, method.__self__, *args, **kwargs))
        return super().call(__context, __obj, *args, **kwargs)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Ticking().visit(source), *args, **kwargs)


def deadline(seconds: float = MOST_SECONDS) -> dict[str, Any]:
    """The variable that bounds one rendering, which ends after `seconds` from now."""
    return {_SPENT: _Spent(time.monotonic() + seconds)}


@dataclass(slots=True)
class _Spent:
    """What a rendering has used: bytes written, inside of blocks too; it ends at `end`."""

    end: float
    size: int = 0


class _Ticking(NodeTransformer):
    """Checks the time at every turn of a loop, and the length of what `~` joins."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        tick = nodes.Filter(nodes.Const(None), _TICK, [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        joined = nodes.Filter(nodes.List(node.nodes), _CONCAT, [], [], None, None)
        return joined.set_lineno(node.lineno)


@pass_context
def _tick(context: Context, value: None = None) -> None:
    spent = context.parent.get(_SPENT)
    if spent and time.monotonic() > spent.end:
        raise TemplateLimitError(TOO_LATE)


def _concat(values: list[Any]) -> str:
    check(sum(map(written, values)))
    return "".join(map(str, values))


def _bounded(function: Callable[..., Any], extent: Extent) -> Callable[..., Any]:
    """The same filter, unless its result is too large."""

    def bounded(*args: Any, **kwargs: Any) -> Any:
        passed = args if takes_first is None else args[1:]
        value, *rest = passed
        if isinstance(value, Iterator):  # it can be read only once
            value = list(value)
        check(extent_of(extent, value, *rest, **kwargs))
        return function(*args[: len(args) - len(passed)], value, *rest, **kwargs)

    takes_first = getattr(function, "jinja_pass_arg", None)
    if takes_first is not None:
        bounded.jinja_pass_arg = takes_first  # type: ignore[attr-defined]
    return bounded


@pass_context
def _finalized(context: Context, value: Any) -> Any:
    """What an expression in a text is, unless it is too long to be written."""
    size = written(value)
    check(size)
    if spent := context.parent.get(_SPENT):
        spent.size += size
        if spent.size > _MOST_SPENT:
            check(spent.size)
    return value
