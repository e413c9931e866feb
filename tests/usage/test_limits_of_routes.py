"""Limits of tokens over HTTP, while answers run, wait and are cut off. KEY-1 KEY-2"""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from enginebay import RouteRequest
from enginebay.config.schema import Config
from tests.api.test_queue import asking, error_of, text_of
from tests.held import Holding, holding
from tests.pooling import BACKENDS
from tests.support import NO_TLS, Server, plugins_with, scripted, scripted_config, serve
from tests.usage.test_usage_of_routes import CHAT, DOCUMENTS, MESSAGES, keys_of, usage

TEXT = "/v1/completions"


async def poem(request: RouteRequest) -> Any:
    """A plugin's route that does not count towards limits, and generates all the same."""
    return await (await request.complete({"model": "says", "prompt": "abc"})).whole()


@pytest.fixture(scope="module")
def spent() -> Iterator[Server]:
    """The key `anna` has used all it may; `bob` has not."""
    backends = {**BACKENDS, "endless": scripted(["x"])}
    models = [{"name": name, "backend": name, "path": "."} for name in backends]
    models[-1]["load"] = "request"
    config = Config.model_validate({"models": models, "server": {"auth": "required"}})
    keys = keys_of(anna={"tokens_per_minute": 5}, bob={"tokens_per_minute": 10**9})
    plugins = plugins_with(**backends)
    plugins.routes("GET", "/poem", poem, counted=False)
    with serve(config, plugins, keys=keys) as server:
        body = {"model": "says", "prompt": "abcde"}
        answer = server.http.post(TEXT, json=body, headers={"x-api-key": "anna"})
        assert answer.status_code == 200
        yield server


ROUTES: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "says", CHAT),
    ("/v1/chat/completions", "says", {**CHAT, "stream": True}),
    ("/v1/completions", "says", {"prompt": "abc"}),
    ("/v1/responses", "says", {"input": "hi", "stream": True}),
    ("/v1/responses", "says", {"input": "hi", "truncation": "auto"}),
    ("/v1/messages", "says", MESSAGES),
    ("/v1/messages", "says", {**MESSAGES, "stream": True}),
    ("/api/chat", "says", CHAT),
    ("/api/generate", "says", {"prompt": "abc", "stream": False}),
    ("/api/embed", "embeds", {"input": "abc"}),
    ("/api/v1/generate", "says", {"prompt": "abc"}),
    ("/api/extra/generate/stream", "says", {"prompt": "abc"}),
    ("/v1/embeddings", "embeds", {"input": "abc"}),
    ("/embed", "embeds", {"inputs": "abc"}),
    ("/v1/rerank", "ranks", DOCUMENTS),
    ("/v2/rerank", "ranks", DOCUMENTS),
    ("/v1/score", "ranks", {"text_1": "a", "text_2": "ab"}),
    ("/v1/classify", "three", {"input": "abc"}),
    ("/v1/score/evaluation", "rewards", {"messages": ["abc"]}),
]


def message_of(path: str, body: Any) -> Any:
    """The message of an error in the form of its API."""
    if path.startswith("/v1/messages"):
        assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
        return body["error"]["message"]
    if path.startswith(("/api/v1", "/api/extra")):
        assert body["detail"]["type"] == "tokens"
        return body["detail"]["msg"]
    if path.startswith("/api/"):
        return body["error"]
    assert (body["error"]["type"], body["error"]["code"]) == ("tokens", "rate_limit_exceeded")
    return body["error"]["message"]


@pytest.mark.wing("kobold", "messages", "ollama", "responses", "tei")
@pytest.mark.parametrize(("path", "model", "body"), ROUTES)
def test_a_limit_is_refused_in_the_form_of_each_api(
    spent: Server, path: str, model: str, body: dict[str, Any]
) -> None:
    body = {"model": model, **body}
    answer = spent.http.post(path, json=body, headers={"x-api-key": "anna"})
    assert answer.status_code == 429, answer.text
    assert "limited to 5 tokens per minute, which are used" in message_of(path, answer.json())
    assert 1 <= int(answer.headers["retry-after"]) <= 61
    assert answer.headers["x-ratelimit-limit-tokens"] == "5"
    assert answer.headers["x-ratelimit-remaining-tokens"] == "0"
    assert answer.headers["x-ratelimit-reset-tokens"]
    other = spent.http.post(path, json=body, headers={"x-api-key": "bob"})
    assert other.status_code == 200, other.text
    assert int(other.headers["x-ratelimit-remaining-tokens"]) < 10**9


