"""What answers of `/v1/responses` consist of, whole and streamed."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import ReasoningDelta, RefusalDelta
from enginebay.config.sampling_fields import SamplingFields
from enginebay_responses.answer_bodies import ResponseObject
from enginebay_responses.request_bodies import ResponsesRequest
from tests.api.test_chats import serving
from tests.apis.response_events import (
    PATH,
    THOUGHT,
    WEATHER,
    Saying,
    call,
    checked,
    error_of,
    say,
    saying,
    text_of,
    unnamed,
)
from tests.held import holding, until
from tests.support import plugins_with, scripted, scripted_config, serve


@pytest.fixture(scope="module")
def at() -> Iterator[Saying]:
    with saying() as server:
        yield server


def kinds(answer: dict[str, Any]) -> list[str]:
    return [item["type"] for item in answer["output"]]


def test_a_text(at: Saying) -> None:
    # RESP-1 RESP-2 RESP-3 RESP-4 RESP-5 RESP-6 RESP-7 RESP-8 (with `checked`, here and below)
    answer = at.both(say("Hello", ", ", "world", "!"))
    [message] = answer["output"]
    assert message["role"] == "assistant"
    assert message["content"] == [
        {"type": "output_text", "text": "Hello, world!", "annotations": [], "logprobs": []}
    ]
    assert answer["status"] == message["status"] == "completed"
    assert answer["completed_at"] >= answer["created_at"]
    assert answer["usage"] == {
        "input_tokens": len(at.prompt),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 14,  # with the end of the sequence
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(at.prompt) + 14,
    }


def test_events_of_a_text(at: Saying) -> None:
    events = at.events(say("Hello", ", ", "wor", "ld"))
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * 4,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [e["delta"] for e in events if "delta" in e] == ["Hello", ", ", "wor", "ld"]


def test_thought_is_an_item_of_its_own(at: Saying) -> None:
    # RESP-11
    answer = at.both(say(*THOUGHT, "Hello"))
    thought, message = answer["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert thought["summary"] == []
    assert "encrypted_content" not in thought
    assert text_of(message) == "Hello"
    details = answer["usage"]["output_tokens_details"]
    assert details["reasoning_tokens"] == len(THOUGHT)


def test_thought_as_a_summary(at: Saying) -> None:
    # RESP-12
    said = say(*THOUGHT, "Hello")
    for reasoning in ({"summary": "auto"}, {"generate_summary": "detailed"}):
        thought, _ = at.both(said, reasoning=reasoning)["output"]
        assert thought["summary"] == [{"type": "summary_text", "text": "Let me see."}]
        assert "content" not in thought
        types = [event["type"] for event in at.events(said, reasoning=reasoning)]
        assert "response.reasoning_summary_part.added" in types
        assert "response.reasoning_summary_text.delta" in types
        assert "response.reasoning_text.delta" not in types


def test_effort(at: Saying) -> None:
    at.whole("hi", reasoning={"effort": "high", "summary": None})
    assert "[effort high]" in at.prompt
    at.whole("hi", reasoning={"effort": "none"})
    assert "[off]" in at.prompt


def test_no_effort_is_no_thought() -> None:
    # RESP-13
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
    )
    create = scripted(
        lambda prompt, index: ["Hm.", "</think>", "ok"] if prompt.endswith("<think>") else ["ok"],
        chat_template=template,
    )
    with serve(scripted_config(reasoning="think"), plugins_with(scripted=create)) as server:
        for effort, items in ((None, 2), ("low", 2), ("none", 1)):
            body = {"input": "hi", "reasoning": {"effort": effort}}
            answer = server.http.post(PATH, json=body).json()
            assert kinds(answer) == ["reasoning", "message"][-items:]
            assert text_of(answer["output"][-1]) == "ok"


def test_sealed_thought_comes_back(at: Saying) -> None:
    include = ["reasoning.encrypted_content"]
    answer = at.both(say(*THOUGHT, "Hello"), include=include, store=False)
    thought, message = answer["output"]
    seal = thought["encrypted_content"]
    thought = {**thought, "content": None, "summary": []}
    at.whole([user("hi"), thought, message, user("more")])
    assert "<assistant>[thought Let me see.]Hello\n" in at.prompt
    foreign = base64.b64encode(json.dumps({"other": 1}).encode()).decode()
    for other in (None, "", "gAAAAAB!", "x", foreign, "null", seal[:-9]):  # RESP-14
        at.whole([{"type": "reasoning", "encrypted_content": other}, message, user("more")])
        assert "<assistant>Hello\n" in at.prompt
    at.whole([{"type": "reasoning", "summary": [{"text": "In short."}]}, message, user("more")])
    assert "[thought In short.]" in at.prompt


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_calls(at: Saying) -> None:
    # RESP-9
    said = say(*THOUGHT, call(city="Oslo"), "\n", call(city="Rome"))
    answer = at.both(said, tools=[WEATHER])
    thought, first, second = answer["output"]
    assert thought["type"] == "reasoning"
    assert json.loads(first["arguments"]) == {"city": "Oslo"}
    assert json.loads(second["arguments"]) == {"city": "Rome"}
    ids = {first["id"], second["id"], first["call_id"], second["call_id"]}
    assert len(ids) == 4
    assert first["id"].startswith("fc_")
    assert first["call_id"].startswith("call_")
    assert answer["status"] == "completed"
    assert "namespace" not in first
    done = [e for e in at.events(said, tools=[WEATHER]) if e["type"].endswith("arguments.done")]
    assert [event["name"] for event in done] == ["weather", "weather"]


def test_text_in_front_of_a_call(at: Saying) -> None:
    answer = at.both(say("Let's see. ", call(city="Oslo")), tools=[WEATHER])
    assert kinds(answer) == ["message", "function_call"]


def test_nothing_said_is_an_empty_message(at: Saying) -> None:
    answer = at.both(say())
    [message] = answer["output"]
    assert text_of(message) == ""
    assert answer["status"] == "completed"


@pytest.mark.parametrize(
    ("said", "tools", "kind"),
    [
        (["Hello, world"], None, "message"),
        (["<think>", "A long thought"], None, "reasoning"),
        ([call(city="A long name")], [WEATHER], "function_call"),
    ],
)
def test_length(at: Saying, said: list[str], tools: Any, kind: str) -> None:
    # RESP-10
    answer = at.both(say(*said), tools=tools, max_output_tokens=9 + 40 * bool(tools))
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["completed_at"] is None
    assert answer["output"][-1]["type"] == kind
    assert answer["output"][-1]["status"] == "incomplete"


def test_empty_input(at: Saying) -> None:
    # RESP-31: what Codex asks of LM Studio's port before its first turn
    for nothing in ("", []):
        answer = at.both(nothing, max_output_tokens=1)
        assert (answer["status"], text_of(answer["output"][0])) == ("incomplete", "o")


def test_logprobs(at: Saying) -> None:
    for fields in ({"top_logprobs": 1}, {"include": ["message.output_text.logprobs"]}):
        answer = at.both(say("a", "b", "c"), **fields)
        entries = answer["output"][0]["content"][0]["logprobs"]
        assert [entry["token"] for entry in entries] == ["a", "b", "c"]
        assert all(isinstance(entry["top_logprobs"], list) for entry in entries)
        deltas = [e for e in at.events(say("a", "b", "c"), **fields) if "delta" in e]
        assert [e["logprobs"][0]["token"] for e in deltas] == ["a", "b", "c"]


def test_logprobs_of_deltas_are_those_of_the_whole_text(at: Saying) -> None:
    events = at.events(say(*"abcde", *"aé\n", "<", '"'), top_logprobs=2)
    deltas = [event for event in events if "delta" in event]
    told = [entry for event in deltas for entry in event["logprobs"]]
    texts = [event["delta"] for event in deltas]
    assert "".join(entry["token"] for entry in told) == "".join(texts)
    assert len(told) > len(deltas) > 5  # a parser holds `<`
    assert {tuple(event) for event in deltas} == {tuple(deltas[0])}
    kinds = ("output_text.done", "content_part.done", "output_item.done", "completed")
    text, part, item, end = (e for e in events if e["type"].removeprefix("response.") in kinds)
    assert text["logprobs"] == part["part"]["logprobs"] == told
    assert item["item"]["content"] == [part["part"]] == end["response"]["output"][0]["content"]


def test_the_format_of_the_text(at: Saying) -> None:
    # RESP-15
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "numbers", "schema": schema, "strict": True}
    answer = at.both(say(*'{"b": 3}'), text={"format": form, "verbosity": "low"})
    assert json.loads(text_of(answer["output"][0]))["a"] in (1, 2)
    assert answer["text"] == {"format": form, "verbosity": "low"}
    assert "[low]" in at.prompt
    loose = at.both(say(*"not JSON"), text={"format": {"type": "json_object"}})
    assert isinstance(json.loads(text_of(loose["output"][0])), dict)
    assert at.whole("hi", text={})["text"] == {"format": {"type": "text"}}


ECHOED: dict[str, Any] = {
    "model": "scripted",
    "instructions": "Be kind.",
    "max_output_tokens": 50,
    "max_tool_calls": 3,
    "parallel_tool_calls": False,
    "prompt_cache_key": "a",
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "b",
    "store": True,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "tool_choice": "none",
    "tools": [{**WEATHER, "strict": None}, {"type": "web_search", "user_location": None}],
    "top_logprobs": 2,
    "truncation": "auto",
    "user": "ann",
    "metadata": {"a": "b"},
}


def test_requests_are_echoed(at: Saying) -> None:
    # RESP-32
    sent = {**ECHOED, "temperature": 0.5, "top_p": 0.5, "service_tier": "flex"}
    answer = at.whole("hi", **sent)
    assert answer.items() >= ECHOED.items()
    assert answer["service_tier"] == "default"
    plain = at.whole("hi")
    assert plain["model"] == "scripted"
    empty = {"reasoning": {"effort": None, "summary": None}, "tools": [], "metadata": {}}
    rest = {"tool_choice": "auto", "parallel_tool_calls": True, "truncation": "disabled"}
    assert plain.items() >= {**empty, **rest, "top_logprobs": 0}.items()
    assert plain.keys() == answer.keys() >= ECHOED.keys()


def test_sampling_is_what_was_used() -> None:
    with saying(sampling={"temperature": 0.25}) as other:
        assert other.whole("hi")["temperature"] == 0.25
        answer = other.whole("hi", temperature=0.5, top_p=0.75)
        assert (answer["temperature"], answer["top_p"]) == (0.5, 0.75)


def test_fields_of_other_servers(at: Saying) -> None:
    """Samplers work through `extra_body`, and what means nothing is named."""
    answer = at.post("hi", stop=["k"], made_up=1, context_management=[{"type": "x"}], n=3)
    assert text_of(answer.json()["output"][0]) == "o"
    named = set(answer.headers["x-unsupported-params"].split(", "))
    assert named == {"made_up", "context_management", "n"}
    counted = at.server.http.post(f"{PATH}/input_tokens", json={"input": "hi", "made_up": 1})
    assert counted.headers["x-unsupported-params"] == "made_up"
    quiet = ("client_metadata", "prompt_cache_options", "access_programs", "image")
    assert "x-unsupported-params" not in at.post("hi", **{key: {"a": 1} for key in quiet}).headers


@pytest.mark.parametrize(
    "name",
    sorted(
        ResponseObject.model_fields.keys()
        - ResponsesRequest.model_fields.keys()
        - SamplingFields.model_fields.keys()
    ),
)
def test_fields_of_answers_are_none_of_requests(at: Saying, name: str) -> None:
    """What only answers have is not told as it was sent."""
    answer = at.post("hi", **{name: {"reason": "cancelled"}})
    assert answer.headers["x-unsupported-params"] == name
    assert answer.json()[name] != {"reason": "cancelled"}
    assert at.events("hi", **{name: "x"})[-1]["response"]["status"] == "completed"


def test_a_limit_speaks_of_its_own_field(at: Saying) -> None:
    headers = at.post("hi", max_output_tokens=100_000).headers
    assert headers["x-clamped-params"].startswith("max_output_tokens=")


def test_what_goes_wrong_first_has_a_status(at: Saying) -> None:
    # RESP-34
    for stream in (False, True):
        error = error_of(at.post("x" * 5000, stream=stream))
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == "input"
        assert error_of(at.post(say("died"), stream=stream), 500)["type"] == "server_error"


def test_an_engine_that_dies_in_mid_stream(at: Saying) -> None:
    # RESP-35
    for said, item in (
        (("Hel", "lo", "died"), "message"),
        (("<think>", "Hm", "died"), "reasoning"),
    ):
        events = at.events(say(*said))
        assert events[-1]["type"] == "response.failed"
        failed = events[-1]["response"]
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == "server_error"
        assert failed["error"]["message"]
        [cut] = failed["output"]
        assert (cut["type"], cut["status"]) == (item, "incomplete")
        assert "error" not in {event["type"] for event in events}


@pytest.mark.parametrize("stream", [False, True])
def test_cancelled(stream: bool) -> None:
    with holding() as at, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(at.server.http.post, PATH, json={"input": "hi", "stream": stream})
        at.begun("hi")
        [running] = at.requests
        at.until(lambda: running.counter and running.counter.usage.completion_tokens)
        assert running.answer_id
        assert running.answer_id.startswith("resp_")
        cancelled = at.server.http.post(f"/v1/requests/{running.answer_id}/cancel")
        assert cancelled.status_code == 200
        response = asked.result()
        answer = checked(response.text)[-1]["response"] if stream else response.json()
        if stream:
            assert "event: response.incomplete" in response.text
        assert answer["status"] == "cancelled"
        assert answer["incomplete_details"] == {"reason": "cancelled"}
        assert answer["output"][0]["status"] == "incomplete"
        assert at.server.http.get(f"{PATH}/{answer['id']}").json() == answer


REFUSED: dict[str, Any] = {"type": "refusal", "refusal": "I won't."}


@pytest.mark.parametrize(
    ("end", "status", "details"),
    [
        ("stop", "completed", None),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(end: Any, status: str, details: Any, stream: bool) -> None:
    said = [ReasoningDelta("Hm."), RefusalDelta("I "), RefusalDelta("won't.")]
    with serving(said, finish_reason=end) as (server, _):
        response = server.http.post(PATH, json={"input": "hi", "stream": stream})
        answer = checked(response.text)[-1]["response"] if stream else response.json()
    assert (answer["status"], answer["incomplete_details"]) == (status, details)
    assert kinds(answer) == ["reasoning", "message"]
    assert answer["output"][1]["content"] == [REFUSED]
    assert answer["output"][1]["status"] == status


def test_a_client_that_leaves() -> None:
    # RESP-36, and nothing is kept
    with holding() as at:
        with at.server.http.stream("POST", PATH, json={"input": "hi", "stream": True}) as response:
            id = ""
            for line in response.iter_lines():
                if line.startswith("data: "):
                    id = json.loads(line[6:])["response"]["id"]
                    break
        until(at.server, lambda: not at.held.running)
        at.nothing_is_left()
        error_of(at.server.http.get(f"{PATH}/{id}"), 404)


PIECES = [*THOUGHT, "\n\n", *"Hello ", *call(city="Oslo"), "\n", *call(city='Ro"me'), *" bye"]


@given(st.sets(st.integers(1, len("".join(PIECES)) - 1), max_size=12), st.booleans())
def test_any_cut_gives_the_same_items(at: Saying, cuts: set[int], summary: bool) -> None:
    text = "".join(PIECES)
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    fields: dict[str, Any] = {
        "tools": [WEATHER],
        "reasoning": {"summary": "auto"} if summary else {},
    }
    cut = at.events(say(*pieces), **fields)[-1]["response"]["output"]
    whole = at.whole(say(text), **fields)["output"]
    assert unnamed({"output": cut}) == unnamed({"output": whole})
