"""The parts that one `feed` gives out."""

from collections.abc import Callable

from enginebay import ContentDelta, Part, ReasoningDelta, ToolCallDelta


class Parts:
    """Collects parts in order and joins neighbours of one kind.

    The name of a tool call stays a part of its own; its arguments join behind it.
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
