"""A model that says what the last message asks for, and lines of Ollama's streams."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from enginebay.config.keys import Key
from enginebay.contract.errors import ServingError
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of
from enginebay.testing import ScriptedEngine
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

CHAT, GENERATE = "/api/chat", "/api/generate"
UNSUPPORTED = "x-unsupported-params"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }}={{ c.function.name }}"
    "{{ c.function.arguments | tojson }}]{% endfor %}"
    "{% if m.tool_call_id %}[for {{ m.tool_call_id }}]{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}{{ '\\n' }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'


def says(prompt: str, index: int) -> Iterator[str]:
    """What the last message asks for: to think, to call, to fail, to say the prompt."""
    asked = prompt.removesuffix("<think></think>").removesuffix("<assistant>")
    asked = asked.rpartition("<tools>")[0] or asked
    last = asked.rstrip("\n").rpartition("\n<")[2] or asked
    if "[for " in last:
        yield from "It is sunny."
    elif "think" in last and not prompt.endswith("<think></think>"):
        yield from ("<think>", "Let me", " see.", "</think>", "Four", ".")
    elif "call" in last:
        yield from f"Wait. {CALL}" if "twice" not in last else f"{CALL}\n{CALL}"
    elif "fail" in last:
        yield from "So"
        raise ServingError("the engine broke")
    elif "prompt" in last:
        yield prompt
    else:
        yield from ("Hello", ", ", "world")


def key_store() -> KeyStore:
    """A user's key, one for a model that there is not, and an admin's."""
    keys = (
        Key("user", digest_of("user")),
        Key("other", digest_of("other"), models=("nobody",)),
        Key("admin", digest_of("admin"), "admin"),
    )
    return KeyStore(Path("no such file"), keys)


@contextmanager
def ollama_server(
    *,
    engine: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    keys: KeyStore | None = None,
    **model: Any,
) -> Iterator[Server]:
    """A server whose model is `scripted`; it thinks and calls."""

    def create() -> ScriptedEngine:
        return ScriptedEngine(says, **{"chat_template": TEMPLATE, **(engine or {})})

    config = scripted_config(
        server=server or {}, **{"reasoning": "think", "tools": "hermes", **model}
    )
    with serve(config, plugins_with(scripted=engine_backend(create)), keys=keys) as running:
        yield running


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def ask(server: Server, text: str, **fields: Any) -> dict[str, Any]:
    """The whole answer to a message."""
    body = {"model": "scripted", "messages": user(text), "stream": False, **fields}
    return answered(server.http.post(CHAT, json=body))


def answered(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(response: httpx2.Response, status: int = 400) -> str:
    """The text of an error in Ollama's form."""
    assert response.status_code == status, response.text
    error = response.json()
    assert list(error) == ["error"]
    assert isinstance(error["error"], str)
    return str(error["error"])


def lines(response: httpx2.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    assert "\n\n" not in response.text
    return [json.loads(line) for line in response.text.splitlines()]


def joined(streamed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message of a streamed answer."""
    messages = [line["message"] for line in streamed]
    return {
        "role": "assistant",
        "content": "".join(message["content"] for message in messages),
        "thinking": "".join(message.get("thinking", "") for message in messages),
        "tool_calls": [call for message in messages for call in message.get("tool_calls", ())],
    }
