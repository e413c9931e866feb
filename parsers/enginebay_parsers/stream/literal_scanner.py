"""Literals in Python syntax, read as they arrive and converted to JSON."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from enginebay_parsers.stream.json_scanner import json_escaped, json_string, skip
from enginebay_parsers.stream.literal_words import (
    ESCAPE,
    ESCAPE_BEGINS,
    Quote,
    scalar,
    unescape,
)

_SPACE = re.compile(r"\s*")
_KEYWORD = re.compile(r"([^\W\d]\w{0,255})\s{0,99}=")
_KEYWORD_BEGINS = re.compile(r"[^\W\d]\w{0,255}\s{0,99}\Z")
_PLAIN = re.compile(r"[^,:()\[\]{}<]+")
_FOLLOWS_STRING = re.compile(r"""\s{0,99}(?:[,:)\]}'"]|\Z)""")
_MAY_FOLLOW_STRING = re.compile(r"\s{0,99}\Z")
_CLOSERS = {"[": "]", "(": ")", "{": "}"}


class _State(Enum):
    ITEM = auto()
    STRING = auto()
    PLAIN = auto()
    AFTER = auto()


@dataclass(slots=True)
class _Container:
    """`separator` stands between key and value, if there are keys."""

    closer: str
    separator: str = ""
    items: int = 0
    has_key: bool = False
    # Where the JSON of a tuple begins, while it may still be a value in brackets.
    undecided_at: int | None = None

    @property
    def at_key(self) -> bool:
        return bool(self.separator) and not self.has_key


