"""What OpenAI's chat completions and text completions share on the wire."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import time
from typing import TypeVar
from uuid import uuid4

from pydantic_core import to_json

from enginebay.chat.answer.composer import Composer, Frame, FrameTemplate, dumped
from enginebay.chat.answer.parts import text_of
from enginebay.chat.answer.usage import UsageCounter
from enginebay.chat.schemas.error_bodies import ErrorBody
from enginebay.chat.schemas.usage_bodies import WireAnswer
from enginebay.contract.errors import ServingError
from enginebay.contract.types import (
    ContentDelta,
    Part,
    ToolCallDelta,
    Update,
)

Wire = TypeVar("Wire", bound=WireAnswer)

_Kind = tuple[int, type[Part], int | None, bool]
"""What chunks have in common that differ in their text only: their choice, what they are a part of,
the number of a call, and whether they have logprobs.
"""


@dataclass(frozen=True, slots=True)
class Head:
    """Fields that are the same throughout an answer; `created` is in seconds."""

    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time()))


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageForm:
    """Where a stream shows its usage.

    `included`: at its end, and chunks without usage say so, as OpenAI's do. `continuous`: in every
    chunk. `with_finish`: at the end it comes in the last chunk that has a `finish_reason`, not in
    one of its own. `timings` of llama-server are in an answer, and a stream's last chunk;
    `timings_per_token`: in every chunk.
    """

    included: bool = False
    continuous: bool = False
    with_finish: bool = False
    timings: bool = False
    timings_per_token: bool = False


class OpenAIComposer(Composer):
    """The chunks of a stream, or one answer, with any number of choices.

    `prompt_token_ids`: the tokens of each prompt, for an answer that shows token ids.
    """

    def __init__(
        self,
        head: Head,
        choices: int,
        counter: UsageCounter,
        *,
        usage: UsageForm,
        prompt_token_ids: Sequence[list[int]] | None = None,
    ) -> None:
        self.head = head
        self.choices = choices
        self._counter = counter
        self._usage = usage
        self._prompt_token_ids = prompt_token_ids
        self._token_ids: list[list[int]] = [[] for _ in range(choices)]
        self._templates: dict[_Kind, FrameTemplate | None] = {}
        self._unfinished = choices
        self._counts = usage.continuous or usage.timings_per_token or prompt_token_ids is not None
        self._finish: WireAnswer | None = None

    @property
    def id(self) -> str:
        return self.head.id

    def frames(self, update: Update) -> list[Frame]:
        if (part := _only_text(update)) is None:
            return [Frame(dumped(chunk)) for chunk in self.sent(update)]
        logprobs = isinstance(part, ContentDelta) and bool(part.logprobs)
        call = part.index if isinstance(part, ToolCallDelta) else None
        kind = update.index, type(part), call, logprobs
        if template := self._templates.get(kind):
            if logprobs or self._counts:
                return self._filled(template, update, part)
            return [template.fill(text_of(part))]
        chunks = self.sent(update)
        frames = [Frame(dumped(chunk)) for chunk in chunks]
        # the first ones of a choice may open it
        ready = kind in self._templates and bool(chunks)
        self._templates[kind] = self._template(chunks[-1], logprobs) if ready else None
        return frames

    def ending(self) -> list[Frame]:
        return [Frame(dumped(chunk)) for chunk in self.last()]

    def failed(self, error: ServingError) -> list[Frame]:
        return [Frame(dumped(ErrorBody.model_validate(error.body())))]

    def whole_json(self) -> bytes:
        return dumped(self.whole())

    def sent(self, update: Update) -> list[WireAnswer]:
        """The chunks that a stream sends of an update."""
        if update.prefill:
            chunk = self.progress_chunk(update)
            chunk.prompt_progress = self._counter.progress(update.prefill)
            return [chunk]
        chunks = list(self.chunks(update))
        self._unfinished -= update.finish_reason is not None
        if self._usage.timings_per_token:
            for chunk in chunks:
                chunk.timings = self._counter.llama_timings
        elif self._usage.timings and not self._unfinished and not self._usage.included:
            chunks[-1].timings = self._counter.llama_timings
        if self._usage.included and self._usage.with_finish and not self._unfinished:
            self._finish = chunks.pop()
        return chunks

    def last(self) -> list[WireAnswer]:
        """The chunks that a stream ends with: its usage, for clients that asked for it."""
        if not self._usage.included:
            return []
        return [self.with_totals(self._finish or self.usage_chunk())]

    @abstractmethod
    def chunks(self, update: Update) -> Iterable[WireAnswer]:
        """The chunks of one update; of a choice's last update the last one has the `finish_reason`
        and no text.
        """

    @abstractmethod
    def pieces(self, part: ContentDelta, choice: int) -> list[tuple[str, bytes | None]]:
        """The text of each chunk of a part that has logprobs, and their JSON if it shows them."""

    @abstractmethod
    def mark(self, chunk: WireAnswer, text: str, token_ids: list[int]) -> object:
        """Let `text` be all that a chunk adds, and `token_ids` its tokens if it shows any.

        What it has of logprobs, of which `pieces` has the JSON.
        """

    @abstractmethod
    def progress_chunk(self, update: Update) -> WireAnswer:
        """A chunk of a choice that has gained nothing."""

    @abstractmethod
    def usage_chunk(self) -> WireAnswer:
        """A chunk without choices."""

    @abstractmethod
    def whole(self) -> WireAnswer:
        """Everything collected, as one response."""

    def token_ids_since(self, choice: int) -> list[int] | None:
        """A choice's tokens that have not been sent yet; None if tokens are not returned."""
        if self._prompt_token_ids is None:
            return None
        since, self._token_ids[choice] = self._token_ids[choice], []
        return since

    def with_usage(self, chunk: Wire, choice: int, tokens: int) -> Wire:
        """A chunk of a choice that has this many tokens so far, with its usage."""
        if self._usage.continuous:
            chunk.usage = self._counter.so_far(choice, tokens)
        elif self._usage.included:
            chunk.usage = None  # which is then on the wire, too
        return chunk

    def with_totals(self, answer: Wire) -> Wire:
        """An answer, or a stream's last chunk, with the usage of all choices."""
        answer.usage = self._counter.usage
        if self._usage.timings or self._usage.timings_per_token:
            answer.timings = self._counter.llama_timings
        return answer

    def _template(self, chunk: WireAnswer, with_logprobs: bool) -> FrameTemplate:
        """What all chunks of the same kind are like."""
        text, number = uuid4().hex, uuid4().int
        shown = self.mark(chunk, text, [number])
        logprobs = to_json(shown) if shown and with_logprobs else None
        usage = chunk.usage and dumped(chunk.usage)
        timings = chunk.timings and dumped(chunk.timings)
        marks = [text, logprobs, [number], usage, timings]
        return FrameTemplate(Frame(dumped(chunk)), marks)

    def _filled(self, template: FrameTemplate, update: Update, part: Part) -> list[Frame]:
        """What `chunks` says of an update that is only this."""
        index = update.index
        if self._prompt_token_ids is not None:
            self._token_ids[index] += update.token_ids
        if isinstance(part, ContentDelta) and part.logprobs:
            pieces = self.pieces(part, index)
        else:
            pieces = [(text_of(part), None)]
        first = update.tokens - len(pieces) + 1
        return [
            template.fill(*piece, *(self._counted(index, tokens) if self._counts else ()))
            for tokens, piece in enumerate(pieces, first)
        ]

    def _counted(self, choice: int, tokens: int) -> tuple[object, object, object]:
        """The tokens, the usage and the timings of a chunk that has any of them."""
        usage = dumped(self._counter.so_far(choice, tokens)) if self._usage.continuous else None
        per_token = self._usage.timings_per_token
        timings = dumped(self._counter.llama_timings) if per_token else None
        return self.token_ids_since(choice), usage, timings


def _only_text(update: Update) -> Part | None:
    """The part that an update is, if that is one piece of text, or of arguments, and no more."""
    if update.finish_reason or update.prompt_logprobs is not None or len(update.parts) != 1:
        return None
    part = update.parts[0]
    return None if isinstance(part, ToolCallDelta) and part.name is not None else part
