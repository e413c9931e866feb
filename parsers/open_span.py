"""The end of a stretch of text that belongs to the tool parser."""

import re

from enginebay import Span
from parsers.json_scanner import JsonScanner, skip
from parsers.splitter import Piece

_NO_BRACKET = re.compile(r"[^{\[]*")


class OpenSpan:
    """Finds the tag that ends a span.

    In a span of JSON, which is one that opens with a bracket, tags in strings are text.
    """

    def __init__(self, span: Span) -> None:
        self._end = span.end
        self._holds_json = bool(span.opens_with) and set(span.opens_with) <= set("{[")
        self._json: JsonScanner | None = None

    def ends_with(self, piece: Piece) -> bool:
        """Takes the next piece of the span and tells whether it is its end."""
        if piece.is_tag and piece.text == self._end and not (self._json and self._json.in_string):
            return True
        if self._holds_json:
            self._follow(piece.text)
        return False

    def _follow(self, text: str) -> None:
        at = 0
        while at < len(text):
            if self._json is None:
                at = skip(_NO_BRACKET, text, at)
                self._json = JsonScanner() if at < len(text) else None
            if self._json is not None:
                at = self._json.feed(text, at, [])
                if self._json.complete:
                    self._json = None