@pytest.mark.wing("kobold", "llama_server", "messages", "responses")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "abc"}),
        ("/v1/tokenize", {"messages": CHAT["messages"]}),
        ("/detokenize", {"tokens": [97]}),
        ("/v1/token/encode", {"text": "abc"}),
        ("/v1/token/decode", {"tokens": [97]}),
        ("/apply-template", CHAT),
        ("/v1/messages/count_tokens", MESSAGES),
        ("/v1/responses/input_tokens", {"input": "hi"}),
        ("/api/extra/tokencount", {"prompt": "abc"}),
    ],
)
def test_requests_for_tokens_are_counted(path: str, body: dict[str, Any]) -> None:
    """SEC-9: apart from requests for answers, which they cost nothing."""
    keys = keys_of(anna={"requests_per_minute": 1})
    config = Config.model_validate(
        {
            "models": [{"name": "says", "backend": "says", "path": "."}],
            "server": {"auth": "required"},
        }
    )
    with serve(config, plugins_with(**BACKENDS), keys=keys) as server:
        sent = {"json": {"model": "says", **body}, "headers": {"x-api-key": "anna"}}
        for _ in range(10):
            assert server.http.post(path, **sent).status_code == 200
        refused = server.http.post(path, **sent)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert "requests for tokens with the API key of anna are limited to 10" in refused.text
        answer = server.http.post(TEXT, json={"prompt": "abc"}, headers={"x-api-key": "anna"})
        assert answer.status_code == 200


def test_no_way_leads_around_a_limit(spent: Server) -> None:
    assert spent.http.get("/poem", headers={"x-api-key": "anna"}).status_code == 429
    assert spent.http.get("/poem", headers={"x-api-key": "bob"}).status_code == 200


def test_nothing_is_loaded_for_a_key_that_has_no_tokens(spent: Server) -> None:
    body = {"model": "endless", "prompt": "abc"}
    answer = spent.http.post(TEXT, json=body, headers={"x-api-key": "anna"})
    assert answer.status_code == 429
    states = {
        m["id"]: m["state"]
        for m in spent.http.get("/v1/models", headers={"x-api-key": "anna"}).json()["data"]
    }
    assert states["endless"] == "unloaded"


