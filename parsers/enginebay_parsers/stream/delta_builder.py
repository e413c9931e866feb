"""What one `feed` gives out: parts, and which characters of the text were reasoning."""

from collections.abc import Callable

from enginebay import ContentDelta, Part, ReasoningDelta, ToolCallDelta


class DeltaBuilder:
    """Collects parts in order and joins neighbours of one kind.

    The name of a tool call stays a part of its own; its arguments join after it.
    """

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._kind: object = None
        self._texts: list[str] = []
        self._make: Callable[[str], Part] = ContentDelta

    def content(self, text: str) -> None:
        """More of the answer."""
        self._add(ContentDelta, text, ContentDelta)

    def reasoning(self, text: str) -> None:
        """More thinking aloud."""
        self._add(ReasoningDelta, text, ReasoningDelta)

    def name(self, index: int, name: str, id: str | None = None) -> None:
        """The beginning of tool call number `index`; `id` is what the model calls it."""
        self._join()
        self._parts.append(ToolCallDelta(index, name=name, id=id))

    def arguments(self, index: int, text: str) -> None:
        """More arguments of tool call number `index`."""
        self._add(index, text, lambda joined: ToolCallDelta(index, arguments=joined))

    def take(self) -> list[Part]:
        """Everything collected since the last time."""
        self._join()
        parts, self._parts = self._parts, []
        return parts

    def _add(self, kind: object, text: str, make: Callable[[str], Part]) -> None:
        if not text:
            return
        if kind != self._kind:
            self._join()
            self._kind, self._make = kind, make
        self._texts.append(text)

    def _join(self) -> None:
        if self._texts:
            self._parts.append(self._make("".join(self._texts)))
        self._kind, self._texts = None, []


class ReasoningRanges:
    """Notes in order how many characters are reasoning, tags included, or are not."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, bool]] = []

    def add(self, characters: int, *, reasoning: bool) -> None:
        """This many more characters of the text are reasoning, or are not."""
        if self._ranges and self._ranges[-1][1] == reasoning:
            characters += self._ranges.pop()[0]
        if characters:
            self._ranges.append((characters, reasoning))

    def take(self) -> list[tuple[int, bool]]:
        """Everything noted since the last time."""
        ranges, self._ranges = self._ranges, []
        return ranges
