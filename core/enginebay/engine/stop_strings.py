"""Stop strings over streamed text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from enginebay.contract.sampling_params import AsideMarks, SamplingParams, StopScope

_HEADER = 200  # characters before an end that its header may have
_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(?:`{3,}[^`]*$|~{3,})")
_TICKS = re.compile("`+")


def longest_overlap(text: str, pattern: str) -> int:
    """Length of the longest proper prefix of `pattern` that `text` ends with."""
    for length in range(min(len(text), len(pattern) - 1), 0, -1):
        if text.endswith(pattern[:length]):
            return length
    return 0


@dataclass(slots=True)
class StopStrings:
    """Finds the earliest stop string in the text of one completion.

    Text that could be the beginning of a stop string is held back. `found` is the stop string that
    was met, after which nothing more comes out. `keep` lets it come out, too. Hidden text may have
    stop strings as well, and comes out only as a part of one that `keep` lets out. `scope`: where
    stop strings count; None: everywhere.
    """

    strings: Sequence[str]
    keep: bool = False
    found: str | None = None
    scope: StopScope | None = None
    _held: str = field(default="", init=False)
    _hidden: list[tuple[int, int]] = field(default_factory=list, init=False)  # ranges of `_held`
    _from: int = field(default=0, init=False)  # where in `_held` the answer begins
    _answer: "_Answer | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.strings and self.scope:
            self._answer = _Answer(self.scope)

    @classmethod
    def of(cls, params: SamplingParams) -> "StopStrings":
        """The search that these params ask for."""
        return cls(params.stop, params.include_stop_str_in_output, scope=params.stop_scope)

    def feed(self, text: str, *, hidden: bool = False) -> str:
        """The text that certainly precedes any stop string."""
        if not self.strings:
            return "" if hidden else text
        if self._answer is None:
            return self._search(text, hidden=hidden)
        if not hidden:
            return self._search_each(self._answer.feed(text))
        before = self._search_each(self._answer.finish())
        return before + self._search(text, hidden=True, counts=self._answer.counts)

    def skip(self, text: str) -> str:
        """The same for text in which no stop string counts."""
        return text if self._answer is None else "".join(t for t, _ in self._answer.feed(text))

    def finish(self) -> str:
        """Held-back text that turned out not to be a stop string."""
        text = self._search_each(self._answer.finish()) if self._answer else ""
        held, self._held = self._held, ""
        return text + self._shown(held)

    def _search_each(self, pieces: Iterator[tuple[str, bool]]) -> str:
        return "".join(self._search(text, counts=counts) for text, counts in pieces)

    def _search(self, text: str, *, hidden: bool = False, counts: bool = True) -> str:
        if self.found is not None:
            return ""
        if hidden:
            self._hidden.append((len(self._held), len(self._held) + len(text)))
        text = self._held + text
        if not counts:
            self._from = len(text)
        froms = [(s, self._first(s)) for s in self.strings]
        matches = [(at + len(s), at, s) for s, first in froms if (at := text.find(s, first)) >= 0]
        if matches:
            # The one that ends first, as if the text had come character by character.
            end, at, self.found = min(matches)
            self._held = ""
            return self._shown(text[:at]) + (text[at:end] if self.keep else "")
        hold = max((longest_overlap(text[first:], s) for s, first in froms), default=0)
        self._held = text[len(text) - hold :]
        self._from = max(0, self._from - len(text) + hold)
        return self._shown(text[: len(text) - hold])

    def _first(self, string: str) -> int:
        """Where in the held text this string may begin."""
        return 0 if self.scope and string in self.scope.anywhere else self._from

    def _shown(self, text: str) -> str:
        """The text that comes out, without its hidden ranges."""
        if not self._hidden:
            return text
        shown, at = "", 0
        for start, end in self._hidden:
            shown += text[at:start]
            at = end
        size = len(text)
        self._hidden = [
            (max(0, start - size), end - size) for start, end in self._hidden if end > size
        ]
        return shown + text[at:]


class _Answer:
    """Cuts text into the answer and the rest: asides, their marks and the whitespace after them.

    Text that may be a mark is held back. In code, the end of reasoning and starts are text, except
    where messages have headers: their marks are special tokens, which no code has.
    """

    def __init__(self, scope: StopScope) -> None:
        rare = [each for each in scope.asides if each.comes != "often"]
        self._of_start = {start: each for each in scope.asides for start in each.starts}
        self._of_bare_end = {end: each for each in rare for end in each.ends if end}
        self._over: list[AsideMarks] = []
        self._begun = self._ever_begun = scope.begins == "answer"  # since the last mark, or at all
        self._held = ""
        self._before = ""  # the last characters before `_held`
        self._enter(scope.asides[0] if scope.begins == "aside" else None)

    @property
    def counts(self) -> bool:
        """Whether text other than whitespace is part of the answer now."""
        return self._aside is None

    def feed(self, text: str) -> Iterator[tuple[str, bool]]:
        """The pieces that are certain now, and whether each is part of the answer."""
        return self._cut(text, final=False)

    def finish(self) -> Iterator[tuple[str, bool]]:
        """The pieces that were held back."""
        return self._cut("", final=True)

    def _cut(self, text: str, *, final: bool) -> Iterator[tuple[str, bool]]:
        text, self._held = self._held + text, ""
        at = 0
        while match := self._mark.search(text, at):
            yield from self._pass(text[at : match.start()])
            mark, at = match.group(), match.end()
            is_mark = self._is_mark(mark, text[at:].lstrip()[:1])
            if is_mark is None and not final:
                self._held = text[match.start() :]
                return
            if is_mark:
                yield mark, False
                self._turn(mark)
            else:
                yield from self._pass(mark)
        end = len(text)
        if not final:
            end -= max((longest_overlap(text[at:], mark) for mark in self._marks), default=0)
        yield from self._pass(text[at:end])
        self._held = text[end:]

    def _pass(self, text: str) -> Iterator[tuple[str, bool]]:
        self._code.feed(text)
        self._before = (self._before + text)[-_HEADER:]
        space = 0 if self._begun or self._aside else len(text) - len(text.lstrip())
        if space:
            yield text[:space], False
        if space < len(text):
            if self._aside is None:
                self._begun = self._ever_begun = True
            yield text[space:], self._aside is None

    def _is_mark(self, mark: str, following: str) -> bool | None:
        """Whether text that looks like a mark is one; None if more has to follow."""
        if self._aside:
            if self._aside.comes != "often" and self._code.goes_on:
                return False
            return re.search(self._aside.header, self._before, re.DOTALL) is not None
        aside = self._of_start.get(mark) or self._of_bare_end[mark]
        if aside in self._over or (self._code.goes_on and not aside.header):
            return False
        if self._ever_begun and (aside.comes == "first" or mark not in aside.starts):
            return False
        if mark in aside.starts and aside.opens_with:
            return following in aside.opens_with if following else None
        return True

    def _turn(self, mark: str) -> None:
        """An aside ends with this mark, or another one begins, or both."""
        ended = self._aside or self._of_bare_end.get(mark)
        if ended and ended.comes != "often":
            self._over.append(ended)
        self._before += mark
        self._begun = False
        self._enter(None if self._aside else self._of_start.get(mark))

    def _enter(self, aside: AsideMarks | None) -> None:
        self._aside = aside
        self._code = _Code()
        self._marks = aside.ends if aside else (*self._of_start, *self._of_bare_end)
        self._mark = re.compile("|".join(map(re.escape, self._marks)) if self._marks else "(?!)")


class _Code:
    """Follows where text is code: behind backticks in a line, and in a fenced block."""

    def __init__(self) -> None:
        self._line = ""
        self._fenced = False

    def feed(self, text: str) -> None:
        """More of the text."""
        *lines, last = text.split("\n")
        for line in lines:
            self._fenced ^= _FENCE.match(self._line + line) is not None
            self._line = ""
        self._line += last

    @property
    def goes_on(self) -> bool:
        """Whether what follows is code."""
        if _FENCE.match(self._line):
            return not self._fenced
        return self._fenced or len(_TICKS.findall(self._line)) % 2 == 1
