"""Promises 2, 4, 7 and 9 of a model that takes chats: parts in place of text and tokens."""

import json
from dataclasses import replace

from enginebay.contract.types import ToolCallDelta
from enginebay.testing.probe import GREEDY, Choice, Probe, expect

_SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 10, "maximum": 99}},
    "required": ["count"],
    "additionalProperties": False,
}
_ROOM = 400  # tokens for thought and an answer of that form


async def check_parts(probe: Probe) -> None:
    """Promise 2: a chat is answered in parts, whose calls can be assembled."""
    for choice in await probe.run(await probe.request(n=2)):
        expect(bool(choice.parts), 2, "the model generated nothing; use another prompt")
        for delta in choice.deltas:
            bare = not (delta.text or delta.token_ids)
            expect(bare, 2, f"a delta of a chat has text or tokens: {delta}")
        _check_calls(choice)


def _check_calls(choice: Choice) -> None:
    calls = [part for part in choice.parts if isinstance(part, ToolCallDelta)]
    known: list[int] = []
    for part in calls:
        if part.index not in known:
            expect(part.index == len(known), 2, f"call {part.index} came after {len(known)} calls")
            expect(bool(part.name), 2, f"the first piece of call {part.index} has no name")
            known.append(part.index)
        else:
            expect(part.name is None, 2, f"call {part.index} has its name twice")
    ids = [part.id for part in calls if part.id is not None]
    expect(len(ids) == len(set(ids)), 2, f"an id is given twice: {ids}")


async def check_usage(probe: Probe) -> None:
    """Promise 4: the reported usage counts the prompt once and every choice."""
    one, three = [await probe.run(await probe.request(n=n)) for n in (1, 3)]
    alone, together = one[0].usage, next((each.usage for each in three if each.usage), None)
    if alone is None or together is None:
        expect(alone is together, 4, "usage is reported for one choice or for three, not for both")
        return
    for usage in (alone, together):
        reasoning = usage.reasoning_tokens or 0
        expect(
            0 <= usage.cached_tokens <= usage.prompt_tokens,
            4,
            f"more cached tokens than prompt tokens: {usage}",
        )
        expect(
            0 <= reasoning <= usage.completion_tokens,
            4,
            f"more reasoning tokens than completion tokens: {usage}",
        )
    prompt = alone.prompt_tokens
    expect(prompt > 0, 4, "usage reports a prompt without tokens")
    expect(alone.completion_tokens > 0, 4, "usage reports an answer without tokens")
    same = prompt == together.prompt_tokens
    expect(same, 4, f"a prompt of {prompt} tokens has {together.prompt_tokens} with n=3")
    expect(
        together.completion_tokens > alone.completion_tokens,
        4,
        f"three choices have {together.completion_tokens} tokens, one {alone.completion_tokens}",
    )


async def check_max_tokens(probe: Probe) -> None:
    """Promise 7: `max_tokens`, by the reported usage."""
    choice = await probe.generate(replace(GREEDY, max_tokens=3))
    expect(choice.last.finish_reason == "length", 7, "max_tokens did not finish with 'length'")
    if choice.usage:
        tokens = choice.usage.completion_tokens
        expect(tokens <= 3, 7, f"max_tokens=3 gave {tokens} tokens")


async def check_form(probe: Probe) -> None:
    """Promise 9: content of a `response_format` is JSON of that form, unless it is cut short."""
    if not probe.info.chats or not probe.supports("response_format"):
        return
    request = await probe.request(replace(GREEDY, max_tokens=_ROOM))
    assert request.chat
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": _SCHEMA}}
    chat = replace(request.chat, response_format=form)
    [choice] = await probe.run(replace(request, chat=chat))
    if choice.last.finish_reason == "length":
        return
    try:
        value = json.loads(choice.text)
    except ValueError:
        value = None
    right = [{"count": count} for count in range(10, 100)]
    expect(value in right, 9, f"the content is not of the schema's form: {choice.text!r}")
