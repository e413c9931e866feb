"""What chat and text answers share on the wire."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import time
from typing import TypeVar
from uuid import uuid4

from pydantic_core import to_json

from core.chat.answer.usage import UsageCounter
from core.chat.schemas.usage_bodies import Usage, WireAnswer
from core.contract.types import ContentDelta, Part, ToolCallDelta, Update

Wire = TypeVar("Wire", bound=WireAnswer)


@dataclass(frozen=True, slots=True)
class Head:
    """Fields that are the same throughout an answer; `created` is in seconds."""

    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time()))


class TextTemplate:
    """A chunk's JSON template in which only the text varies; `mark` stands for it.

    It is serialized once from its schema and split at the text.
    """

    def __init__(self, chunk: WireAnswer, mark: str) -> None:
        self._pieces = chunk.model_dump_json(exclude_unset=True).encode().split(to_json(mark))

    def fill(self, text: str) -> bytes:
        """The JSON with this text."""
        return to_json(text).join(self._pieces)


class Composer(ABC):
    """The wire form of one answer.

    `continuous`: the counter behind the usage in every chunk; None if only the last one has it.
    `include_usage`: chunks without usage say so, as OpenAI's do. `prompt_token_ids`: the tokens of
    each prompt, for an answer that shows token ids.
    """

    def __init__(
        self,
        head: Head,
        choices: int,
        *,
        continuous: UsageCounter | None = None,
        include_usage: bool = False,
        prompt_token_ids: Sequence[list[int]] | None = None,
    ) -> None:
        self.head = head
        self.choices = choices
        self._continuous = continuous
        self._include_usage = include_usage
        self._prompt_token_ids = prompt_token_ids
        self._token_ids: list[list[int]] = [[] for _ in range(choices)]
        self._templates: dict[tuple[int, type[Part]], TextTemplate | None] = {}

    def ready_made(self, update: Update) -> bytes | None:
        """The JSON of what `chunks` says of an update that is one piece of text and nothing else.

        None for other updates, and for the first ones of a choice: those may open it.
        """
        if update.finish_reason or update.prompt_logprobs is not None:
            return None
        if self._continuous or self._prompt_token_ids or len(update.parts) != 1:
            return None
        part = update.parts[0]
        if isinstance(part, ToolCallDelta) or (isinstance(part, ContentDelta) and part.logprobs):
            return None
        key = update.index, type(part)
        if key not in self._templates:
            self._templates[key] = None
            return None
        template = self._templates[key]
        if template is None:
            mark = uuid4().hex
            chunks = list(self.chunks(replace(update, parts=[replace(part, text=mark)])))
            if len(chunks) != 1:
                return None
            template = self._templates[key] = TextTemplate(chunks[0], mark)
        return template.fill(part.text)

    @abstractmethod
    def chunks(self, update: Update) -> Iterable[WireAnswer]:
        """The chunks of one update, for a stream; of a choice's last update the last one has the
        `finish_reason` and no text.
        """

    @abstractmethod
    def usage_chunk(self, usage: Usage) -> WireAnswer:
        """The last chunk, for clients that asked for usage."""

    @abstractmethod
    def add(self, update: Update) -> None:
        """Collect an update for the non-streaming response."""

    @abstractmethod
    def whole(self, usage: Usage) -> WireAnswer:
        """Everything collected, as one response."""

    def token_ids_since(self, choice: int) -> list[int] | None:
        """A choice's tokens that have not been sent yet; None if tokens are not returned."""
        if self._prompt_token_ids is None:
            return None
        since, self._token_ids[choice] = self._token_ids[choice], []
        return since

    def with_usage(self, chunk: Wire, choice: int, tokens: int) -> Wire:
        """A chunk of a choice that has this many tokens so far, with its usage."""
        if self._continuous:
            chunk.usage = self._continuous.so_far(choice, tokens)
        elif self._include_usage:
            chunk.usage = None  # which is then on the wire, too
        return chunk
