"""An engine that takes chats and says, in parts, what a script tells it to say."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain

from enginebay.chat.answer.parts import text_of
from enginebay.chat.plan.media_parts import KINDS
from enginebay.contract.chat import Chat
from enginebay.contract.engine import Engine
from enginebay.contract.errors import ContextLengthExceededError, InvalidRequestError, ServingError
from enginebay.contract.media import Modality
from enginebay.contract.sampling_params import SamplingParams
from enginebay.contract.types import (
    ContentDelta,
    Delta,
    EngineFinishReason,
    GenerationRequest,
    ModelInfo,
    Part,
    ReasoningDelta,
    TokenCounts,
    ToolCallDelta,
)
from enginebay.engine.stop_strings import StopStrings

ChatScript = Callable[[Chat, int], Iterable[str | Part]]
"""`script(chat, index)`: the output of choice `index`, one part per step; a string is content."""

_HONOURED = {"max_tokens", "stop", "include_stop_str_in_output", "reasoning_budget"}


@dataclass(slots=True)
class _Choice:
    index: int
    parts: Iterator[str | Part]
    stop: StopStrings
    room: int
    tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    prompt_tokens: int
    media_tokens: Mapping[Modality, int]
    choices: list[_Choice] = field(default_factory=list)
    ended: list[_Choice] = field(default_factory=list)

    def usage(self) -> TokenCounts:
        """What all choices have used."""
        every = (*self.choices, *self.ended)
        return TokenCounts(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=sum(choice.tokens for choice in every),
            reasoning_tokens=sum(choice.reasoning_tokens for choice in every),
            media_tokens=self.media_tokens,
        )


class ScriptedChat(Engine):
    """Each choice says the script; for tests of everything around a model that takes chats.

    One token is one character of a part's text, or of a call's arguments; the prompt's are those of
    the texts of its messages, and one for each picture, sound or video. It honours `max_tokens` and
    stop strings; of the fields of `Chat` those in `lacks` are unsupported, and what becomes of the
    others is the script's business. `media`: the kinds that its messages may have.
    """

    def __init__(
        self,
        script: ChatScript | Sequence[str | Part],
        *,
        context_length: int = 4096,
        lacks: Iterable[str] = (),
        media: Iterable[Modality] = (),
        finish_reason: EngineFinishReason = "stop",
    ) -> None:
        self._script: ChatScript = script if callable(script) else lambda chat, index: script
        self._finish_reason = finish_reason
        self._running: dict[str, _Running] = {}
        params = {each.name for each in fields(SamplingParams)} - _HONOURED
        self.info = ModelInfo(
            context_length=context_length,
            vocab_size=0x110000,
            unsupported=frozenset({*params, *lacks}),
            chats=True,
            modalities=frozenset(media),
        )

    def add_request(self, request: GenerationRequest) -> None:
        """Queue all choices of a chat."""
        chat, sampling = request.chat, request.sampling
        if chat is None:
            raise InvalidRequestError("this engine takes chats only", param="model")
        media = _media(chat)
        prompt = sum(len(_text(message.get("content"))) for message in chat.messages)
        prompt += media.total()
        if prompt >= self.info.context_length:
            raise ContextLengthExceededError(
                f"This model's maximum context length is {self.info.context_length} tokens."
            )
        room = self.info.context_length - prompt
        running = self._running[request.request_id] = _Running(request, prompt, media)
        for index in range(request.n):
            parts = iter(self._script(chat, index))
            stop = StopStrings(sampling.stop, keep=sampling.include_stop_str_in_output)
            limit = min(sampling.max_tokens or room, room)
            running.choices.append(_Choice(index, parts, stop, limit))

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        """One part for every choice."""
        for request_id, running in list(self._running.items()):
            for choice in list(running.choices):
                yield request_id, self._next(running, choice)
            if not running.choices:
                self.abort_request(request_id)

    def abort_request(self, request_id: str) -> None:
        """Drop the choices of a request."""
        self._running.pop(request_id, None)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Nobody asks."""
        raise InvalidRequestError("this engine takes chats only", param="model")

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Nobody asks."""
        raise InvalidRequestError("this engine takes chats only", param="model")

    def _next(self, running: _Running, choice: _Choice) -> Delta:
        said = next(choice.parts, None)
        part = ContentDelta(said) if isinstance(said, str) else said
        finish_reason = self._finish_reason if part is None else None
        if part is not None:
            part = _cut(part, choice.room)
            tokens = len(text_of(part))
            choice.room -= tokens
            choice.tokens += tokens
            choice.reasoning_tokens += tokens if isinstance(part, ReasoningDelta) else 0
            finish_reason = None if choice.room else "length"
        parts = [] if part is None else [part]
        if isinstance(part, ContentDelta):
            parts = [ContentDelta(choice.stop.feed(part.text))]
            finish_reason = finish_reason if choice.stop.found is None else "stop"
        if finish_reason:
            parts.append(ContentDelta(choice.stop.finish()))
            running.choices.remove(choice)
            running.ended.append(choice)
        return Delta(
            index=choice.index,
            parts=tuple(each for each in parts if each != ContentDelta("")),
            finish_reason=finish_reason,
            stop_reason=choice.stop.found if finish_reason else None,
            usage=None if running.choices else running.usage(),
        )


def _cut(part: Part, room: int) -> Part:
    if isinstance(part, ToolCallDelta):
        return ToolCallDelta(part.index, part.name, part.arguments[:room], part.id)
    return type(part)(part.text[:room])


def _media(chat: Chat) -> Counter[Modality]:
    contents = (message.get("content") for message in chat.messages)
    parts = chain.from_iterable(each for each in contents if isinstance(each, list))
    return Counter(KINDS[part["type"]] for part in parts if part.get("type") in KINDS)


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else ""
