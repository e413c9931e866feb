"""Answers whose streams tell of one item after the other."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from uuid import uuid4

from enginebay.apis.items import Gain, Item, Items
from enginebay.chat.answer.composer import Composer, Frame, FrameTemplate
from enginebay.chat.answer.logprobs import LogprobForm
from enginebay.chat.answer.parts import text_of
from enginebay.chat.answer.usage import UsageCounter
from enginebay.contract.types import (
    ContentDelta,
    FinishReason,
    Part,
    ReasoningDelta,
    TokenLogprob,
    Update,
)


class ItemComposer(Composer):
    """The one choice of an answer, as frames about its items, or all of them.

    `form`: how logprobs are written. `tells_reasoning`: whether thought is an item, or left out.
    """

    def __init__(
        self, id: str, counter: UsageCounter, form: LogprobForm, *, tells_reasoning: bool = True
    ) -> None:
        self._id = id
        self.counter = counter
        self.form = form
        self.items = Items()
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self._tells_reasoning = tells_reasoning
        self._opened = False
        self._templates: dict[bool, FrameTemplate | None] = {}  # of the open item

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
    def gained(
        self, item: Item, text: str, logprobs: Sequence[TokenLogprob], stamp: str | None = None
    ) -> Frame | None:
        """What an item gains, with this stamp or the next one; None if this is not told of it."""

    def stamp(self) -> object:
        """What else is new in each frame of `gained`, if anything is."""
        return None

    @abstractmethod
    def closed(self, item: Item) -> Iterable[Frame]:
        """What says that an item is complete; the last one when the answer has ended or failed."""

    @abstractmethod
    def closing(self) -> Iterable[Frame]:
        """What a stream ends with, behind its last item."""

    def _told(self, update: Update) -> list[Part]:
        if self._tells_reasoning:
            return update.parts
        return [part for part in update.parts if not isinstance(part, ReasoningDelta)]

    def _gained(self, gain: Gain) -> Iterable[Frame]:
        if gain.opens:
            self._templates.clear()
            if gain.closed:
                yield from self.closed(gain.closed)
            yield from self.opened(gain.item)
        if gain.text or gain.logprobs:
            frame = self.gained(gain.item, gain.text, gain.logprobs)
            yield from [frame] if frame else []

    def _ready_made(self, part: Part) -> Frame | None:
        """What `gained` says of a text that goes on; None for an item's first two pieces."""
        item, text = self.items.open, text_of(part)
        if item is None or len(item.pieces) < 2 or not text or not self.items.goes_on(part):
            return None
        logprobs = part.logprobs if isinstance(part, ContentDelta) else ()
        kind = bool(logprobs)
        if kind not in self._templates:
            self._templates[kind] = self._template(item, with_logprobs=kind)
        if (template := self._templates[kind]) is None:
            return None
        self.items.add(part)
        return template.fill(
            text, self.form.chat_json(logprobs) if logprobs else None, self.stamp()
        )

    def _template(self, item: Item, *, with_logprobs: bool) -> FrameTemplate | None:
        text, stamp = uuid4().hex, uuid4().hex
        logprobs = (TokenLogprob(0, "", 0.0),) if with_logprobs else ()
        frame = self.gained(item, text, logprobs, stamp)
        json = self.form.chat_json(logprobs) if logprobs else None
        return FrameTemplate(frame, (text, json, stamp)) if frame else None

    def _note_end(self, update: Update) -> None:
        if update.finish_reason:
            self.finish_reason, self.stop_reason = update.finish_reason, update.stop_reason