@pytest.mark.wing("llama_server", "messages", "responses")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models", None),
        ("GET", "/v1/usage", None),
        ("POST", "/v1/token/encode", {"model": "says", "text": "abc"}),
        ("POST", "/v1/messages/count_tokens", {"model": "says", **CHAT}),
        ("POST", "/v1/responses/input_tokens", {"model": "says", "input": "a"}),
        ("POST", "/apply-template", {"model": "says", **CHAT}),
    ],
)
def test_what_uses_no_tokens_is_free(spent: Server, method: str, path: str, body: Any) -> None:
    answer = spent.http.request(method, path, json=body, headers={"x-api-key": "anna"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ratelimit-remaining-tokens"] == "0"


def test_what_is_left(spent: Server) -> None:
    limits = usage(spent, "anna")["limits"]
    assert {name for name, limit in limits.items() if limit} == {"tokens_per_minute"}
    limit = limits["tokens_per_minute"]
    assert 0 < limit.pop("reset_s") <= 60.25
    assert limit == {"limit": 5, "used": 8, "remaining": 0}


@contextmanager
def limited(tokens: int, **model: Any) -> Iterator[Holding]:
    """A model that is held, and a key `anna` with this limit."""
    keys = keys_of(anna={"tokens_per_minute": tokens}, bob={})
    with holding(keys=keys, **model) as at:
        yield at


def used(at: Holding, key: str = "anna") -> tuple[int, int, int]:
    """Requests, and tokens of prompts and answers."""
    entries = usage(at.server, key)["data"]
    names = ("requests", "prompt_tokens", "completion_tokens")
    one, two, three = (sum(entry[name] for entry in entries) for name in names)
    return one, two, three


def test_tokens_of_running_answers_count_as_they_come() -> None:
    with limited(9) as at, asking(at) as ask:
        first = ask("four?", key="anna")  # a prompt of five tokens, and nothing said yet
        at.begun("four?")
        assert used(at) == (1, 5, 0)
        second = ask("abc", key="anna")
        at.begun("four?", "abc")
        at.until(lambda: at.requests[-1].counter.usage.completion_tokens == 1)
        assert used(at) == (2, 8, 1)
        assert error_of(ask("abc", key="anna")) == (429, "rate_limit_exceeded")
        bobs = ask("abcd", key="bob")
        at.let_go("four?", "abc", "abcd")
        assert (text_of(first), text_of(second), text_of(bobs)) == ("ab", "ab", "ab")
        assert used(at) == (2, 8, 4), "what runs is not cut off"


def test_a_limit_that_is_reached_while_a_request_waits_for_its_turn() -> None:
    with limited(7, max_running=1) as at, asking(at) as ask:
        first = ask("first", key="anna")
        at.begun("first")
        waiting = [ask(prompt, key="anna", stream=prompt == "2") for prompt in "123"]
        other = ask("other", key="bob")
        at.queued(4)
        at.let_go("first", "other")
        assert text_of(first) == "ab"
        assert [error_of(each) for each in waiting] == [(429, "rate_limit_exceeded")] * 3
        assert text_of(other) == "ab"
        assert used(at) == (1, 5, 2)
        assert at.held.begun == ["first", "other"]
        at.until(lambda: not (at.requests or at.gate.running or at.gate.waiting))


def test_what_is_cut_off_counts_what_it_used() -> None:
    with limited(100, max_running=1) as at, asking(at) as ask:
        request = {"method": "POST", "url": TEXT, "headers": {"x-api-key": "anna"}}
        with at.server.http.stream(**request, json={"prompt": "four", "stream": True}) as answer:
            next(answer.iter_lines())
            assert used(at) == (1, 4, 1), "while it runs"
        at.until(lambda: not at.requests)
        assert used(at) == (1, 4, 1), "and when its client has left"
        running = ask("fives", key="anna", n=2)
        at.begun("four", "fives")
        waiting = ask("waits", key="anna")
        at.queued(1)
        for each in reversed(at.requests):
            path = f"/v1/requests/{each.shown_id}/cancel"
            assert at.server.http.post(path, headers={"x-api-key": "anna"}).status_code == 200
        assert error_of(waiting) == (499, "request_cancelled")
        assert text_of(running) == "aa"
        assert used(at) == (2, 9, 3), "a request that never ran has used nothing"


@pytest.mark.parametrize("at_once", [4, 32])
def test_thirty_two_clients_with_one_key(at_once: int) -> None:
    """The limit is exceeded by what was running at that moment only."""
    limit, prompt, answer = 3000, "a prompt of twenty-nine chars", 40
    key = {"tokens_per_day": limit}
    config = scripted_config(max_running=at_once)
    plugins = plugins_with(scripted=scripted(["word"] * 500))
    with serve(config, plugins, keys=keys_of(anna=key, bob=key)) as server:
        begin = threading.Barrier(32)

        def client(number: int) -> list[tuple[int, int]]:
            """Ask until it is refused: what each answer used, and of those that are cut off 0."""
            told = []
            with httpx2.Client(base_url=server.url, timeout=60, verify=NO_TLS) as http:
                http.headers["x-api-key"] = "anna"
                begin.wait()
                while True:
                    body = {"prompt": prompt, "max_tokens": answer, "stream": number % 2 == 1}
                    if number == 7:  # it leaves after the first token, again and again
                        with http.stream("POST", TEXT, json=body) as stream:
                            if stream.status_code == 200:
                                next(stream.iter_lines())
                                continue
                            status = stream.status_code
                    else:
                        status = (reply := http.post(TEXT, json=body)).status_code
                        if status == 200:
                            told.append((200, len(prompt) + answer))
                            continue
                        assert reply.json()["error"]["type"] == "tokens"
                    return [*told, (status, 0)]

        with ThreadPoolExecutor(32) as threads:
            told = [each for client in threads.map(client, range(32)) for each in client]
        server.settle()
        [entry] = usage(server, "anna")["data"]
        used = entry["prompt_tokens"] + entry["completion_tokens"]
        assert limit <= used < limit + at_once * (len(prompt) + answer)
        assert used >= sum(tokens for _, tokens in told)
        assert [status for status, _ in told if status != 200] == [429] * 32
        other = server.http.post(TEXT, json={"prompt": "a"}, headers={"x-api-key": "bob"})
        assert other.status_code == 200, "the limits of other keys are theirs"
        assert json.dumps(usage(server, "bob")).count("anna") == 0


def test_a_file_that_cannot_be_written_fails_no_request(tmp_path: Path) -> None:
    """It is said where people look, without paths."""
    (tmp_path / "usage.db").mkdir()
    config = scripted_config(server={"usage_file": str(tmp_path / "usage.db"), "auth": "required"})
    keys = keys_of(anna={"tokens_per_day": 9})
    with serve(config, plugins_with(scripted=scripted("ok")), keys=keys) as server:
        for status in (200, 200, 429):
            headers = {"x-api-key": "anna"}
            answer = server.http.post(TEXT, json={"prompt": "abc"}, headers=headers)
            assert answer.status_code == status, answer.text
        [entry] = usage(server, "anna")["data"]
        assert (entry["requests"], entry["prompt_tokens"], entry["completion_tokens"]) == (2, 6, 6)
        health = server.http.get("/health")
        assert (health.status_code, health.json()["state"]) == (200, "ok")
        [issue] = health.json()["issues"]
        assert "usage is kept in memory, its file cannot be written: " in issue["description"]
        assert str(tmp_path) not in health.text
        (tmp_path / "usage.db").rmdir()
        server.run(server.app.state.services.key_uses.records.write())
        assert usage(server, "anna")["data"] == [entry]
        assert server.http.get("/health").json()["issues"] == []
        assert (tmp_path / "usage.db").is_file()
