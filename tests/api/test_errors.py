"""Every error is OpenAI's error object, with the status that its clients know what to do with."""

import json
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import openai
import pytest

from enginebay import (
    Backend,
    Delta,
    GenerationRequest,
    QueueFullError,
    ServingError,
    hookimpl,
)
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.support import (
    engine_backend,
    plugins_with,
    scripted,
    scripted_config,
    serve,
)

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def error_of(text: str) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/v1/nothing", None, 404, "invalid_request_error"),
        ("GET", CHAT, None, 405, "invalid_request_error"),
        ("POST", CHAT, {**BODY, "model": "nobody"}, 404, "invalid_request_error"),
        ("POST", CHAT, {"messages": 5}, 400, "invalid_request_error"),
        ("POST", CHAT, {"messages": "x" * 3000}, 413, "invalid_request_error"),
    ],
)
def test_what_the_client_did_wrong(
    serve_scripted: ServeScripted, method: str, path: str, body: Any, status: int, kind: str
) -> None:
    server = serve_scripted(["ok"], server={"max_request_bytes": 2000})
    response = server.http.request(method, path, json=body)
    assert response.status_code == status
    assert error_of(response.text)["type"] == kind


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue(stream: bool) -> None:
    # VLLM-36 VLLM-83
    class Full(ScriptedEngine):
        def add_request(self, request: GenerationRequest) -> None:
            raise QueueFullError("7 requests are waiting already; try again later")

    plugins = plugins_with(scripted=engine_backend(lambda: Full(["ok"])))
    with serve(scripted_config(), plugins) as server:
        response = server.http.post(CHAT, json={**BODY, "stream": stream})
        assert response.status_code == 429
        assert response.headers["retry-after"]
        error = error_of(response.text)
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        with pytest.raises(openai.RateLimitError):
            server.openai.chat.completions.create(model="scripted", **BODY)


class Broken:
    """A hook that raises what nobody expects, at once or after some text."""

    def __init__(self, after: int) -> None:
        self._after = after

    @hookimpl
    def generate(
        self, backend: Backend, request: GenerationRequest
    ) -> AsyncGenerator[Delta, None] | None:
        return self._deltas()

    async def _deltas(self) -> AsyncGenerator[Delta, None]:
        for _ in range(self._after):
            yield Delta(text="a", token_ids=(97,))
        raise RuntimeError("a secret of the server")


@pytest.mark.parametrize("stream", [False, True])
def test_what_nobody_expected(stream: bool) -> None:
    # TAB-86 TAB-89 VLLM-26
    plugins = plugins_with(scripted=scripted(["ok"]))
    plugins._manager.register(Broken(after=0))
    with serve(scripted_config(), plugins) as server:
        headers = {"X-Request-Id": "id-1"}
        response = server.http.post(CHAT, json={**BODY, "stream": stream}, headers=headers)
        assert response.status_code == 500
        error = error_of(response.text)
        assert error["type"] == "server_error"
        assert "chatcmpl-id-1" in error["message"]
        assert "server's log" in error["message"]
        assert "secret" not in error["message"]


def test_what_nobody_expected_in_mid_stream() -> None:
    # TAB-86 VLLM-78 VLLM-79
    plugins = plugins_with(scripted=scripted(["ok"]))
    plugins._manager.register(Broken(after=2))
    with serve(scripted_config(), plugins) as server:
        for path, body in ((CHAT, BODY), ("/v1/completions", {"prompt": "x"})):
            response = server.http.post(path, json={**body, "stream": True})
            assert response.status_code == 200
            events = [line[6:] for line in response.text.splitlines() if line]
            assert events[-1] == "[DONE]"
            assert error_of(events[-2])["code"] == "internal_error"
            assert "secret" not in response.text
            text = "".join(map(_text, events[:-2]))
            assert text == "aa"


def _text(event: str) -> str:
    choice = json.loads(event)["choices"][0]
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_one_request(stream: bool) -> None:
    # MLC-11 VLLM-36
    class Refusing(ScriptedEngine):
        def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
            for request_id, _ in list(super().step()):
                self.abort_request(request_id)
                yield request_id, ServingError("the model failed on this request")

    plugins = plugins_with(scripted=engine_backend(lambda: Refusing(["ok"])))
    with serve(scripted_config(), plugins) as server:
        response = server.http.post(CHAT, json={**BODY, "stream": stream})
        assert response.status_code == 500
        assert error_of(response.text)["message"] == "the model failed on this request"
