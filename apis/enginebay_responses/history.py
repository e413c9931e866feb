"""Items as messages of a chat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from enginebay.contract.errors import InvalidRequestError
from enginebay_responses.item_bodies import (
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from enginebay_responses.sealed import unsealed
from enginebay_responses.tools import OfferedTools, arguments_of

_TEXTS = ("output_text", "input_text", "text")


@dataclass(frozen=True, slots=True)
class Told:
    """A message, and the places in the request of what is in it, by paths inside the message.

    `texts` and `thoughts` are pieces of what the assistant says and thinks in it.
    """

    fields: dict[str, Any]
    places: dict[str, str]
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    @property
    def message(self) -> dict[str, Any]:
        """It as a chat has it."""
        said = {"content": "".join(self.texts)} if self.texts else {}
        thought = {"reasoning_content": "\n\n".join(self.thoughts)} if self.thoughts else {}
        return {**self.fields, **said, **thought}

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls of a message of the assistant, which may have more."""
        found: list[dict[str, Any]] = self.fields.setdefault("tool_calls", [])
        return found


@dataclass(slots=True)
class History:
    """The messages that items come to.

    Items of one answer are one message of the assistant: thoughts, text and calls, as far as no
    output of a call comes between them.
    """

    tools: OfferedTools
    messages: list[Told] = field(default_factory=list)
    _open: Told | None = None  # a message of the assistant that may go on
    _called: set[str] = field(default_factory=set)

    def instruct(self, text: str) -> None:
        """Begin with instructions."""
        self._append({"role": "system", "content": text}, {"": "instructions"})

    def add(self, item: Item, place: str) -> None:
        """Add an item. `InvalidRequestError` for an output of a call that there is not."""
        match item:
            case MessageItem(role="assistant"):
                self._say(item, place)
            case MessageItem():
                self._append({"role": item.role, "content": item.content}, {"": place})
            case ReasoningItem():
                self._think(item, place)
            case FunctionCallItem():
                self._call(item, item.arguments, "arguments", place)
            case CustomCallItem():
                self._call(item, arguments_of(item.input), "input", place)
            case CallOutputItem():
                self._answer(item, place)

    def places(self) -> dict[str, str]:
        """The places of all that is in the messages, by its paths in a chat of them."""
        return {
            f"messages[{number}]{inside}": place
            for number, message in enumerate(self.messages)
            for inside, place in message.places.items()
        }

    def _append(self, message: dict[str, Any], places: dict[str, str]) -> Told:
        self._open = None
        self.messages.append(Told(message, places))
        return self.messages[-1]

    def _turn(self, place: str, *, goes_on: bool) -> Told:
        """The open message of the assistant if it `goes_on`, or another."""
        if self._open is None or not goes_on:
            self._open = self._append({"role": "assistant"}, {"": place})
        return self._open

    def _say(self, item: MessageItem, place: str) -> None:
        text = _assistant_text(item.content, place)
        turn = self._turn(place, goes_on=self._called_in_turn or not self._said_in_turn)
        turn.texts.append(text)
        turn.places.setdefault(".content", f"{place}.content")

    def _think(self, item: ReasoningItem, place: str) -> None:
        thought = unsealed(item.encrypted_content)
        if thought is None:
            thought = _texts(item.content) or _texts(item.summary)
        if not thought:
            return
        turn = self._turn(place, goes_on=self._called_in_turn or not self._said_in_turn)
        turn.thoughts.append(thought)
        turn.places.setdefault(".reasoning_content", place)

    @property
    def _said_in_turn(self) -> bool:
        return self._open is not None and bool(self._open.texts)

    @property
    def _called_in_turn(self) -> bool:
        return self._open is not None and "tool_calls" in self._open.fields

    def _call(
        self, item: FunctionCallItem | CustomCallItem, arguments: str, field: str, place: str
    ) -> None:
        turn = self._turn(place, goes_on=True)
        at = f".tool_calls[{len(turn.calls)}]"
        arguments_place = {f"{at}.function.arguments": f"{place}.{field}"}
        turn.places.update({at: place, f"{at}.function": place, **arguments_place})
        function = {
            "name": self.tools.function(item.name, item.namespace),
            "arguments": arguments,
        }
        turn.calls.append({"id": item.call_id, "type": "function", "function": function})
        self._called.add(item.call_id)

    def _answer(self, item: CallOutputItem, place: str) -> None:
        if item.call_id not in self._called:
            raise InvalidRequestError(
                f"there is no call with the call_id {item.call_id[:100]!r} in front of its output",
                param=f"{place}.call_id",
            )
        message = {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
        self._append(message, {"": place, ".content": f"{place}.output"})


def _assistant_text(content: str | Sequence[Mapping[str, Any]], place: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for position, part in enumerate(content):
        kind = part.get("type")
        key = "refusal" if kind == "refusal" else "text"
        text = part.get(key)
        if kind not in (*_TEXTS, "refusal") or not isinstance(text, str):
            raise InvalidRequestError(
                "a part of a message of the assistant is an output_text with a text, or a refusal",
                param=f"{place}.content[{position}]",
            )
        texts.append(text)
    return "".join(texts)


def _texts(parts: Sequence[Mapping[str, Any]] | None) -> str:
    texts = (part.get("text") for part in parts or ())
    return "\n\n".join(text for text in texts if isinstance(text, str) and text)
