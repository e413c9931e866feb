"""In every API stop strings end the answer, and neither its reasoning nor its calls. ANS-1"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from enginebay import GenerationRequest
from enginebay.testing import ScriptedEngine
from tests.apis.named_events import named_events
from tests.apis.ollama_support import WEATHER, user
from tests.conftest import ServeScripted
from tests.support import Server, engine_backend, plugins_with, scripted, scripted_config, serve

SAID = "<think>\nSeven\nand five.\n</think>\n\nIt is\n12.\nOr so."
MESSAGES = user("What is 7 + 5?")
Told = tuple[str, str, object]
"""The answer, its reasoning, and what stopped it."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    config = scripted_config(reasoning="think")
    with serve(config, plugins_with(scripted=scripted(list(SAID)))) as server:
        yield server


def chat(server: Server, stop: list[str], *, stream: bool, **fields: Any) -> Told:
    body = {"model": "scripted", "messages": MESSAGES, "stop": stop, "stream": stream, **fields}
    response = server.http.post("/v1/chat/completions", json=body)
    if not stream:
        [choice] = response.json()["choices"]
        message = choice["message"]
        return message["content"], message.get("reasoning_content", ""), choice["stop_reason"]
    choices = [
        json.loads(line[6:])["choices"][0] for line in response.text.splitlines() if "{" in line
    ]
    deltas = [choice["delta"] for choice in choices]
    joined = (
        "".join(each.get(f) or "" for each in deltas) for f in ("content", "reasoning_content")
    )
    return (*joined, choices[-1].get("stop_reason"))  # type: ignore[return-value]


def responses(server: Server, stop: list[str], *, stream: bool) -> Told:
    body = {"model": "scripted", "input": "7 + 5?", "stop": stop, "stream": stream}
    response = server.http.post("/v1/responses", json=body)
    said = named_events(response.text)[-1]["response"] if stream else response.json()
    thought, message = said["output"]
    return message["content"][0]["text"], thought["content"][0]["text"], None


def messages(server: Server, stop: list[str], *, stream: bool) -> Told:
    body = {
        "model": "scripted",
        "messages": MESSAGES,
        "max_tokens": 99,
        "stop_sequences": stop,
        "stream": stream,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    response = server.http.post("/v1/messages", json=body)
    if not stream:
        said = response.json()
        thought, text = said["content"]
        return text["text"], thought["thinking"], said["stop_sequence"]
    events = named_events(response.text)
    deltas = [event["delta"] for event in events if "delta" in event]
    joined = ("".join(each.get(field, "") for each in deltas) for field in ("text", "thinking"))
    return (*joined, deltas[-1]["stop_sequence"])  # type: ignore[return-value]


def ollama(server: Server, stop: list[str], *, stream: bool) -> Told:
    body = {"model": "scripted", "messages": MESSAGES, "options": {"stop": stop}, "stream": stream}
    response = server.http.post("/api/chat", json={**body, "think": True})
    said = [json.loads(line)["message"] for line in response.text.splitlines()]
    joined = ("".join(each.get(field, "") for each in said) for field in ("content", "thinking"))
    return (*joined, None)  # type: ignore[return-value]


def ollama_prompt(server: Server, stop: list[str], *, stream: bool) -> Told:
    body = {"model": "scripted", "prompt": "7 + 5?", "options": {"stop": stop}, "stream": stream}
    response = server.http.post("/api/generate", json={**body, "think": True})
    said = [json.loads(line) for line in response.text.splitlines()]
    joined = ("".join(each.get(field, "") for each in said) for field in ("response", "thinking"))
    return (*joined, None)  # type: ignore[return-value]


APIS = (chat, responses, messages, ollama, ollama_prompt)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("stop", "answer"),
    [
        ("\n", "It is"),
        ("12", "It is\n"),
        ("Seven", "It is\n12.\nOr so."),
        ("\n\nIt", "It is\n12.\nOr so."),  # begins before the answer
        (">", "It is\n12.\nOr so."),
        ("think", "It is\n12.\nOr so."),
    ],
)
def test_they_match_in_the_answer(
    server: Server, api: Any, stop: str, answer: str, stream: bool
) -> None:
    text, thought, reason = api(server, [stop], stream=stream)
    assert (text.lstrip("\n"), thought.strip("\n")) == (answer, "Seven\nand five.")
    assert reason in (None, stop)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"separate_reasoning": False}])
def test_whether_or_not_reasoning_is_shown(
    server: Server, fields: dict[str, Any], stream: bool
) -> None:
    text, _, reason = chat(server, ["\n"], stream=stream, **fields)
    assert (text.rpartition("</think>")[2].strip("\n"), reason) == ("It is", "\n")


def test_a_stop_string_that_stays(server: Server) -> None:
    text, _, _ = chat(server, ["\n"], stream=False, include_stop_str_in_output=True)
    assert text.lstrip("\n") == "It is\n"


