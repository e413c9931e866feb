"""Tags in text that arrives in pieces."""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Piece(NamedTuple):
    """A whole tag, or text that holds none."""

    text: str
    is_tag: bool = False


class TagSplitter:
    """Splits text into tags and what comes between them.

    Only text that could still become a tag is held back. No tag may contain another one.

    `quotes`: a tag right between backticks is text. That is all that can be said of code where
    tags are special tokens, which follow each other without a line break.
    """

    def __init__(self, tags: Iterable[str], *, quotes: bool = False) -> None:
        known = sorted({tag for tag in tags if tag})
        firsts = "".join(sorted({tag[0] for tag in known}))
        self._first = re.compile(f"[{re.escape(firsts)}]" if known else r"(?!)")
        self._quote = "`" if quotes else None
        self._stops = f"{firsts}`" if known and quotes else firsts
        self._pattern = re.compile("|".join(map(re.escape, known)) or r"(?!)")
        self._beginnings = frozenset(tag[:n] for tag in known for n in range(1, len(tag)))
        self._longest = max(map(len, self._beginnings), default=0)
        self._held = ""
        self._before = ""

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now; neighbouring texts may come as several pieces."""
        if text and not self._held and not self._first.search(text):
            self._before = text[-1]
            return [Piece(text)]
        return self._split(text, final=False)

    def stops(self) -> str | None:
        """The characters without which text need not be fed, see `Parser.passthrough`.

        None where all text has to be: some is held back, or stands behind a quote.
        """
        quoted = self._before == self._quote and self._stops
        return None if self._held or quoted else self._stops

    def expects(self, char: str) -> bool:
        """Whether the text held back goes on as a tag with this character."""
        return self._held + char in self._beginnings

    def finish(self) -> list[Piece]:
        """The text held back, at the end, or where no tag can go on."""
        return self._split("", final=True)

    def _split(self, text: str, *, final: bool) -> list[Piece]:
        text = self._held + text
        pieces: list[Piece] = []
        at = 0
        hold = len(text)
        for match in self._pattern.finditer(text):
            begin, end = match.span()
            if (text[begin - 1] if begin else self._before) == self._quote:
                if end == len(text) and not final:
                    hold = begin
                    break
                if text.startswith(self._quote, end):
                    continue
            if begin > at:
                pieces.append(Piece(text[at:begin]))
            pieces.append(Piece(match.group(), is_tag=True))
            at = end
        else:
            if not final:
                hold -= self._beginning_at_end_of(text, at)
        if hold > at:
            pieces.append(Piece(text[at:hold]))
        if hold:
            self._before = text[hold - 1]
        self._held = text[hold:]
        return pieces

    def _beginning_at_end_of(self, text: str, at: int) -> int:
        for length in range(min(self._longest, len(text) - at), 0, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0
