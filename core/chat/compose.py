"""Updates to OpenAI's wire form: chat completions.

One composer an answer. It turns updates into chunks for a stream, or gathers them for a whole
answer; both come from the same parts.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from time import time

from pydantic import BaseModel

from core.generation import Update
from core.schemas.chat import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    TokenLogprob,
    ToolCallOut,
    TopLogprob,
)
from core.schemas.common import FinishReason, Usage
from core.types import ContentDelta, Part, ReasoningDelta, ToolCallDelta
from core.types import TokenLogprob as EngineLogprob

LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot say


class Composer(ABC):
    """The wire form of one answer. `id`, `created` and `model` are the same in all of it."""

    def __init__(self, id: str, model: str, choices: int) -> None:
        self.id = id
        self.model = model
        self.choices = choices
        self.created = int(time())

    @abstractmethod
    def opening(self) -> list[BaseModel]:
        """Chunks that come before everything else, once the engine has answered."""

    @abstractmethod
    def chunks(self, update: Update) -> Iterable[BaseModel]:
        """The chunks of one update, for a stream."""

    @abstractmethod
    def usage_chunk(self, usage: Usage) -> BaseModel:
        """The last chunk, for clients that asked for usage."""

    @abstractmethod
    def add(self, update: Update) -> None:
        """Gather an update for the whole answer."""

    @abstractmethod
    def whole(self, usage: Usage) -> BaseModel:
        """Everything gathered, as one answer."""


class ChatComposer(Composer):
    """`chat.completion` and `chat.completion.chunk` objects."""

    def __init__(self, id: str, model: str, choices: int, *, logprobs: bool = False) -> None:
        super().__init__(id, model, choices)
        self._logprobs = logprobs
        self._messages = [_Message() for _ in range(choices)]

    def opening(self) -> list[BaseModel]:
        delta = ChatDelta(role="assistant", content="")
        return [self._chunk(index, delta) for index in range(self.choices)]

    def chunks(self, update: Update) -> Iterable[BaseModel]:
        for part in update.parts:
            choice = ChatChunkChoice(index=update.index, delta=_delta(part), finish_reason=None)
            if isinstance(part, ContentDelta) and part.logprobs:
                choice.logprobs = _chat_logprobs(part.logprobs)
            yield self._wrap([choice])
        if update.finish_reason:
            choice = ChatChunkChoice(
                index=update.index, delta=ChatDelta(), finish_reason=update.finish_reason
            )
            if update.stop_reason is not None:
                choice.stop_reason = update.stop_reason
            yield self._wrap([choice])

    def usage_chunk(self, usage: Usage) -> BaseModel:
        chunk = self._wrap([])
        chunk.usage = usage
        return chunk

    def add(self, update: Update) -> None:
        self._messages[update.index].add(update)

    def whole(self, usage: Usage) -> BaseModel:
        choices = [
            message.choice(index, logprobs=self._logprobs)
            for index, message in enumerate(self._messages)
        ]
        return ChatCompletion(
            id=self.id,
            object="chat.completion",
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage,
        )

    def _chunk(self, index: int, delta: ChatDelta) -> ChatCompletionChunk:
        return self._wrap([ChatChunkChoice(index=index, delta=delta, finish_reason=None)])

    def _wrap(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self.id,
            object="chat.completion.chunk",
            created=self.created,
            model=self.model,
            choices=choices,
        )


class _Message:
    """What one choice has gained so far."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._logprobs: list[EngineLogprob] = []
        self._finish_reason: FinishReason = "stop"
        self._stop_reason: str | int | None = None

    def add(self, update: Update) -> None:
        for part in update.parts:
            match part:
                case ContentDelta(text, logprobs):
                    self._content.append(text)
                    self._logprobs += logprobs
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case ToolCallDelta():
                    self._calls.setdefault(part.index, _Call()).add(part)
        if update.finish_reason:
            self._finish_reason = update.finish_reason
            self._stop_reason = update.stop_reason

    def choice(self, index: int, *, logprobs: bool) -> ChatChoice:
        message = AssistantMessage(role="assistant", content="".join(self._content) or None)
        if self._reasoning:
            message.reasoning_content = "".join(self._reasoning)
        if self._calls:
            message.tool_calls = [call.whole() for call in self._calls.values()]
        return ChatChoice(
            index=index,
            message=message,
            logprobs=_chat_logprobs(self._logprobs) if logprobs else None,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
        )


class _Call:
    """One tool call, as its pieces come in."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._name: str | None = None
        self._arguments: list[str] = []

    def add(self, part: ToolCallDelta) -> None:
        self._id = self._id or part.id
        self._name = self._name or part.name
        self._arguments.append(part.arguments)

    def whole(self) -> ToolCallOut:
        function = CalledFunction(name=self._name, arguments="".join(self._arguments))
        return ToolCallOut(id=self._id, type="function", function=function)


def _delta(part: Part) -> ChatDelta:
    match part:
        case ContentDelta(text):
            return ChatDelta(content=text)
        case ReasoningDelta(text):
            return ChatDelta(reasoning_content=text)
        case ToolCallDelta():
            return ChatDelta(tool_calls=[_call_delta(part)])


def _call_delta(part: ToolCallDelta) -> ToolCallOut:
    if part.name is None:
        return ToolCallOut(index=part.index, function=CalledFunction(arguments=part.arguments))
    function = CalledFunction(name=part.name, arguments=part.arguments)
    return ToolCallOut(index=part.index, id=part.id, type="function", function=function)


def _chat_logprobs(logprobs: Iterable[EngineLogprob]) -> ChatLogprobs:
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **_candidate(entry.token, entry.logprob),
                top_logprobs=[
                    TopLogprob(**_candidate(top.token, top.logprob)) for top in entry.top
                ],
            )
            for entry in logprobs
        ]
    )


def finite(logprob: float) -> float:
    """`logprob` with minus infinity replaced by a number that JSON can say."""
    return max(logprob, LOWEST_LOGPROB)


def _candidate(token: str, logprob: float) -> dict[str, str | float | list[int]]:
    return {
        "token": token,
        "logprob": finite(logprob),
        "bytes": list(token.encode(errors="replace")),
    }
