"""Answers whose streams tell of one item after the other."""

from abc import abstractmethod
from collections.abc import Iterable

from core.apis.items import Gain, Item, Items
from core.chat.answer.collector import text_of
from core.chat.answer.composer import Composer, Frame, FrameTemplate
from core.chat.answer.usage import UsageCounter
from core.contract.types import (
    ContentDelta,
    FinishReason,
    Part,
    ReasoningDelta,
    Update,
)


class ItemComposer(Composer):
    """The one choice of an answer, as frames about its items, or all of them.

    `tells_reasoning`: whether thought is an item, or left out.
    """

    def __init__(self, id: str, counter: UsageCounter, *, tells_reasoning: bool = True) -> None:
        self._id = id
        self.counter = counter
        self.items = Items()
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self._tells_reasoning = tells_reasoning
        self._opened = False
        self._template: FrameTemplate | None = None

    @property
    def id(self) -> str:
        return self._id

    def frames(self, update: Update) -> list[Frame]:
        parts = self._told(update)
        if len(parts) == 1 and not update.finish_reason and (ready := self._ready_made(parts[0])):
            return [ready]
        frames: list[Frame] = []
        if not self._opened:
            self._opened = True
            frames += self.opening()
        for part in parts:
            frames += self._gained(self.items.add(part))
        self._note_end(update)
        return frames

    def ending(self) -> list[Frame]:
        last = self.items.open
        return [*(self.closed(last) if last else ()), *self.closing()]

    def add(self, update: Update) -> None:
        for part in self._told(update):
            self.items.add(part)
        self._note_end(update)

    @abstractmethod
    def opening(self) -> Iterable[Frame]:
        """What a stream begins with, once the engine has answered."""

    @abstractmethod
    def opened(self, item: Item) -> Iterable[Frame]:
        """What announces an item, of which `gained` tells the first piece."""

    @abstractmethod
    def gained(self, gain: Gain) -> Iterable[Frame]:
        """What an item gains; a text that is empty is none."""

    @abstractmethod
    def closed(self, item: Item) -> Iterable[Frame]:
        """What says that an item is complete; the last one when the answer has ended or failed."""

    @abstractmethod
    def closing(self) -> Iterable[Frame]:
        """What a stream ends with, behind its last item."""

    def delta_template(self, item: Item) -> FrameTemplate | None:
        """The frame of a gain of this item that is only text; None if there is no such frame."""
        return None

    def filled(self, template: FrameTemplate, text: str) -> Frame:
        """A frame of the open item's template for this text."""
        return template.fill(text)

    def _told(self, update: Update) -> list[Part]:
        if self._tells_reasoning:
            return update.parts
        return [part for part in update.parts if not isinstance(part, ReasoningDelta)]

    def _gained(self, gain: Gain) -> Iterable[Frame]:
        if gain.opens:
            self._template = None
            if gain.closed:
                yield from self.closed(gain.closed)
            yield from self.opened(gain.item)
        if gain.text or gain.logprobs:
            yield from self.gained(gain)

    def _ready_made(self, part: Part) -> Frame | None:
        """What `gained` says of a text that goes on; None for an item's first two pieces."""
        item, text = self.items.open, text_of(part)
        if item is None or len(item.pieces) < 2 or not text or not self.items.goes_on(part):
            return None
        if isinstance(part, ContentDelta) and part.logprobs:
            return None
        if self._template is None:
            self._template = self.delta_template(item)
            if self._template is None:
                return None
        self.items.add(part)
        return self.filled(self._template, text)

    def _note_end(self, update: Update) -> None:
        if update.finish_reason:
            self.finish_reason, self.stop_reason = update.finish_reason, update.stop_reason
