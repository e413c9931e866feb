"""Stop strings over streamed text."""

from collections.abc import Sequence
from dataclasses import dataclass, field


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
    stop strings as well, and comes out only as a part of one that `keep` lets out.
    """

    strings: Sequence[str]
    keep: bool = False
    found: str | None = None
    _held: str = field(default="", init=False)
    _hidden: list[tuple[int, int]] = field(default_factory=list, init=False)  # ranges of `_held`

    def feed(self, text: str, *, hidden: bool = False) -> str:
        """The text that certainly precedes any stop string."""
        if not self.strings:
            return "" if hidden else text
        if self.found is not None:
            return ""
        if hidden:
            self._hidden.append((len(self._held), len(self._held) + len(text)))
        text = self._held + text
        matches = [(at + len(s), at, s) for s in self.strings if (at := text.find(s)) >= 0]
        if matches:
            # The one that ends first, as if the text had come character by character.
            end, at, self.found = min(matches)
            self._held = ""
            return self._shown(text[:at]) + (text[at:end] if self.keep else "")
        hold = max((longest_overlap(text, s) for s in self.strings), default=0)
        self._held = text[len(text) - hold :]
        return self._shown(text[: len(text) - hold])

    def finish(self) -> str:
        """Held-back text that turned out not to be a stop string."""
        text, self._held = self._held, ""
        return self._shown(text)

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
