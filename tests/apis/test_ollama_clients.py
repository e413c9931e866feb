"""What programs that look for an Ollama send, in the order in which they do."""

import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from tests.apis.ollama_support import (
    CHAT,
    GENERATE,
    UNSUPPORTED,
    WEATHER,
    key_store,
    lines,
    ollama_server,
    user,
)
from tests.support import NO_TLS, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ollama_server() as running:
        yield running


def test_vs_code(server: Server) -> None:
    """OLL-22: models of `/api/tags` that `/api/show` says have tools, asked by OpenAI's API."""
    version = server.http.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)
    [model] = server.http.get("/api/tags").json()["models"]
    shown = server.http.post("/api/show", json={"model": model["model"]}).json()
    info = shown["model_info"]
    assert info["general.basename"]
    assert info[f"{info['general.architecture']}.context_length"] == 4096
    assert "tools" in shown["capabilities"]
    body = {
        "model": model["model"],
        "messages": user("call"),
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [WEATHER],
    }
    answer = server.http.post("/v1/chat/completions", json=body).text
    assert '"name":"get_weather"' in answer
    assert answer.endswith("data: [DONE]\n\n")


async def test_home_assistant(server: Server) -> None:
    """It lists, and streams a chat with tools, of which it sends the results back."""
    sdk = ollama.AsyncClient(server.url, verify=NO_TLS)
    try:
        listed = await sdk.list()
        name = listed.models[0].model or ""
        messages: list[Any] = [{"role": "system", "content": "You are a house."}, *user("call")]
        fields: dict[str, Any] = {"keep_alive": "-1s", "options": {"num_ctx": 8192}, "think": False}
        stream = await sdk.chat(name, messages, tools=[WEATHER], stream=True, **fields)
        said, calls = "", []
        async for part in stream:
            said += part.message.content or ""
            calls += part.message.tool_calls or ()
        assert said.strip() == "Wait."
        [call] = calls
        assert call.function.arguments == {"city": "Oslo"}
        messages.append(ollama.Message(role="assistant", content=said, tool_calls=calls))
        result = json.dumps({"sky": "clear"})
        messages.append(ollama.Message(role="tool", content=result, tool_name=call.function.name))
        stream = await sdk.chat(name, messages, tools=[WEATHER], stream=True, **fields)
        assert "".join([p.message.content or "" async for p in stream]) == "It is sunny."
    finally:
        await sdk._client.aclose()


SILLYTAVERN_OPTIONS = {
    **{"num_predict": 250, "num_ctx": 8192, "num_batch": 512, "temperature": 1, "min_p": 0},
    **{"repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "top_k": 0, "top_p": 1},
    **{"tfs_z": 1, "typical_p": 1, "seed": 12, "repeat_last_n": 64, "mirostat": 0},
    **{"mirostat_tau": 5, "mirostat_eta": 0.1},
}


def test_sillytavern(server: Server) -> None:
    """Its type Ollama; it parses what it has got after each chunk, and gives up on two lines."""
    assert server.http.get("/api/tags").json()["models"][0]["name"] == "scripted"
    body = {
        "model": "scripted",
        "prompt": "hi",
        "stream": True,
        "keep_alive": -1,
        "raw": True,
        "options": SILLYTAVERN_OPTIONS,
    }
    answer = server.http.post(GENERATE, json=body)
    assert "".join(line["response"] for line in lines(answer)) == "Hello, world"
    assert answer.headers.get(UNSUPPORTED, "options.seed") == "options.seed"
    whole = server.http.post(GENERATE, json={**body, "stream": False}).json()
    assert whole["response"] == "Hello, world"


def test_open_webui() -> None:
    """With a key: it verifies, lists, chats, and has buttons to unload and pull."""
    with ollama_server(server={"auth": "required"}, keys=key_store()) as server:
        for key, status in (("user", 403), ("admin", 200)):
            headers = {"Authorization": f"Bearer {key}"}

            def get(path: str, headers: dict[str, str] = headers) -> Any:
                return server.http.get(path, headers=headers).json()

            assert get("/api/version")["version"]
            [model] = get("/api/tags")["models"]
            assert [each["model"] for each in get("/api/ps")["models"]] == [model["model"]]
            body = {
                "model": model["model"],
                "messages": [{"role": "user", "content": "think"}],
                "options": {"temperature": 0.8, "num_ctx": 2048},
                "stream": True,
            }
            said = lines(server.http.post(CHAT, json=body, headers=headers))
            assert "".join(line["message"]["content"] for line in said) == "Four."
            pulled = server.http.post("/api/pull", json={"name": "scripted"}, headers=headers)
            assert lines(pulled)[-1] == {"status": "success"}
            unloading = {"model": "scripted", "keep_alive": 0}
            answer = server.http.post(GENERATE, json=unloading, headers=headers)
            assert answer.status_code == status
            assert bool(get("/api/ps")["models"]) == (status == 403)