class LiteralScanner:
    """Follows one value to its end, each character once but for a few that it leaves for later.

    Strings come out as they are read. What is no literal, such as a name without quotes, becomes a
    string and makes the value inexact. `failed`: brackets, commas or colons are not where they
    must be; what came before stays as it is.

    A mark that ends a string is taken for text where no string can end, as the apostrophe in
    `'it's'`: some templates teach models to write strings without escapes.
    """

    def __init__(self, quotes: Sequence[Quote]) -> None:
        self.complete = False
        self.failed = False
        self.exact = True
        self._quotes = quotes
        self._not_special = {q: re.compile(rf"[^\\{re.escape(q.mark[0])}]+") for q in quotes}
        self._names: Sequence[str] = ()
        self._state = _State.ITEM
        self._stack: list[_Container] = []
        self._quote = quotes[0]
        self._string_is_open = False
        self._plain: list[str] = []
        self._depth = 0
        self._out: list[str] = []
        self._undecided = 0

    @classmethod
    def inside(
        cls, quotes: Sequence[Quote], closer: str, separator: str, names: Sequence[str] = ()
    ) -> "LiteralScanner":
        """Reads the text in the brackets of a call: `k=v, ...)` or `k:v, ...}`.

        `names`: those of the arguments, in order, for values that stand there without one.
        """
        scanner = cls(quotes)
        scanner._names = names
        scanner._stack.append(_Container(closer, separator))
        scanner._out.append("{")
        return scanner

    def feed(self, text: str, at: int, *, final: bool = False) -> int:
        """Reads `text` from `at` and returns where it stopped.

        That is the end of the value; or, if the text is not final, a place near the end of the
        text from which it must be read again with more after it.
        """
        steps = {
            _State.ITEM: self._read_item,
            _State.STRING: self._read_string,
            _State.PLAIN: self._read_plain,
            _State.AFTER: self._read_after,
        }
        while at < len(text) and not self.complete and not self.failed:
            state = self._state
            end = steps[state](text, at, final)
            if end == at and self._state is state:
                break
            at = end
        return at

    def finish(self) -> None:
        """The text has ended."""
        if self._state is _State.PLAIN:
            self._end_plain()
        if self._state is _State.AFTER:
            self._end_string()
            self.complete = not self._stack
        self._undecided = 0

    def take(self) -> str:
        """The JSON that has come since the last time."""
        if self._undecided and not self.failed:
            return ""
        text = "".join(self._out)
        self._out.clear()
        return text

    def _read_item(self, text: str, at: int, final: bool) -> int:
        at = skip(_SPACE, text, at)
        if at == len(text):
            return at
        top = self._stack[-1] if self._stack else None
        char = text[at]
        if top and char == top.closer and not top.has_key:
            return self._close(top, at)
        if top and top.separator == "=" and not top.has_key:
            return self._read_keyword(top, text, at, final)
        for quote in self._quotes:
            if text.startswith(quote.mark, at):
                self._begin_value(top)
                self._out.append('"')
                return self._begin_string(quote, at)
            if not final and quote.may_begin(text, at):
                return at
        if char in _CLOSERS and not (top and top.at_key):
            return self._open(char, top, at)
        if char in ",:)]}<":
            self.failed = True
            return at
        self._begin_value(top)
        self._state = _State.PLAIN
        return at

    def _read_keyword(self, top: _Container, text: str, at: int, final: bool) -> int:
        keyword = _KEYWORD.match(text, at)
        if keyword:
            name, at = keyword[1], keyword.end()
        elif not final and _KEYWORD_BEGINS.match(text, at):
            return at
        elif top.items < len(self._names):
            name = self._names[top.items]
        else:
            self.failed = True
            return at
        self._begin_value(top)
        self._out.append(f"{json_string(name)}: ")
        top.has_key = True
        # Through `_read_item` again, for the value.
        return self._read_item(text, at, final)

    def _begin_value(self, top: _Container | None) -> None:
        if top and top.items and not top.has_key:
            self._out.append(", ")

    def _open(self, char: str, top: _Container | None, at: int) -> int:
        self._begin_value(top)
        container = _Container(_CLOSERS[char], ":" if char == "{" else "")
        if char == "(":
            container.undecided_at = len(self._out)
            self._undecided += 1
        self._out.append("" if char == "(" else char)
        self._stack.append(container)
        return at + 1

    def _close(self, top: _Container, at: int) -> int:
        if not top.items:
            self._is_tuple(top)
        return self._pop(top, at)

    def _pop(self, top: _Container, at: int) -> int:
        if top.undecided_at is not None:
            self._undecided -= 1
        else:
            self._out.append("}" if top.separator else "]")
        self._stack.pop()
        self._state = _State.AFTER
        self.complete = not self._stack
        return at + 1

    def _is_tuple(self, container: _Container) -> None:
        if container.undecided_at is not None:
            self._out[container.undecided_at] = "["
            container.undecided_at = None
            self._undecided -= 1

    def _begin_string(self, quote: Quote, at: int) -> int:
        self._quote = quote
        self._state = _State.STRING
        return at + len(quote.mark)

    def _read_string(self, text: str, at: int, final: bool) -> int:
        end = skip(self._not_special[self._quote], text, at)
        if end > at:
            self._out.append(json_escaped(text[at:end]))
            return end
        if text[at] == "\\" and self._quote.escapes:
            return self._read_escape(text, at, final)
        if text.startswith(self._quote.mark, at):
            return self._read_mark(text, at, final)
        if not final and self._quote.may_begin(text, at):
            return at
        self._out.append(json_escaped(text[at]))
        return at + 1

    def _read_mark(self, text: str, at: int, final: bool) -> int:
        end = at + len(self._quote.mark)
        if self._quote.escapes:
            if not final and _MAY_FOLLOW_STRING.match(text, end):
                return at
            if not _FOLLOWS_STRING.match(text, end):
                self._out.append(json_escaped(self._quote.mark))
                return end
        self._string_is_open = True
        self._state = _State.AFTER
        return end

    def _read_escape(self, text: str, at: int, final: bool) -> int:
        if not final and ESCAPE_BEGINS.match(text, at):
            return at
        escape = ESCAPE.match(text, at)
        self._out.append(json_escaped(unescape(escape[1]) if escape else "\\"))
        return escape.end() if escape else at + 1

    def _read_plain(self, text: str, at: int, final: bool) -> int:
        end = skip(_PLAIN, text, at)
        self._plain.append(text[at:end])
        if end == len(text):
            return end
        char = text[end]
        at_key = bool(self._stack) and self._stack[-1].at_key
        if char == "<" or (not self._depth and (char in ",)]}" or (char == ":" and at_key))):
            self._end_plain()
            return end
        self._depth += (char in "([{") - (char in ")]}")
        self._plain.append(char)
        return end + 1

    def _end_plain(self) -> None:
        text = "".join(self._plain).strip()
        self._plain.clear()
        self._depth = 0
        json_text = scalar(text)
        if json_text is None:
            self.exact = False
            json_text = json_string(text)
        at_key = bool(self._stack) and self._stack[-1].at_key
        is_string = json_text.startswith('"')
        self._out.append(json_string(json_text) if at_key and not is_string else json_text)
        self._state = _State.AFTER

    def _read_after(self, text: str, at: int, final: bool) -> int:
        at = skip(_SPACE, text, at)
        if at == len(text):
            return at
        if self._string_is_open and self._quote.escapes:
            # Strings next to each other are one.
            for quote in self._quotes:
                if text.startswith(quote.mark, at):
                    self._string_is_open = False
                    return self._begin_string(quote, at)
                if not final and quote.may_begin(text, at):
                    return at
        self._end_string()
        if not self._stack:
            self.complete = True
            return at
        top, char = self._stack[-1], text[at]
        if top.at_key:
            self.failed = char != ":"
            top.has_key = True
            self._out.append(": " if char == ":" else "")
        elif char == ",":
            self._is_tuple(top)
            top.has_key = False
            top.items += 1
        elif char == top.closer:
            return self._pop(top, at)
        else:
            self.failed = True
        self._state = _State.ITEM
        return at if self.failed else at + 1

    def _end_string(self) -> None:
        if self._string_is_open:
            self._out.append('"')
            self._string_is_open = False