def test_reasoning_that_the_prompt_opens(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(
        list(SAID.removeprefix("<think>")), reasoning="think", engine={"chat_template": "<think>"}
    )
    for stream in (False, True):
        text, thought, reason = chat(server, ["\n"], stream=stream)
        assert (text.lstrip("\n"), thought.strip("\n"), reason) == (
            "It is",
            "Seven\nand five.",
            "\n",
        )


def test_each_choice_ends_for_itself(serve_scripted: ServeScripted) -> None:
    texts = ["<think>a\nb</think>\none\ntwo", "three\nfour"]
    server = serve_scripted(lambda prompt, index: list(texts[index]), reasoning="think")
    body = {"messages": MESSAGES, "stop": "\n", "n": 2}
    choices = server.http.post("/v1/chat/completions", json=body).json()["choices"]
    assert [choice["message"]["content"].lstrip("\n") for choice in choices] == ["one", "three"]


def test_reasoning_that_a_budget_ends(serve_scripted: ServeScripted) -> None:
    server = serve_scripted([SAID], reasoning="think")
    text, thought, reason = chat(server, ["\n"], stream=False, reasoning_budget=3)
    assert (text.lstrip("\n"), reason) == ("It is", "\n")
    assert thought.strip("\n") == "Se"


def test_channels(serve_scripted: ServeScripted) -> None:
    said = (
        "<|channel|>analysis<|message|>Seven\nand five.<|end|><|start|>assistant"
        "<|channel|>final<|message|>It is\n12."
    )
    server = serve_scripted(list(said), reasoning="harmony")
    for stop, answer in (("\n", "It is"), ("assistant", "It is\n12."), ("final", "It is\n12.")):
        assert chat(server, [stop], stream=True)[:2] == (answer, "Seven\nand five.")


def test_the_end_of_a_turn_ends_reasoning_too(serve_scripted: ServeScripted) -> None:
    """A model that writes the end of its turn will not go on by itself."""
    template = "{% set stop_strings = ['### User'] %}x"
    server = serve_scripted(
        ["<think>hm\n### User: go on"], reasoning="think", engine={"chat_template": template}
    )
    text, thought, reason = chat(server, ["\n"], stream=False)
    assert (text, thought.strip("\n"), reason) == ("", "hm", "### User")


@pytest.mark.parametrize("stop", ["\n", "city", "<", "_call"])
def test_a_call_is_no_answer(serve_scripted: ServeScripted, stop: str) -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    server = serve_scripted(
        list(f"<think>\nhm\n</think>\n\nLook.{call}"), reasoning="think", tools="hermes"
    )
    body = {"messages": MESSAGES, "stop": [stop], "tools": [WEATHER]}
    choice = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]
    [called] = choice["message"]["tool_calls"]
    assert json.loads(called["function"]["arguments"]) == {"city": "Oslo"}
    assert choice["message"]["content"].lstrip("\n") == "Look."
    assert choice["finish_reason"] == "tool_calls"


def test_a_tag_that_opens_no_call_is_text(serve_scripted: ServeScripted) -> None:
    said = list("A <tool_call> tag.\nMore.")
    server = serve_scripted(said, tools="hermes", engine={"constraints": False})
    body = {"messages": MESSAGES, "stop": "\n", "tools": [WEATHER]}
    choice = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert choice["message"]["content"] == "A <tool_call> tag."


class Unaware(ScriptedEngine):
    """An engine as of a plugin, which finds stop strings anywhere."""

    def __init__(self, script: Any, **fields: Any) -> None:
        super().__init__(script, **fields)
        self.info = replace(self.info, unsupported=self.info.unsupported | {"stop_scope"})
        self.asked: list[GenerationRequest] = []

    def add_request(self, request: GenerationRequest) -> None:
        self.asked.append(request)
        super().add_request(request)


@pytest.mark.parametrize("stream", [False, True])
def test_engines_that_know_no_scope(stream: bool) -> None:
    endless = Unaware(lambda prompt, index: chain(SAID, iter(lambda: "more", "")))
    backend = engine_backend(lambda: endless)
    config = scripted_config(reasoning="think")
    with serve(config, plugins_with(scripted=backend)) as server:
        text, thought, reason = chat(server, ["\n"], stream=stream)
        assert (text.lstrip("\n"), thought.strip("\n"), reason) == (
            "It is",
            "Seven\nand five.",
            "\n",
        )
        text, _, _ = chat(server, ["\n"], stream=stream, min_tokens=41)
        assert text.lstrip("\n") == "It is\n12."
        server.settle()
    assert [each.sampling.stop for each in endless.asked] == [(), ()]
    assert endless._choices == []


def test_a_real_model(demo: Server) -> None:
    body: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 200}
    whole = demo.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    for stop in ("\n", "12", "7"):
        for stream in (False, True):
            text, thought, _ = chat(demo, [stop], stream=stream, model="enginebay-demo", **body)
            assert thought.strip() == whole["reasoning_content"].strip()
            assert text.strip() == whole["content"].strip().partition(stop)[0].strip()
