"""Parts of an answer as items, of which one is open at a time."""

from dataclasses import dataclass, field
from typing import Literal

from enginebay.chat.answer.parts import text_of
from enginebay.contract.types import (
    ContentDelta,
    Part,
    ReasoningDelta,
    RefusalDelta,
    TokenLogprob,
    ToolCallDelta,
)

Kind = Literal["text", "reasoning", "refusal", "call"]

_KINDS: dict[type[Part], Kind] = {
    ContentDelta: "text",
    ReasoningDelta: "reasoning",
    RefusalDelta: "refusal",
    ToolCallDelta: "call",
}


@dataclass(slots=True)
class Item:
    """A text, a thought, a refusal or a call, as far as it has come.

    `number`: its place among the items. `name` and `call_id` are a call's; the pieces of its text
    are those of its arguments.
    """

    kind: Kind
    number: int
    name: str = ""
    call_id: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it; of a call the JSON text of its arguments."""
        return "".join(self.pieces)


@dataclass(slots=True)
class Gain:
    """What a part comes to: `item` gains `text`, and is a new one if it `opens`.

    `closed`: the item that was open before, which is complete now.
    """

    item: Item
    text: str
    logprobs: tuple[TokenLogprob, ...]
    opens: bool
    closed: Item | None


class Items:
    """The items of one choice. A part of another kind, or of another call, opens the next."""

    def __init__(self) -> None:
        self.all: list[Item] = []
        self._call: int | None = None  # the index of the open one

    @property
    def open(self) -> Item | None:
        """The last one, which is not complete until another opens, or the answer ends."""
        return self.all[-1] if self.all else None

    @property
    def calls(self) -> list[Item]:
        """Those that are calls."""
        return [item for item in self.all if item.kind == "call"]

    def goes_on(self, part: Part) -> bool:
        """Whether a part belongs to the open item."""
        if not self.all or self.all[-1].kind != _KINDS[type(part)]:
            return False
        return not isinstance(part, ToolCallDelta) or part.index == self._call

    def add(self, part: Part) -> Gain:
        """Add a part to the open item, or open one with it."""
        closed = None
        opens = not self.goes_on(part)
        if opens:
            closed = self.open
            self.all.append(self._opened(part))
        item = self.all[-1]
        text = text_of(part)
        logprobs = part.logprobs if isinstance(part, ContentDelta) else ()
        item.pieces.append(text)
        item.logprobs += logprobs
        return Gain(item, text, logprobs, opens, closed)

    def _opened(self, part: Part) -> Item:
        item = Item(_KINDS[type(part)], len(self.all))
        if isinstance(part, ToolCallDelta):
            self._call = part.index
            item.name, item.call_id = part.name or "", part.id or ""
        return item
