"""Updates to the wire form of llama-server's own routes."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic_core import to_json

from enginebay.chat.answer.compose_openai import Head
from enginebay.chat.answer.composer import Composer, Frame, FrameTemplate, dumped
from enginebay.chat.answer.parts import content_of
from enginebay.chat.answer.usage import UsageCounter
from enginebay.contract.errors import ServingError
from enginebay.contract.types import FinishReason, Update
from enginebay_llama_server.bodies import InfillAnswer, InfillEvent

StopType = Literal["none", "eos", "limit", "word"]


class InfillComposer(Composer):
    """The one choice of an answer, in events that say whether they are the last.

    `cut`: whether something of the prompt was left out. `fields`: the paths of all that the whole
    answer has, or the last event; everything, if there are none. `with_tokens`: whether the whole
    answer has its tokens. `timings_per_token`: whether every event has the timings.
    """

    def __init__(
        self,
        head: Head,
        counter: UsageCounter,
        *,
        cut: bool = False,
        fields: Sequence[str] = (),
        with_tokens: bool = False,
        timings_per_token: bool = False,
    ) -> None:
        self._head = head
        self._counter = counter
        self._cut = cut
        self._fields = fields
        self._with_tokens = with_tokens
        self._timings_per_token = timings_per_token
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._has_new_line = False
        self._finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        self._template: FrameTemplate | None = None

    @property
    def id(self) -> str:
        return self._head.id

    def frames(self, update: Update) -> list[Frame]:
        if update.prefill:
            event = self._event("", [], 0)
            event.prompt_progress = self._counter.progress(update.prefill)
            return [Frame(dumped(event))]
        text = content_of(update.parts)
        self._note(update, text)
        if not text and not update.token_ids:
            return []
        tokens = list(update.token_ids)
        if self._timings_per_token:
            event = self._event(text, tokens, update.tokens)
            event.timings = self._counter.llama_timings
            return [Frame(dumped(event))]
        if self._template is None:
            self._template = FrameTemplate.of(self._piece, 3)
        return [self._template.fill(text, tokens, update.tokens)]

    def ending(self) -> list[Frame]:
        return [Frame(self._answer("", []))]

    def failed(self, error: ServingError) -> list[Frame]:
        return [Frame(to_json(error.body()))]

    def add(self, update: Update) -> None:
        text = content_of(update.parts)
        self._note(update, text)
        self._pieces.append(text)
        self._tokens += update.token_ids

    def whole_json(self) -> bytes:
        return self._answer("".join(self._pieces), self._tokens if self._with_tokens else [])

    def _note(self, update: Update, text: str) -> None:
        self._has_new_line = self._has_new_line or "\n" in text
        if update.finish_reason:
            self._finish_reason, self._stop_reason = update.finish_reason, update.stop_reason

    def _event(self, text: str, tokens: list[int], predicted: int) -> InfillEvent:
        return InfillEvent(
            index=0,
            content=text,
            tokens=tokens,
            stop=False,
            tokens_predicted=predicted,
            tokens_evaluated=self._counter.usage.prompt_tokens,
        )

    def _piece(self, content: object, tokens: object, predicted: object) -> Frame:
        values = self._event("", [], 0).model_dump(exclude_unset=True)
        values |= {"content": content, "tokens": tokens, "tokens_predicted": predicted}
        return Frame(to_json(values))

    def _answer(self, text: str, tokens: list[int]) -> bytes:
        usage, word = self._counter.usage, self._stop_reason
        answer = InfillAnswer(
            index=0,
            content=text,
            tokens=tokens,
            stop=True,
            model=self._head.model,
            tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens,
            tokens_cached=usage.cached_tokens,
            has_new_line=self._has_new_line,
            truncated=self._cut,
            stop_type=self._stop_type,
            stopping_word=word if isinstance(word, str) else "",
            timings=self._counter.llama_timings,
        )
        if not self._fields:
            return dumped(answer)
        return to_json(_picked(answer.model_dump(), self._fields))

    @property
    def _stop_type(self) -> StopType:
        match self._finish_reason:
            case "stop":
                return "word" if isinstance(self._stop_reason, str) else "eos"
            case "length":
                return "limit"
            case _:
                return "none"


def _picked(answer: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """What is at these paths, by path; what is nowhere is left out."""
    picked = {}
    for path in paths:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            picked[path] = value
    return picked
