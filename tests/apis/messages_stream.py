"""What is true of every stream of `/v1/messages`, and what it comes to as a whole."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from tests.apis.named_events import named_events
from tests.support import Server

MESSAGES = "/v1/messages"
USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]

DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}
"""By type of block, which deltas it has and where their text is."""


def accumulated(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream tells of, which obeys the grammar of streams.

    MSG-1: blocks are numbered 0, 1, 2 …, one is open at a time, all are closed before the end.
    """
    events = [event for event in events if event["type"] != "ping"]
    message: dict[str, Any] = events[0]["message"]
    assert events[0]["type"] == "message_start"
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    opened: dict[str, Any] | None = None
    signed = False
    for event in events[1:-2]:
        blocks = message["content"]
        match event["type"]:
            case "content_block_start":
                assert opened is None
                assert event["index"] == len(blocks)
                opened, signed = {**event["content_block"]}, False
                if opened["type"] == "tool_use":
                    assert opened["input"] == {}
                    opened["input"] = ""
                blocks.append(opened)
            case "content_block_delta":
                assert opened is not None
                assert event["index"] == len(blocks) - 1
                delta = event["delta"]
                field = DELTAS[opened["type"]][delta["type"]]
                assert not signed, "MSG-10: the signature is the last of its block"
                signed = delta["type"] == "signature_delta"
                into = "input" if field == "partial_json" else field
                opened[into] += delta[field]
            case "content_block_stop":
                assert opened is not None
                assert event["index"] == len(blocks) - 1
                if opened["type"] == "tool_use":
                    opened["input"] = from_json(opened["input"], allow_partial=True)
                    assert isinstance(opened["input"], dict)
                assert opened["type"] != "thinking" or (signed and opened["signature"])
                opened = None
            case other:
                raise AssertionError(other)
    assert opened is None
    end = events[-2]
    assert end["usage"].keys() == message["usage"].keys() - {"service_tier"}
    return {**message, **end["delta"], "usage": {**message["usage"], **end["usage"]}}


def ask(server: Server, **body: Any) -> dict[str, Any]:
    """A request, whole and streamed, which must say the same; the whole answer."""
    body = {"model": "scripted", "max_tokens": 1000, "messages": USER, **body}
    response = server.http.post(MESSAGES, json=body)
    assert response.status_code == 200, response.text
    whole: dict[str, Any] = response.json()
    streamed = server.http.post(MESSAGES, json={**body, "stream": True})
    assert streamed.status_code == 200, streamed.text
    unsupported = "x-unsupported-params"
    assert streamed.headers.get(unsupported) == response.headers.get(unsupported)
    assert unvaried(accumulated(named_events(streamed.text))) == unvaried(whole)
    return whole


def unvaried(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what differs from answer to answer."""
    blocks = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return {**message, "id": "", "content": blocks}
