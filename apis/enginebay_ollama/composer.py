"""Updates to Ollama's wire form: a line of JSON for what was gained, and one for the end."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from time import gmtime, monotonic, strftime, time_ns
from typing import Any

from pydantic_core import from_json

from enginebay.apis.compose_items import ItemComposer
from enginebay.apis.items import Item
from enginebay.chat.answer.composer import Frame, dumped
from enginebay.chat.answer.logprobs import LogprobForm, SplicedLogprobs
from enginebay.chat.answer.usage import UsageCounter
from enginebay.chat.schemas.half_characters import whole_json
from enginebay.contract.errors import ServingError
from enginebay.contract.types import TokenLogprob
from enginebay_ollama.answer_bodies import (
    Call,
    CalledFunction,
    ChatLine,
    ErrorLine,
    GenerateLine,
    Line,
    Said,
)


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama has it; clients divide by it, so it is never 0."""
    return max(1, round(seconds * 1e9))


def timestamp(seconds: float | None = None) -> str:
    """A time, or now, in UTC."""
    time = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return time.isoformat().replace("+00:00", "Z")


class Clock:
    """Timestamps of now, for many: what only changes with the second is written once."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def now(self) -> str:
        """As `timestamp` has it."""
        second, rest = divmod(time_ns(), 1_000_000_000)
        if second != self._second:
            self._second, self._text = second, strftime("%Y-%m-%dT%H:%M:%S", gmtime(second))
        return f"{self._text}.{rest // 1000:06d}Z"


MakeLine = Callable[[str, str | None, list[Call] | None, dict[str, Any]], Line]
"""Content, thought and calls of a line, and the fields that all lines have."""


class LineComposer(ItemComposer):
    """Lines of the answer of this model, which is named as the client does.

    Calls are told when they are whole. What passes until this is made is the time of loading, which
    is waiting for the model and making the prompt.
    """

    def __init__(
        self,
        id: str,
        counter: UsageCounter,
        model: str,
        line: MakeLine,
        form: LogprobForm,
        *,
        tells_reasoning: bool = True,
    ) -> None:
        super().__init__(id, counter, form, tells_reasoning=tells_reasoning)
        self._line = line
        self._model = model
        self._loading = monotonic() - counter.received
        self._clock = Clock()

    def opening(self) -> Iterable[Frame]:
        return ()

    def opened(self, item: Item) -> Iterable[Frame]:
        return ()

    def gained(
        self, item: Item, text: str, logprobs: Sequence[TokenLogprob], stamp: str | None = None
    ) -> Frame | None:
        if item.kind == "call":
            return None
        about = self._about(stamp)
        if logprobs:
            about["logprobs"] = self.form.chat(logprobs).content
        thought = item.kind == "reasoning"
        content, thinking = ("", text) if thought else (text, None)
        return self._frame(self._line(content, thinking, None, about))

    def stamp(self) -> object:
        return self._clock.now()

    def closed(self, item: Item) -> Iterable[Frame]:
        if item.kind == "call" and (calls := self._calls([item])):
            yield self._frame(self._line("", None, calls, self._about()))

    def closing(self) -> Iterable[Frame]:
        yield self._frame(self._line("", None, None, self._about() | self._end()))

    def failed(self, error: ServingError) -> list[Frame]:
        return [self._frame(ErrorLine(error=error.shown_message))]

    def whole_json(self) -> bytes:
        about = self._about() | self._end()
        spliced = SplicedLogprobs(self.form)
        if entries := [entry for item in self.items.all for entry in item.logprobs]:
            about["logprobs"] = spliced.chat(entries).content
        thinking = "".join(item.text for item in self.items.all if item.kind == "reasoning")
        content = "".join(i.text for i in self.items.all if i.kind in ("text", "refusal"))
        calls = self._calls(self.items.calls)
        return spliced.put_into(dumped(self._line(content, thinking or None, calls or None, about)))

    def _frame(self, line: Line | ErrorLine) -> Frame:
        return Frame(dumped(line))

    def _about(self, time: str | None = None) -> dict[str, Any]:
        return {"model": self._model, "created_at": time or self._clock.now(), "done": False}

    def _calls(self, items: Iterable[Item]) -> list[Call]:
        numbers = {item.number: number for number, item in enumerate(self.items.calls)}
        return [
            Call(
                id=item.call_id,
                function=CalledFunction(
                    index=numbers[item.number], name=item.name, arguments=arguments
                ),
            )
            for item in items
            if (arguments := _arguments(item.text)) is not None
        ]

    def _end(self) -> dict[str, Any]:
        usage, counter = self.counter.usage, self.counter
        answered = counter.last_token_at - counter.received
        first = counter.time_to_first_token
        first = answered if first is None else first
        loading = min(self._loading, first)
        return {
            "done": True,
            "done_reason": "length" if self.finish_reason == "length" else "stop",
            "total_duration": nanoseconds(monotonic() - counter.received),
            "load_duration": nanoseconds(loading),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(first - loading),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(answered - first),
        }


def chat_line(
    content: str, thinking: str | None, calls: list[Call] | None, about: dict[str, Any]
) -> ChatLine:
    """A line of `/api/chat`."""
    said = Said(role="assistant", content=content)
    if thinking is not None:
        said.thinking = thinking
    if calls:
        said.tool_calls = calls
    return ChatLine(message=said, **about)


def generate_line(
    content: str, thinking: str | None, calls: list[Call] | None, about: dict[str, Any]
) -> GenerateLine:
    """A line of `/api/generate`, where there are no calls."""
    line = GenerateLine(response=content, **about)
    if thinking is not None:
        line.thinking = thinking
    return line


def _arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call as an object; None if they were cut, and nobody may run the call,
    or are nested more deeply than an answer can be.
    """
    try:
        parsed = from_json(whole_json(text or "{}"))
    except (ValueError, RecursionError):
        return None
    if isinstance(parsed, dict):
        return parsed
    return {} if parsed is None else {"arguments": parsed}
