"""Items of an answer, and the events that tell of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from enginebay.apis.items import Item
from enginebay.chat.answer.logprobs import LogprobForm
from enginebay.contract.types import TokenLogprob
from enginebay_responses.sealed import sealed
from enginebay_responses.tools import Offered, text_of

Fields = dict[str, Any]
Event = tuple[str, Fields]
"""The type of an event, and its fields."""


class ItemForm(ABC):
    """What an item of one kind looks like.

    `begun` and `whole` are the item, before and when it is complete; `opens` and `closes` the
    events between these two, `delta` that of a piece of its text, which is its field `delta`.
    `prefix`: what its id begins with.
    """

    prefix: str

    @abstractmethod
    def begun(self, item: Item) -> Fields:
        """Before there is any text."""

    @abstractmethod
    def whole(self, item: Item) -> Fields:
        """With all its text."""

    def opens(self, item: Item) -> Iterator[Event]:
        """What comes behind the item has been added."""
        yield from ()

    def delta(self, text: str, logprobs: Iterable[TokenLogprob]) -> Event | None:
        """A piece of its text; None if it comes whole."""
        return None

    def closes(self, item: Item) -> Iterator[Event]:
        """What comes before the item is done."""
        yield from ()


class TextForm(ItemForm):
    """A message with a text, or a refusal."""

    prefix = "msg"

    def __init__(self, form: LogprobForm, *, refusal: bool) -> None:
        self._form = form
        self._refusal = refusal
        self._logprobs: Sequence[Any] = ()

    def begun(self, item: Item) -> Fields:
        return {"type": "message", "role": "assistant", "content": []}

    def whole(self, item: Item) -> Fields:
        return {**self.begun(item), "content": [self._part(item)]}

    def opens(self, item: Item) -> Iterator[Event]:
        part = self._part(Item(item.kind, item.number))
        yield "response.content_part.added", {"content_index": 0, "part": part}

    def delta(self, text: str, logprobs: Iterable[TokenLogprob]) -> Event:
        if self._refusal:
            return "response.refusal.delta", {"content_index": 0, "delta": text}
        fields = {"content_index": 0, "delta": text, "logprobs": self._form.chat(logprobs).content}
        return "response.output_text.delta", fields

    def closes(self, item: Item) -> Iterator[Event]:
        if self._refusal:
            yield "response.refusal.done", {"content_index": 0, "refusal": item.text}
        else:
            done = {"text": item.text, "logprobs": self._all_logprobs(item)}
            yield "response.output_text.done", {"content_index": 0, **done}
        yield "response.content_part.done", {"content_index": 0, "part": self._part(item)}

    def _part(self, item: Item) -> Fields:
        if self._refusal:
            return {"type": "refusal", "refusal": item.text}
        return {
            "type": "output_text",
            "text": item.text,
            "annotations": [],
            "logprobs": self._all_logprobs(item),
        }

    def _all_logprobs(self, item: Item) -> Sequence[Any]:
        """Those of the whole text, which several events tell at its end."""
        if len(self._logprobs) != len(item.logprobs):
            self._logprobs = self._form.chat(item.logprobs).content
        return self._logprobs


class ThoughtForm(ItemForm):
    """A thought, as it is or as a summary; `seals`: also as an opaque text."""

    prefix = "rs"

    def __init__(self, *, summarizes: bool, seals: bool) -> None:
        self._summarizes = summarizes
        self._seals = seals
        kind = "reasoning_summary" if summarizes else "reasoning"
        self._text = f"response.{kind}_text"
        self._part_events = "reasoning_summary_part" if summarizes else "content_part"
        self._part_type = "summary_text" if summarizes else "reasoning_text"
        self._index = {"summary_index": 0} if summarizes else {"content_index": 0}

    def begun(self, item: Item) -> Fields:
        content: Fields = {} if self._summarizes else {"content": []}
        sealing: Fields = {"encrypted_content": None} if self._seals else {}
        return {"type": "reasoning", "summary": [], **content, **sealing}

    def whole(self, item: Item) -> Fields:
        begun = self.begun(item)
        begun["summary" if self._summarizes else "content"] = [self._part(item.text)]
        if self._seals:
            begun["encrypted_content"] = sealed(item.text)
        return begun

    def opens(self, item: Item) -> Iterator[Event]:
        yield f"response.{self._part_events}.added", {**self._index, "part": self._part("")}

    def delta(self, text: str, logprobs: Iterable[TokenLogprob]) -> Event:
        return f"{self._text}.delta", {**self._index, "delta": text}

    def closes(self, item: Item) -> Iterator[Event]:
        yield f"{self._text}.done", {**self._index, "text": item.text}
        yield f"response.{self._part_events}.done", {**self._index, "part": self._part(item.text)}

    def _part(self, text: str) -> Fields:
        return {"type": self._part_type, "text": text}


class CallForm(ItemForm):
    """A call of a function."""

    prefix = "fc"

    def __init__(self, tool: Offered) -> None:
        self._tool = tool

    def begun(self, item: Item) -> Fields:
        return {"type": "function_call", **_called(item, self._tool), "arguments": ""}

    def whole(self, item: Item) -> Fields:
        return {**self.begun(item), "arguments": item.text}

    def delta(self, text: str, logprobs: Iterable[TokenLogprob]) -> Event:
        return "response.function_call_arguments.delta", {"delta": text}

    def closes(self, item: Item) -> Iterator[Event]:
        fields = {"arguments": item.text, "name": self._tool.name}
        yield "response.function_call_arguments.done", fields


class CustomCallForm(ItemForm):
    """A call of a custom tool, whose text is in the arguments: it is known when they are whole."""

    prefix = "ctc"

    def __init__(self, tool: Offered) -> None:
        self._tool = tool

    def begun(self, item: Item) -> Fields:
        return {"type": "custom_tool_call", **_called(item, self._tool), "input": ""}

    def whole(self, item: Item) -> Fields:
        return {**self.begun(item), "input": text_of(item.text)}

    def closes(self, item: Item) -> Iterator[Event]:
        text = text_of(item.text)
        if text:
            yield "response.custom_tool_call_input.delta", {"delta": text}
        yield "response.custom_tool_call_input.done", {"input": text}


def _called(item: Item, tool: Offered) -> Mapping[str, Any]:
    called = {"call_id": item.call_id, "name": tool.name}
    return called if tool.namespace is None else {**called, "namespace": tool.namespace}
