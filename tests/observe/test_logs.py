"""Log lines: about which request, in JSON, and nothing secret in them."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from enginebay.chat.answer.running import RunningRequest
from enginebay.server.http.uvicorn_server import set_up_logging
from enginebay.server.observe.logs import request_of
from tests.conftest import ServeScripted

CHAT = {"messages": [{"role": "user", "content": "my s3cret prompt"}]}


_LIMITS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/api/chat": "options",
}

pytestmark = pytest.mark.usefixtures("log_stays")


class Log(io.StringIO):
    def lines(self, logger: str = "") -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.getvalue().splitlines()]
        return [line for line in lines if line["logger"].startswith(logger)]


def start(level: str = "info", *, as_json: bool = True) -> Log:
    log = Log()
    set_up_logging(level, Console(file=log), as_json=as_json)
    return log


def test_every_line_of_a_request_has_its_id(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["a", "b"])
    log = start()
    answer = server.http.post(
        "/v1/chat/completions", json={**CHAT, "stream": True}, headers={"X-Request-Id": "mine"}
    )
    assert answer.text.endswith("data: [DONE]\n\n")
    server.settle()
    lines = [
        line
        for line in log.lines()
        if line["logger"].startswith(("enginebay.chat.answer", "enginebay"))
    ]
    assert len(lines) == 3  # what is asked, what came of it, the access log
    assert {line["request_id"] for line in lines} == {"mine"}
    assert {line["model"] for line in lines} == {"scripted"}
    access = lines[-1]
    assert access["logger"] == "enginebay.access"
    wanted = {"method": "POST", "path": "/v1/chat/completions", "status": 200, "level": "info"}
    assert wanted.items() <= access.items()
    assert (access["prompt_tokens"], access["completion_tokens"]) == (34, 3)
    assert 0 <= access["ttft_s"] <= access["duration_s"]
    assert access["message"].startswith("127.0.0.1 POST /v1/chat/completions 200 in ")
    assert "T" in access["time"]
    assert access["time"].endswith("Z")


@pytest.mark.wing("page")
def test_what_machines_ask_is_quiet(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["a"])
    log = start()
    quiet = ("/health", "/metrics", "/v1/health", "/v1/stats", "/v1/requests", "/page/app.js")
    for path in (*quiet, "/v1/models", "/a%0Ab"):
        server.http.get(path)
    server.settle()
    paths = [(line["path"], line["status"]) for line in log.lines("enginebay.access")]
    assert paths == [("/v1/models", 200), ("/a%0Ab", 404)]


@pytest.mark.wing("messages", "ollama", "responses")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", {**CHAT, "model": "scripted", "max_tokens": 99}),
        ("/v1/responses", {"input": "x"}),
        ("/api/chat", {**CHAT, "model": "scripted"}),
    ],
)
@pytest.mark.parametrize(("most", "reason"), [(99, "stop"), (1, "length")])
def test_the_lines_of_a_finished_answer_give_the_reason(
    serve_scripted: ServeScripted,
    path: str,
    body: dict[str, Any],
    stream: bool,
    most: int,
    reason: str,
) -> None:
    # EVE-5
    server = serve_scripted(["a", "b"])
    log = start()
    limits = {"max_tokens": most, "max_output_tokens": most, "options": {"num_predict": most}}
    wanted = {_LIMITS[path]: limits[_LIMITS[path]]}
    answer = server.http.post(path, json={**body, **wanted, "stream": stream})
    assert answer.status_code == 200, answer.text
    server.settle()
    lines = [line["message"] for line in log.lines()]
    assert sum(line.endswith(f"completion tokens, finished: {reason}") for line in lines) == 2
    assert log.lines("enginebay.access")[-1]["ended"] == f"finished: {reason}"


def test_the_reason_of_each_choice(serve_scripted: ServeScripted) -> None:
    # EVE-5
    server = serve_scripted(lambda prompt, index: ["a"] * (1 + 8 * index))
    log = start()
    server.http.post("/v1/chat/completions", json={**CHAT, "n": 2, "max_tokens": 4})
    server.settle()
    assert log.lines("enginebay.access")[-1]["ended"] == "finished: 1 stop, 1 length"


@pytest.mark.parametrize("after", ["finish", "begin"])
def test_a_client_that_closes_its_stream(serve_scripted: ServeScripted, after: str) -> None:
    """EVE-5: after the last update the answer is finished, before that the client has left."""
    server = serve_scripted(lambda prompt, index: ["a"] if after == "finish" else forever())
    log = start()
    body = {**CHAT, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if '"finish_reason":"stop"' in line or (after == "begin" and '"content":"a' in line):
                break
    server.settle()
    expected = "finished: stop" if after == "finish" else "aborted: the client has left"
    assert log.lines("enginebay.access")[-1]["ended"] == expected


def forever() -> Iterator[str]:
    """Text without an end."""
    while True:
        yield "a"


@pytest.mark.parametrize("level", ["debug", "info"])
@pytest.mark.parametrize("log_prompts", [True, False])
def test_keys_are_never_logged(
    serve_scripted: ServeScripted, level: str, log_prompts: bool
) -> None:
    """And prompts only when asked for. LF-32"""
    key = "sk-0123456789abcdef"
    server = serve_scripted(["an", "swer"], server={"api_keys": [key], "log_prompts": log_prompts})
    log = start(level)
    for sent in (key, f"{key}x"):
        headers = {"Authorization": f"Bearer {sent}", "x-api-key": sent}
        server.http.post("/v1/chat/completions", json=CHAT, headers=headers)
        server.http.get(f"/v1/models?key={sent}", headers=headers)
    server.settle()
    lines = [line for line in log.lines() if not line["logger"].startswith("http")]  # the client's
    text = json.dumps([{**line, "logger": ""} for line in lines])
    assert key not in text
    assert ("s3cret" in text) is log_prompts
    assert ("answer" in text) is log_prompts


def test_a_line_of_text_names_its_request_once() -> None:
    log = start(as_json=False)
    running = RunningRequest()
    running.id = "mine"
    request_of.set({"running": running})
    logging.getLogger("x").info("hello")
    logging.getLogger("x").info("hello from mine")
    logging.getLogger("x").info("hello", extra={"request_id": "other"})
    request_of.set(None)
    logging.getLogger("x").info("nobody's")
    assert [line.split(": ", 1)[1] for line in log.getvalue().splitlines()] == [
        "hello [mine]",
        "hello from mine",
        "hello [other]",
        "nobody's",
    ]


def test_clients_write_no_lines_of_their_own(serve_scripted: ServeScripted) -> None:
    """Nor what a terminal would take for a command, nor lines as long as they like."""
    server = serve_scripted(["a"])
    log = start(as_json=False)
    forged = (
        "x\n12:00:00 ERROR   enginebay.server.access: all keys are known\r\x1b[2J\x9b\u2028\x00"
    )
    fields = {forged: 1, "y" * 100_000: 1, "stop_token_ids": list(range(20_000))}
    unread = {"chat_template_kwargs": {forged: 1, "y" * 100_000: 1}}
    for body in (fields, unread):
        answer = server.http.post("/v1/chat/completions", json={**CHAT, **body})
        assert answer.status_code == 200
    server.http.post("/v1/chat/completions", json={"messages": [], "model": forged})
    server.settle()
    text = log.getvalue()
    assert text.count("12:00:00 ERROR") == 3
    assert text.isascii()
    assert not {character for character in text if ord(character) < 32} - {"\n"}
    for line in text.splitlines():
        assert len(line) < 1500
        assert not line.startswith("12:00:00 ERROR")


def test_messages_that_had_to_be_changed_fill_no_log(serve_scripted: ServeScripted) -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.x }}"
    )
    template += "{% endfor %}{{ m.content }}{% endfor %}"
    server = serve_scripted(["a"], engine={"chat_template": template})
    log = start()
    call = {"type": "function", "function": {"name": "f", "arguments": "oops"}}
    messages = [{"role": "assistant", "tool_calls": [call] * 500}, *CHAT["messages"]]
    assert server.http.post("/v1/chat/completions", json={"messages": messages}).status_code == 200
    lines = [line for line in log.lines("enginebay.chat") if "not a JSON object" in line["message"]]
    assert 1 <= len(lines) <= 10


def test_further_lines_are_indented() -> None:
    log = start(as_json=False)
    try:
        raise ValueError("oops\nand more")
    except ValueError:
        logging.getLogger("x").exception("failed\nbadly")
    first, *others = log.getvalue().splitlines()
    assert first.endswith("x: failed")
    assert others[0] == "    badly"
    assert others[-2:] == ["    ValueError: oops", "    and more"]
    assert all(line.startswith("    ") for line in others)


def test_json_of_anything() -> None:
    log = start()
    logger = logging.getLogger("x")
    logger.info("a\nb %s", object, extra={"odd": {1}, "text": "\ud83d"})
    try:
        raise ValueError("oops")
    except ValueError:
        logger.exception("failed")
    first, second = log.lines("x")
    assert first["message"] == "a\nb <class 'object'>"
    assert (first["odd"], first["text"]) == ("{1}", "\ud83d")
    assert second["level"] == "error"
    assert second["exception"].endswith("ValueError: oops")
