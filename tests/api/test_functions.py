"""OpenAI's old `functions` and `function_call`, as clients of before the tools send them."""

import json
from typing import Any

import pytest

from tests.conftest import ServeScripted

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
FUNCTIONS = [
    {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
BODY: dict[str, Any] = {"messages": USER, "functions": FUNCTIONS}


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_call_by_its_old_name(serve_scripted: ServeScripted, size: int) -> None:
    pieces = [CALL[at : at + size] for at in range(0, len(CALL), size)]
    server = serve_scripted(pieces, tools="hermes")
    choice = server.http.post(CHAT, json=BODY).json()["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert "tool_calls" not in choice["message"]
    call = choice["message"]["function_call"]
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"]) == {"city": "Oslo"}
    deltas, reasons = [], []
    for chunk in server.openai.chat.completions.create(
        model="scripted",
        messages=USER,  # type: ignore[arg-type]
        functions=FUNCTIONS,  # type: ignore[arg-type]
        stream=True,
    ):
        assert chunk.choices[0].delta.tool_calls is None
        if chunk.choices[0].delta.function_call:
            deltas.append(chunk.choices[0].delta.function_call)
        reasons.append(chunk.choices[0].finish_reason)
    assert [delta.name for delta in deltas if delta.name] == ["get_weather"]
    assert "".join(delta.arguments or "" for delta in deltas) == call["arguments"]
    assert reasons[-1] == "function_call"


def test_a_message_has_one_call(serve_scripted: ServeScripted) -> None:
    server = serve_scripted([CALL, CALL.replace("Oslo", "Rome")], tools="hermes")
    message = server.http.post(CHAT, json=BODY).json()["choices"][0]["message"]
    assert json.loads(message["function_call"]["arguments"]) == {"city": "Oslo"}
    text = server.http.post(CHAT, json={**BODY, "stream": True}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    pieces = [(delta.get("function_call") or {}).get("arguments", "") for delta in deltas]
    assert json.loads("".join(pieces)) == {"city": "Oslo"}


def test_the_template_gets_tools(serve_scripted: ServeScripted) -> None:
    # LF-6
    server = serve_scripted(lambda prompt, index: [prompt], tools="none")
    prompt = server.http.post(CHAT, json=BODY).json()["choices"][0]["message"]["content"]
    tools = json.loads(prompt.partition("<tools>")[2].partition("\n")[0])
    assert tools == [{"type": "function", "function": FUNCTIONS[0]}]
    none = {**BODY, "function_call": "none"}
    assert "<tools>" not in server.http.post(CHAT, json=none).text


def test_history_by_the_old_names(serve_scripted: ServeScripted) -> None:
    # LF-3
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_call_id }}"
        "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.arguments.city }}"
        "{% endfor %};{% endfor %}"
    )
    server = serve_scripted(
        lambda prompt, index: [prompt], engine={"chat_template": template}, tools="none"
    )
    call = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "get_weather", "content": "rain"},
    ]
    answer = server.http.post(CHAT, json={"messages": messages}).json()
    content = answer["choices"][0]["message"]["content"]
    assert content == "user:hi;assistant:000000001Oslo;tool:rain000000001;"
