"""A generated text as KoboldCpp has it: an event a piece, or one result."""

from typing import Literal

from pydantic_core import to_json

from enginebay.chat.answer.composer import Composer, Frame, FrameTemplate
from enginebay.chat.answer.parts import content_of
from enginebay.contract.errors import ServingError
from enginebay.contract.types import FinishReason, Update
from enginebay_kobold.bodies import Generated, GeneratedText


def _event(token: str, finish_reason: str | None) -> Frame:
    return Frame(to_json({"token": token, "finish_reason": finish_reason}), "message")


class KoboldComposer(Composer):
    """The one text of an answer. `ended`: nothing more comes; why, is in `finish_reason`."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._pieces: list[str] = []
        self._piece = FrameTemplate.of(lambda piece: _event(piece, None))
        self.ended = False
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def text(self) -> str:
        """What has been generated so far."""
        return "".join(self._pieces)

    def frames(self, update: Update) -> list[Frame]:
        text = self._gained(update)
        if update.finish_reason:
            return [_event(text, self._shown_reason)]
        return [self._piece.fill(text)] if text else []

    def ending(self) -> list[Frame]:
        return []

    def failed(self, error: ServingError) -> list[Frame]:
        self.ended = True
        return [Frame(to_json(error.body()), "message")]

    def add(self, update: Update) -> None:
        self._gained(update)

    def whole_json(self) -> bytes:
        result = GeneratedText(text=self.text, finish_reason=self._shown_reason)
        return Generated(results=[result]).model_dump_json().encode()

    def _gained(self, update: Update) -> str:
        text = content_of(update.parts)
        self._pieces.append(text)
        if update.finish_reason:
            self.finish_reason, self.stop_reason = update.finish_reason, update.stop_reason
            self.ended = True
        return text

    @property
    def _shown_reason(self) -> Literal["stop", "length"]:
        return "length" if self.finish_reason == "length" else "stop"
