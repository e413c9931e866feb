"""The conversation of a request to the Messages API, as messages of a chat.

Neighbours of one role are one turn. Results of tools come before the rest of the turn they are in.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from enginebay.apis.open_object import OpenObject
from enginebay.contract.errors import InvalidRequestError
from enginebay_messages.blocks import (
    Block,
    CitedBlock,
    ContentBlock,
    HostedBlock,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from enginebay_messages.parts import Part, contents_of, parts_of, text_part

_BILLING = re.compile(r"^x-anthropic-billing-header:.*(?:\n|\Z)", re.MULTILINE | re.IGNORECASE)
"""A line that some clients put in front of the system prompt, with a hash of every request in it:
with it no prefix would ever be found in the cache."""
_BILLING_WITHIN = 8192
"""Characters of a text in which that line is looked for."""

_BETWEEN_MESSAGES = "\n\n"
_FAILED = "error"  # what a result says that is one, and nothing else


class Turns:
    """`messages` of the chat, and the `places` of what is in them in the client's request.

    `ignored`: places of what has no effect. `continued`: the place of the message that the answer
    goes on with, which is then the last one, or None. `InvalidRequestError` for a last message that
    no answer can go on with, for blocks where they cannot be, and if nothing is said.
    """

    def __init__(
        self, system: str | Sequence[TextBlock] | None, messages: Sequence[InputMessage]
    ) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: dict[str, str] = {}
        self.continued: str | None = None
        self._unknown: dict[tuple[type[OpenObject], str], str] = {}
        self._dropped: list[str] = []
        if text := _system(system):
            self._add("system", "system", [text_part(text, "system")])
        for block, place in contents_of(system, "system"):
            self._note_unknown(block, place)
        for role, turn in groupby(enumerate(messages), lambda each: each[1].role):
            sent = [(f"messages[{position}]", message) for position, message in turn]
            for place, message in sent:
                self._note_unknown(message, place)
            if role == "assistant":
                self._add_answer(sent)
            else:
                self._add_turn(role, sent)
        self._note_continued(messages)
        if not self.messages:
            raise InvalidRequestError("messages: none of them says anything", param="messages")

    @property
    def ignored(self) -> tuple[str, ...]:
        """Places of blocks and keys without effect: of each unknown key the first one."""
        return (*self._dropped, *self._unknown.values())

    def _add_turn(self, role: str, sent: Sequence[tuple[str, InputMessage]]) -> None:
        parts: list[Part] = []
        results = 0
        for place, message in sent:
            new: list[Part] = []
            for block, where in self._blocks(message.content, f"{place}.content"):
                match block:
                    case ToolResultBlock() if role == "user":
                        results += 1
                        self._add_result(block, where)
                    case ContentBlock():
                        new += parts_of(block, where)
                    case _:
                        raise _misplaced(block, where, role)
            parts += _behind(parts, new, place)
        if parts or not results:
            self._add(role, sent[0][0], parts)

    def _add_answer(self, sent: Sequence[tuple[str, InputMessage]]) -> None:
        parts: list[Part] = []
        thoughts: list[str] = []
        calls: list[tuple[ToolUseBlock, str]] = []
        for place, message in sent:
            new: list[Part] = []
            for block, where in self._blocks(message.content, f"{place}.content"):
                match block:
                    case ThinkingBlock():
                        thoughts.append(block.thinking)
                    case ToolUseBlock():
                        calls.append((block, where))
                    case ContentBlock():
                        new += parts_of(block, where)
                    case ToolResultBlock():
                        raise _misplaced(block, where, "assistant")
            parts += _behind(parts, new, place)
        thought = "".join(thoughts)
        if not (parts or thought or calls):
            return
        fields: dict[str, Any] = {}
        at = f"messages[{len(self.messages)}]"
        if thought:
            fields["reasoning_content"] = thought
        if calls:
            fields["tool_calls"] = [_call(block, where) for block, where in calls]
            for number, (_, where) in enumerate(calls):
                self.places[f"{at}.tool_calls[{number}]"] = where
                self.places[f"{at}.tool_calls[{number}].function"] = where
                self.places[f"{at}.tool_calls[{number}].function.arguments"] = f"{where}.input"
        self._add("assistant", sent[0][0], parts, **fields)

    def _add_result(self, block: ToolResultBlock, place: str) -> None:
        parts: list[Part] = []
        for inner, where in self._blocks(block.content, f"{place}.content"):
            if isinstance(inner, ContentBlock):
                parts += parts_of(inner, where)
        if block.is_error and not any(part.text != "" for part in parts):
            parts = [text_part(_FAILED, place)]
        self._add("tool", place, parts, tool_call_id=block.tool_use_id)

    def _add(self, role: str, place: str, parts: Sequence[Part], **fields: Any) -> None:
        at = f"messages[{len(self.messages)}]"
        self.places[at] = place
        content: str | list[dict[str, Any]] = [part.fields for part in parts]
        if not parts:
            content = ""
        elif len(parts) == 1 and parts[0].text is not None:
            content = parts[0].text
            self.places[f"{at}.content"] = parts[0].place
        else:
            for number, part in enumerate(parts):
                self.places[f"{at}.content[{number}]"] = part.place
        self.messages.append({"role": role, "content": content, **fields})

    def _blocks(
        self, content: str | Sequence[Block] | None, place: str
    ) -> Iterator[tuple[Block, str]]:
        """The blocks of a content that are for the model, with their places."""
        for block, where in contents_of(content, place):
            if isinstance(block, HostedBlock):
                self._dropped.append(where)
                continue
            self._note_unknown(block, where)
            yield block, where

    def _note_unknown(self, block: OpenObject, place: str) -> None:
        keys = block.unknown_keys
        if isinstance(block, CitedBlock) and block.asks_for_citations:
            keys.append("citations")
        for key in keys:
            self._unknown.setdefault((type(block), key), f"{place}.{key}")

    def _note_continued(self, messages: Sequence[InputMessage]) -> None:
        """Whether the last message is the beginning of the answer; an empty one is none."""
        place, last = f"messages[{len(messages) - 1}]", messages[-1]
        if last.role != "assistant" or not self.messages:
            return
        turn = self.messages[-1]
        if turn["role"] != "assistant":
            return
        if turn.get("tool_calls"):
            raise InvalidRequestError(
                f"{place}: an answer cannot go on behind calls of tools: send their results",
                param=place,
            )
        if _text(turn).strip():
            self.continued = place
        elif turn.get("reasoning_content"):
            raise InvalidRequestError(
                f"{place}: an answer cannot go on behind thinking alone: add text to it, or leave "
                "the message out",
                param=place,
            )
        else:
            self.messages.pop()


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _system(system: str | Sequence[TextBlock] | None) -> str:
    blocks = contents_of(system, "system")
    texts = (_without_billing(each.text) for each, _ in blocks if isinstance(each, TextBlock))
    return "\n".join(text for text in texts if text)


def _without_billing(text: str) -> str:
    return _BILLING.sub("", text[:_BILLING_WITHIN]) + text[_BILLING_WITHIN:]


def _behind(parts: Sequence[Part], new: Sequence[Part], place: str) -> list[Part]:
    """The parts of the next message of a turn, apart from those of the messages before it."""
    if not (parts and new):
        return list(new)
    return [text_part(_BETWEEN_MESSAGES, place), *new]


def _call(block: ToolUseBlock, place: str) -> dict[str, Any]:
    try:
        arguments = json.dumps(block.input, ensure_ascii=False)
    except RecursionError as error:
        raise InvalidRequestError("is nested too deeply", param=f"{place}.input") from error
    return {"id": block.id, "function": {"name": block.name, "arguments": arguments}}


def _misplaced(block: Block, place: str, role: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{place}.type: a {block.type} block cannot be in a message of the role {role}",
        param=f"{place}.type",
    )
