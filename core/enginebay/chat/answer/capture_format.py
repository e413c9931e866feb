"""Deltas and their parsed parts, as plain JSON."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from enginebay.contract.types import (
    ContentDelta,
    Delta,
    Part,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
)

Written = dict[str, Any]

_KINDS: Mapping[str, type[ContentDelta | ReasoningDelta | ToolCallDelta | RefusalDelta]] = {
    "content": ContentDelta,
    "reasoning": ReasoningDelta,
    "tool_call": ToolCallDelta,
    "refusal": RefusalDelta,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def written_part(part: Part) -> Written:
    """A part without its logprobs."""
    fields = {k: v for k, v in asdict(part).items() if k != "logprobs" and v is not None}
    return {"type": _NAMES[type(part)], **fields}


def part_of(written: Mapping[str, Any]) -> Part:
    """The part again. `KeyError` or `TypeError` for anything else."""
    fields = dict(written)
    return _KINDS[fields.pop("type")](**fields)


def written_delta(delta: Delta) -> Written:
    """The fields of a delta that the parsers use, and its tokens."""
    fields: Written = {"text": delta.text, "token_ids": list(delta.token_ids)}
    if delta.parts:
        fields["parts"] = [written_part(part) for part in delta.parts]
    if delta.finish_reason:
        fields["finish_reason"] = delta.finish_reason
    return fields


def delta_of(written: Mapping[str, Any]) -> Delta:
    """The delta again, of choice 0."""
    return Delta(
        text=written["text"],
        token_ids=tuple(written["token_ids"]),
        parts=tuple(map(part_of, written.get("parts", ()))),
        finish_reason=written.get("finish_reason"),
    )


class JoinedParts:
    """All parts of a choice, neighbours of a kind joined; ids of calls, which are random, left out.

    So the result does not depend on how the text was split.
    """

    def __init__(self) -> None:
        self.parts: list[Written] = []

    def add(self, parts: Iterable[Part]) -> None:
        """Take what comes next."""
        for part in parts:
            new = written_part(part)
            new.pop("id", None)
            last = self.parts[-1] if self.parts else {}
            call = new["type"] == "tool_call"
            goes_on = "name" not in new and new.get("index") == last.get("index")
            if last.get("type") == new["type"] and goes_on:
                key = "arguments" if call else "text"
                last[key] += new[key]
            elif call or new["text"]:
                self.parts.append(new)
