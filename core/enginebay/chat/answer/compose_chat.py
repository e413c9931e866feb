"""Updates to OpenAI's wire form: chat completions.

One composer per answer. It turns updates into chunks for a stream, or collects them for a
non-streaming response; both come from the same parts.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from enginebay.chat.answer.compose_openai import Head, OpenAIComposer, UsageForm
from enginebay.chat.answer.composer import dumped
from enginebay.chat.answer.logprobs import LogprobForm, SplicedLogprobs
from enginebay.chat.answer.usage import UsageCounter
from enginebay.chat.schemas.chat_answer import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    ToolCallOut,
)
from enginebay.chat.schemas.usage_bodies import PromptLogprobs, WireAnswer
from enginebay.contract.types import (
    ContentDelta,
    FinishReason,
    Part,
    ReasoningDelta,
    RefusalDelta,
    TokenLogprob,
    ToolCallDelta,
    Update,
)

Reasoned = TypeVar("Reasoned", ChatDelta, AssistantMessage)

_WriteLogprobs = Callable[[Sequence[TokenLogprob]], ChatLogprobs]


class ChatComposer(OpenAIComposer):
    """`chat.completion` and `chat.completion.chunk` objects.

    `echoed`: text that every choice begins with. `old_names`: use `function_call`, one per message,
    for requests with OpenAI's old `functions`. `reasoning_fields`: the fields for reasoning; if
    empty, it is left out.
    """

    def __init__(
        self,
        head: Head,
        choices: int,
        counter: UsageCounter,
        *,
        usage: UsageForm,
        prompt_token_ids: Sequence[list[int]] | None = None,
        logprobs: bool = False,
        form: LogprobForm | None = None,
        role: str = "assistant",
        echoed: str = "",
        old_names: bool = False,
        reasoning_fields: Sequence[str] = ("reasoning_content",),
    ) -> None:
        super().__init__(head, choices, counter, usage=usage, prompt_token_ids=prompt_token_ids)
        self._logprobs = logprobs
        self._form = form or LogprobForm()
        self._role = role
        self._echoed = echoed
        self._old_names = old_names
        self._reasoning_fields = reasoning_fields
        self._opened = False
        self._prompt_logprobs: PromptLogprobs | None = None
        self._messages = [_Message(echoed) for _ in range(choices)]

    def chunks(self, update: Update) -> Iterable[WireAnswer]:
        if not self._opened:
            self._opened = True
            yield from self._opening(update)
        self._token_ids[update.index] += update.token_ids
        for part in update.parts:
            delta = self._delta(part)
            if delta is None:
                continue
            choice = ChatChunkChoice(index=update.index, delta=delta, finish_reason=None)
            if isinstance(part, ContentDelta) and part.logprobs and self._logprobs:
                choice.logprobs = self._form.chat(part.logprobs)
            yield self._wrap(choice, update.tokens)
        if update.finish_reason:
            choice = ChatChunkChoice(
                index=update.index,
                delta=ChatDelta(),
                finish_reason=self._finish_reason(update.finish_reason),
            )
            if update.stop_reason is not None:
                choice.stop_reason = update.stop_reason
            yield self._wrap(choice, update.tokens)

    def pieces(self, part: ContentDelta, choice: int) -> list[tuple[str, bytes | None]]:
        return [(part.text, self._form.chat_json(part.logprobs) if self._logprobs else None)]

    def mark(self, chunk: WireAnswer, text: str, token_ids: list[int]) -> object:
        assert isinstance(chunk, ChatCompletionChunk)
        [choice] = chunk.choices
        if choice.delta.tool_calls:
            choice.delta.tool_calls[0].function.arguments = text
        elif choice.delta.function_call:
            choice.delta.function_call.arguments = text
        else:
            for name in choice.delta.model_fields_set:
                setattr(choice.delta, name, text)
        if choice.token_ids is not None:
            choice.token_ids = token_ids
        return choice.logprobs and choice.logprobs.content

    def progress_chunk(self, update: Update) -> WireAnswer:
        delta = ChatDelta(role=self._role, content="")
        return self._wrap(ChatChunkChoice(index=update.index, delta=delta, finish_reason=None), 0)

    def usage_chunk(self) -> WireAnswer:
        return self._chunk([])

    def add(self, update: Update) -> None:
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = self._form.prompt(update.prompt_logprobs)
        self._token_ids[update.index] += update.token_ids
        self._messages[update.index].add(update)

    def whole(self) -> WireAnswer:
        return self._whole(self._form.chat)

    def whole_json(self) -> bytes:
        logprobs = SplicedLogprobs(self._form)
        return logprobs.put_into(dumped(self._whole(logprobs.chat)))

    def _whole(self, logprobs: _WriteLogprobs) -> ChatCompletion:
        answer = ChatCompletion(
            id=self.head.id,
            object="chat.completion",
            created=self.head.created,
            model=self.head.model,
            system_fingerprint=self.head.fingerprint,
            choices=[
                self._choice(i, message, logprobs) for i, message in enumerate(self._messages)
            ],
        )
        if self._prompt_logprobs is not None:
            answer.prompt_logprobs = self._prompt_logprobs
        if self._prompt_token_ids:
            answer.prompt_token_ids = self._prompt_token_ids[0]
        return self.with_totals(answer)

    def _opening(self, update: Update) -> Iterable[WireAnswer]:
        """The role of each choice, once the engine has answered, and what comes before its text."""
        for index in range(self.choices):
            delta = ChatDelta(role=self._role, content="")
            chunk = self._wrap(ChatChunkChoice(index=index, delta=delta, finish_reason=None), 0)
            if update.prompt_logprobs is not None and not index:
                chunk.prompt_logprobs = self._form.prompt(update.prompt_logprobs)
            if self._prompt_token_ids and not index:
                chunk.prompt_token_ids = self._prompt_token_ids[0]
            yield chunk
        if self._echoed:
            for index in range(self.choices):
                delta = ChatDelta(content=self._echoed)
                yield self._wrap(ChatChunkChoice(index=index, delta=delta, finish_reason=None), 0)

    def _wrap(self, choice: ChatChunkChoice, tokens: int) -> ChatCompletionChunk:
        if (token_ids := self.token_ids_since(choice.index)) is not None:
            choice.token_ids = token_ids
        return self.with_usage(self._chunk([choice]), choice.index, tokens)

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self.head.id,
            object="chat.completion.chunk",
            created=self.head.created,
            model=self.head.model,
            system_fingerprint=self.head.fingerprint,
            choices=choices,
        )

    def _delta(self, part: Part) -> ChatDelta | None:
        match part:
            case ContentDelta(text):
                return ChatDelta(content=text)
            case ReasoningDelta(text) if self._reasoning_fields:
                return self._with_reasoning(ChatDelta(), text)
            case RefusalDelta(text):
                return ChatDelta(refusal=text)
            case ToolCallDelta() if not self._old_names:
                return ChatDelta(tool_calls=[_call_delta(part)])
            case ToolCallDelta(index=0):
                return ChatDelta(function_call=_called_function(part))
            case _:
                return None

    def _with_reasoning(self, message: Reasoned, text: str) -> Reasoned:
        for name in self._reasoning_fields:
            setattr(message, name, text)
        return message

    def _finish_reason(self, reason: FinishReason) -> FinishReason:
        return "function_call" if self._old_names and reason == "tool_calls" else reason

    def _choice(self, index: int, gained: "_Message", logprobs: _WriteLogprobs) -> ChatChoice:
        message = AssistantMessage(role=self._role, content=gained.content)
        if gained.refusal:
            message.refusal = gained.refusal
        if gained.reasoning:
            self._with_reasoning(message, gained.reasoning)
        if gained.calls and self._old_names:
            message.function_call = gained.calls[0].function
        elif gained.calls:
            message.tool_calls = gained.calls
        show = self._logprobs and bool(gained.content or gained.logprobs)
        choice = ChatChoice(
            index=index,
            message=message,
            logprobs=logprobs(gained.logprobs) if show else None,
            finish_reason=self._finish_reason(gained.finish_reason),
            stop_reason=gained.stop_reason,
        )
        if (token_ids := self.token_ids_since(index)) is not None:
            choice.token_ids = token_ids
        return choice


class _Message:
    """What one choice has gained so far."""

    def __init__(self, echoed: str) -> None:
        self._content = [echoed]
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, _Call] = {}
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason = "stop"
        self.stop_reason: str | int | None = None

    def add(self, update: Update) -> None:
        for part in update.parts:
            match part:
                case ContentDelta(text, logprobs):
                    self._content.append(text)
                    self.logprobs += logprobs
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case RefusalDelta(text):
                    self._refusal.append(text)
                case ToolCallDelta():
                    self._calls.setdefault(part.index, _Call()).add(part)
        if update.finish_reason:
            self.finish_reason = update.finish_reason
            self.stop_reason = update.stop_reason

    @property
    def content(self) -> str | None:
        """None where the answer is not text, or was cut off before its text."""
        text = "".join(self._content)
        cut = bool(self._reasoning) and self.finish_reason == "length"
        return None if not text and (self._calls or self._refusal or cut) else text

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def refusal(self) -> str:
        return "".join(self._refusal)

    @property
    def calls(self) -> list[ToolCallOut]:
        return [call.whole() for call in self._calls.values()]


class _Call:
    """One tool call, assembled from its deltas."""

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


def _called_function(part: ToolCallDelta) -> CalledFunction:
    if part.name is None:
        return CalledFunction(arguments=part.arguments)
    return CalledFunction(name=part.name, arguments=part.arguments)


def _call_delta(part: ToolCallDelta) -> ToolCallOut:
    function = _called_function(part)
    if part.name is None:
        return ToolCallOut(index=part.index, function=function)
    return ToolCallOut(index=part.index, id=part.id, type="function", function=function)
