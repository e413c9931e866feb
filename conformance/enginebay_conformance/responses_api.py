"""Checks of `/v1/responses`: events, items, and what is kept."""

from openai.types.responses import Response

from enginebay_conformance.endpoint import Endpoint, Json
from enginebay_conformance.events import Event, ask, asked, events
from enginebay_conformance.expect import expect
from enginebay_conformance.run_checks import check
from enginebay_conformance.shapes import expect_shape

PATH = "/v1/responses"
_ENDS = ("response.completed", "response.incomplete", "response.failed")


def _body(server: Endpoint, **fields: object) -> Json:
    """A small request: greedy, and short unless the fields say otherwise."""
    story = "Tell me a story about a train."
    usual = {"model": server.model, "input": story, "max_output_tokens": 24, "temperature": 0}
    return {**usual, **fields}


def _stream(server: Endpoint, **fields: object) -> list[Event]:
    return events(ask(server, PATH, _body(server, stream=True, **fields)))


def _whole(server: Endpoint, **fields: object) -> Json:
    return asked(server, PATH, _body(server, **fields))


def _texts(answer: Json) -> list[tuple[str, str]]:
    """What the items say, without their ids."""
    return [
        (item["type"], "".join(part.get("text", "") for part in item.get("content") or ()))
        for item in answer["output"]
    ]


@check("RESP-2", "RESP-7", "RESP-8")
def responses_events_are_counted(server: Endpoint) -> None:
    """Events have their types as names and numbers from 0; one that ends the answer is the last."""
    stream = _stream(server)
    expect([each.name for each in stream] == [each.type for each in stream], "names differ")
    numbers = [each.data.get("sequence_number") for each in stream]
    expect(numbers == list(range(len(stream))), f"the numbers are {numbers[:20]}")
    expect(stream[0].type == "response.created", f"the first is {stream[0].type}")
    ends = [number for number, each in enumerate(stream) if each.type in _ENDS]
    expect(ends == [len(stream) - 1], f"the answer ends at {ends} of {len(stream)} events")


@check("RESP-3", "RESP-4", "RESP-5", "RESP-6")
def responses_items_open_and_close(server: Endpoint) -> None:
    """One item is open at a time; its events have its id and place, its deltas are its text."""
    stream = _stream(server)
    output = stream[-1].data["response"]["output"]
    expect(bool(output), "the answer has no items")
    opened: Json | None = None
    done: list[Json] = []
    said = ""
    for each in stream:
        match each.type.removeprefix("response."):
            case "output_item.added":
                expect(opened is None, "an item was added while another was open")
                opened, said = each.data["item"], ""
                expect(each.data["output_index"] == len(done), "output_index is not its place")
            case "output_item.done":
                item = each.data["item"]
                expect(opened is not None and item["id"] == opened["id"], "another item is done")
                if item["type"] == "message":
                    text = item["content"][0]["text"]
                    expect(said == text, f"the deltas are {said!r}, the item has {text!r}")
                done.append(item)
                opened = None
            case "output_text.delta":
                expect(opened is not None, "a delta came before its item")
                expect(each.data["item_id"] == (opened or {}).get("id"), "item_id is another")
                said += each.data["delta"]
    expect(opened is None, "an item was never done")
    expect(done == output, f"the last event has {len(output)} items, {len(done)} were done")


@check("RESP-1")
def responses_streamed_is_whole(server: Endpoint) -> None:
    """The items and the usage of a stream are those of the whole answer."""
    whole, streamed = _whole(server), _stream(server)[-1].data["response"]
    expect(_texts(whole) == _texts(streamed), f"{_texts(streamed)} streamed, {_texts(whole)} whole")
    usage = {key: whole["usage"][key] for key in ("input_tokens", "output_tokens")}
    other = {key: streamed["usage"][key] for key in usage}
    expect(usage == other, f"the usage is {other} streamed and {usage} whole")


@check("RESP-9", "RESP-32")
def responses_are_complete(server: Endpoint) -> None:
    """The answer is a `Response` of OpenAI's SDK, and says what was asked for."""
    answer = _whole(server, metadata={"a": "b"}, instructions="Be brief.", store=False)
    expect_shape(Response, answer)
    told = {key: answer.get(key) for key in ("metadata", "instructions", "store")}
    wanted = {"metadata": {"a": "b"}, "instructions": "Be brief.", "store": False}
    expect(told == wanted, f"it says {told}")
    expect(answer["max_output_tokens"] == 24, "max_output_tokens is another")


@check("RESP-10")
def responses_say_that_they_were_cut(server: Endpoint) -> None:
    """An answer that `max_output_tokens` cuts off is incomplete, and says why."""
    answer = _whole(server, max_output_tokens=2)
    if answer["usage"]["output_tokens"] < 2:
        return
    reason = (answer.get("incomplete_details") or {}).get("reason")
    expect(answer["status"] == "incomplete", f"the status is {answer['status']!r}")
    expect(reason == "max_output_tokens", f"the reason is {reason!r}")


@check("RESP-31")
def responses_to_nothing_are_answered(server: Endpoint) -> None:
    """The probe that Codex sends is answered: an empty input, and one token."""
    answer = _whole(server, input="", max_output_tokens=1)
    expect(answer["object"] == "response", f"it is {answer['object']!r}")


@check("RESP-22", "RESP-25", "RESP-26", "RESP-27")
def responses_can_be_chained(server: Endpoint) -> None:
    """A kept answer can be had, continued and deleted; one that is not kept cannot."""
    first = _whole(server)
    got = server.http.get(f"{PATH}/{first['id']}")
    expect(got.status_code == 200 and got.json()["id"] == first["id"], f"GET: {got.text[:100]}")
    more = _whole(server, input="Go on.", previous_response_id=first["id"])
    longer = more["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    expect(longer, "the chain's prompt is not longer than its first part")
    deleted = server.http.delete(f"{PATH}/{first['id']}")
    expect(deleted.status_code == 200, f"DELETE: {deleted.text[:100]}")
    unkept = _whole(server, store=False)
    for id in (first["id"], unkept["id"]):
        expect(server.http.get(f"{PATH}/{id}").status_code == 404, f"{id} can still be had")
    gone = server.post(PATH, _body(server, previous_response_id=first["id"]))
    param = gone.json().get("error", {}).get("param")
    expect(gone.status_code == 400, f"a chain without its beginning: {gone.status_code}")
    expect(param == "previous_response_id", f"the error's param is {param!r}")


@check("RESP-37", optional="prompts")
def responses_tokens_can_be_counted(server: Endpoint) -> None:
    """`input_tokens` counts what the answer does."""
    counted = asked(server, f"{PATH}/input_tokens", _body(server))["input_tokens"]
    used = _whole(server)["usage"]["input_tokens"]
    expect(counted == used, f"{counted} were counted, {used} used")


CHECKS = (
    responses_events_are_counted,
    responses_items_open_and_close,
    responses_streamed_is_whole,
    responses_are_complete,
    responses_say_that_they_were_cut,
    responses_to_nothing_are_answered,
    responses_can_be_chained,
    responses_tokens_can_be_counted,
)
