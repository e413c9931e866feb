"""JSON in text that arrives in pieces: where a value ends, and how text is written as a string."""

import json
import re

_IN_STRING = re.compile(r'[^"\\]*')
_OUTSIDE = re.compile(r'[^"{}\[\]]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_CONTROL = re.compile(r"[\x00-\x1f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a match of `pattern` at `at` ends; `at` itself when there is none."""
    match = pattern.match(text, at)
    return match.end() if match else at


def skip_space(text: str, at: int = 0) -> int:
    """Where JSON's white space ends."""
    return skip(_SPACE, text, at)


class JsonScanner:
    """Follows one JSON string, object or array to its end, each character once.

    It looks for the end and not for mistakes: brackets are counted, strings are recognised,
    and whatever stands between is let through. What it reads comes out as written, but for one
    mistake that models often make and JSON allows one reading of: a control character in a string,
    such as a line break in a piece of code, becomes its escape.
    """

    def __init__(self) -> None:
        self.complete = False
        self.in_string = False
        self.sound: bool | None = True
        self._depth = 0
        self._escaped = False
        self._was_string = False

    def watch(self) -> None:
        """Makes `sound` tell how the string that is open now turns out.

        None until it is known; False when the string has closed and something follows that cannot
        follow a string. The end of the outermost value leaves it None: what may follow that, only
        the caller knows.
        """
        self.sound = None

    def feed(self, text: str, at: int, out: list[str]) -> int:
        """Reads `text` from `at`, adds what it read to `out` and returns where it stopped.

        It stops at the end of the text or of the value, which is then `complete`.
        """
        while at < len(text) and not self.complete:
            if self._escaped:
                self._escaped = False
                out.append(text[at])
                at += 1
            elif self.in_string:
                at = self._read_string(text, at, out)
            else:
                at = self._read_outside(text, at, out)
        return at

    def _read_string(self, text: str, at: int, out: list[str]) -> int:
        end = skip(_IN_STRING, text, at)
        out.append(_CONTROL.sub(_escape, text[at:end]))
        if end == len(text):
            return end
        out.append(text[end])
        if text[end] == "\\":
            self._escaped = True
        else:
            self.in_string = False
            self._was_string = self._depth > 0 and self.sound is None
            self.complete = self._depth == 0
        return end + 1

    def _read_outside(self, text: str, at: int, out: list[str]) -> int:
        if self._was_string:
            follower = skip_space(text, at)
            if follower < len(text):
                self._was_string = False
                self.sound = text[follower] in ",:}]"
        end = skip(_OUTSIDE, text, at)
        out.append(text[at : end + 1])
        if end == len(text):
            return end
        if text[end] == '"':
            self.in_string = True
        elif text[end] in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self.complete = self._depth <= 0
        return end + 1


def json_escaped(text: str) -> str:
    """`text` as it stands between the quotes of a JSON string.

    Halves of surrogate pairs become escapes: they cannot be sent as UTF-8.
    """
    return _SURROGATE.sub(_escape, json.dumps(text, ensure_ascii=False)[1:-1])


def json_string(text: str) -> str:
    """`text` as a JSON string."""
    return f'"{json_escaped(text)}"'


def _escape(char: re.Match[str]) -> str:
    return json.dumps(char.group())[1:-1]
