"""Checks of `/v1/messages`, Anthropic's API."""

from enginebay_conformance.endpoint import Endpoint, Json
from enginebay_conformance.events import Event, ask, asked, asked_or_refused, events
from enginebay_conformance.expect import expect
from enginebay_conformance.run_checks import check

PATH = "/v1/messages"
_DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}


def _body(server: Endpoint, **fields: object) -> Json:
    """A small request: greedy, and short unless the fields say otherwise."""
    story = [{"role": "user", "content": "Tell me a story about a train."}]
    usual = {"model": server.model, "messages": story, "max_tokens": 24, "temperature": 0}
    return {**usual, **fields}


def _stream(server: Endpoint, **fields: object) -> list[Event]:
    found = events(ask(server, PATH, _body(server, stream=True, **fields)))
    return [each for each in found if each.type != "ping"]


def _whole(server: Endpoint, **fields: object) -> Json:
    return asked(server, PATH, _body(server, **fields))


@check("MSG-1", "MSG-2")
def messages_blocks_open_and_close(server: Endpoint) -> None:
    """Events have names; blocks are numbered from 0, and one is open at a time."""
    stream = _stream(server)
    names = [each.name for each in stream]
    expect(names == [each.type for each in stream], f"the names are {names[:5]}")
    expect(names[0] == "message_start", f"the first event is {names[0]}")
    expect(names[-2:] == ["message_delta", "message_stop"], f"the last events are {names[-2:]}")
    opened: str | None = None
    blocks = 0
    for each in stream[1:-2]:
        index = each.data.get("index")
        match each.type:
            case "content_block_start":
                expect(opened is None, f"block {index} opened inside another")
                expect(index == blocks, f"block {blocks} has the index {index}")
                opened = each.data["content_block"]["type"]
            case "content_block_delta":
                kind = each.data["delta"]["type"]
                expect(kind in _DELTAS.get(opened or "", ()), f"{kind} in a block of {opened}")
                expect(index == blocks, f"a delta of block {blocks} has the index {index}")
            case "content_block_stop":
                expect(opened is not None, "a block was closed twice")
                opened, blocks = None, blocks + 1
            case other:
                expect(False, f"between start and end there is {other}")
    expect(opened is None, "a block was never closed")


@check("MSG-3", "MSG-4", "MSG-5", optional="prompts")
def messages_count_their_tokens(server: Endpoint) -> None:
    """`message_start` has the prompt's tokens, `message_delta` all; `count_tokens` agrees."""
    body = _body(server)
    del body["max_tokens"], body["temperature"]
    counted = asked_or_refused(server, f"{PATH}/count_tokens", body)["input_tokens"]
    stream = _stream(server)
    start, end = stream[0].data["message"]["usage"], stream[-2].data["usage"]
    for usage in (start, end):
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        total = sum(usage.get(name) or 0 for name in names)
        expect(total == counted, f"{usage} is not {counted} tokens, as count_tokens says")
    expect(end["output_tokens"] > 0, "no tokens of the answer were counted")


@check("MSG-7")
def messages_streamed_is_whole(server: Endpoint) -> None:
    """The text and the reason to stop are the same, streamed and whole."""
    whole, stream = _whole(server), _stream(server)
    text = "".join(block.get("text", "") for block in whole["content"])
    deltas = [each.data["delta"] for each in stream if each.type == "content_block_delta"]
    streamed = "".join(delta.get("text", "") for delta in deltas)
    expect(streamed == text, f"{streamed!r} streamed, {text!r} whole")
    reasons = {whole["stop_reason"], stream[-2].data["delta"]["stop_reason"]}
    full = whole["usage"]["output_tokens"] >= 24
    expect(len(reasons) == 1, f"the reasons to stop are {reasons}")
    expect(not full or reasons == {"max_tokens"}, f"max_tokens ended it with {reasons}")


@check("MSG-19", "MSG-26")
def messages_errors_are_anthropics(server: Endpoint) -> None:
    """Errors have Anthropic's shape: `max_tokens` missing, a model that is not there."""
    body = _body(server)
    del body["max_tokens"]
    wrong = ask(server, PATH, body)
    missing = server.post(PATH, _body(server, model="no/such/model"))
    for response, status, kind in (
        (wrong, 400, "invalid_request_error"),
        (missing, 404, "not_found_error"),
    ):
        expect(response.status_code == status, f"{response.status_code}: {response.text[:100]}")
        error = response.json()
        expect(error.get("type") == "error", f"an error is {response.text[:100]}")
        expect(error["error"]["type"] == kind, f"its type is {error['error']['type']}")


@check("MSG-8", "MSG-9", optional="grammars")
def messages_tools_can_be_forced(server: Endpoint) -> None:
    """`any` gives a call whose input is an object."""
    tool = {
        "name": "get_weather",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    body = _body(server, tools=[tool], tool_choice={"type": "any"}, max_tokens=200)
    answer = asked_or_refused(server, PATH, body)
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    expect(bool(calls), f"the answer is {answer['content']}")
    expect(answer["stop_reason"] == "tool_use", f"it ended with {answer['stop_reason']!r}")
    expect(calls[0]["input"].get("city") in ("Oslo", "Rome"), f"its input is {calls[0]['input']}")


@check("MSG-21")
def messages_models_have_both_forms(server: Endpoint) -> None:
    """With `anthropic-version`, `/v1/models` has Anthropic's fields beside OpenAI's."""
    ask(server, PATH, _body(server, max_tokens=1))
    models = server.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    expect(models.get("has_more") is False, f"the list has {sorted(models)}")
    for card in models["data"]:
        expect(card.get("type") == "model" and "display_name" in card, f"a model is {card}")
        expect(card.get("object") == "model", f"a model is no longer OpenAI's: {card}")


CHECKS = (
    messages_blocks_open_and_close,
    messages_count_their_tokens,
    messages_streamed_is_whole,
    messages_errors_are_anthropics,
    messages_tools_can_be_forced,
    messages_models_have_both_forms,
)
