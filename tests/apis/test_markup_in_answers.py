"""In every API an answer is the text that the model means, without the markup around it."""

import json
from typing import Any

import pytest

from enginebay_parsers import TOOLS
from tests.api.test_reasoning import Recorder
from tests.apis.ollama_support import WEATHER, user
from tests.apis.test_stops_in_reasoning import APIS, chat
from tests.conftest import ServeScripted
from tests.support import engine_backend, plugins_with, scripted_config, serve

MESSAGES = user("So?")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
PATTERN = "```python\nRE = re.compile(r'<think>(.*?)</think>')\n```"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("said", "thought", "answer"),
    [
        (
            "<think>\n  plan\n</think>\n\n    x = 1\n\n\ny\n",
            "  plan",
            "    x = 1\n\n\ny\n",
        ),  # ANS-2
        ("<think>\n\na\n\n</think>\n\n\n\tx", "\na\n", "\n\tx"),
        ("<think>a</think>\n x", "a", " x"),
        (f"<think>\nplan\n</think>\n\n{PATTERN}", "plan", PATTERN),  # ANS-3
        (f"<think>\n{PATTERN}\nor `</think>`\n</think>\n\nA", f"{PATTERN}\nor `</think>`", "A"),
        ("<think>\na\n</think>\n\nThe </think> ends, <think> begins.", "a", None),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_reasoning_and_answer(
    serve_scripted: ServeScripted,
    api: Any,
    said: str,
    thought: str,
    answer: str | None,
    stream: bool,
    size: int,
) -> None:
    answer = answer or said.partition("</think>\n\n")[2]
    pieces = [said[n : n + size] for n in range(0, len(said), size)]
    server = serve_scripted(pieces, reasoning="think")
    assert api(server, [], stream=stream)[:2] == (answer, thought)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_can_have_the_whitespace(serve_scripted: ServeScripted, stream: bool) -> None:
    """ANS-2"""
    server = serve_scripted(list("<think>\na\n</think>\n\nb"), reasoning="think")
    told = chat(server, [], stream=stream, trim_reasoning=False)
    assert told[:2] == ("\n\nb", "\na\n")
    merged = chat(server, [], stream=stream, separate_reasoning=False)
    assert merged[0] == "<think>\na\n</think>\n\nb"


def test_the_tokens_of_an_answer_are_its_text(serve_scripted: ServeScripted) -> None:
    """ANS-2"""
    said = "<think>\na\n</think>\n\nb\n c"
    server = serve_scripted(list(said), reasoning="think")
    body = {"messages": MESSAGES, "logprobs": True}
    answer = server.http.post("/v1/chat/completions", json=body).json()
    [choice] = answer["choices"]
    tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert "".join(tokens) == choice["message"]["content"] == "b\n c"
    assert answer["usage"]["completion_tokens"] == len(said) + 1
    details = answer["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == len("<think>\na\n</think>")


def test_an_answer_in_the_history_is_what_was_generated() -> None:
    """ANS-2: so the next prompt begins with the tokens that are cached."""
    template = (
        "{% for m in messages %}[{{ m.role }}]"
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    said = "<think>\n  a\n\nb\n</think>\n\n  def f():\n    `x`"
    engine = Recorder(list(said), chat_template=template)
    config = scripted_config(reasoning="think")
    with serve(config, plugins_with(scripted=engine_backend(lambda: engine))) as server:
        body = {"messages": MESSAGES}
        answer = server.http.post("/v1/chat/completions", json=body).json()
        message = answer["choices"][0]["message"]
        body = {"messages": [*MESSAGES, message, *user("And?")]}
        server.http.post("/v1/chat/completions", json=body)
    first, second = (engine.detokenize(each.prompt_token_ids) for each in engine.requests)
    assert second.startswith(first + said)


@pytest.mark.parametrize(
    "said",
    [
        f"Write this: `{CALL}` and go on.",
        f"Write this:\n\n```xml\n{CALL}\n```\nand go on.",
        f"1. Write this:\n\n   ~~~~\n   {CALL}\n   ~~~\n   ~~~~\nand go on.",
        f"Write ``{CALL}`` and `<tool_call>`.",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_call_in_code_is_text(serve_scripted: ServeScripted, said: str, size: int) -> None:
    """ANS-4"""
    pieces = [said[n : n + size] for n in range(0, len(said), size)]
    server = serve_scripted(pieces, tools="hermes", engine={"constraints": False})
    for stream in (False, True):
        told = chat(server, [], stream=stream, tools=[WEATHER])
        assert told[0] == said
    answer = server.http.post(
        "/v1/chat/completions", json={"messages": MESSAGES, "tools": [WEATHER]}
    ).json()
    [choice] = answer["choices"]
    assert (choice["message"].get("tool_calls"), choice["finish_reason"]) == (None, "stop")


@pytest.mark.parametrize("tools", ["hermes", "qwen3-coder", "minimax-m3", "olmo3", "kimi-k2"])
def test_calls_that_max_tokens_cuts(serve_scripted: ServeScripted, tools: str) -> None:
    """ANS-9: after a call no part of its end tag is content."""
    text = TOOLS[tools].example
    server = serve_scripted(list(text), tools=tools, engine={"constraints": False})
    body: dict[str, Any] = {"messages": MESSAGES, "tools": [WEATHER]}
    shown = set()
    for most in range(1, len(text) + 1):
        answer = server.http.post("/v1/chat/completions", json={**body, "max_tokens": most}).json()
        message = answer["choices"][0]["message"]
        content = message["content"] or ""
        if message.get("tool_calls"):
            shown.add(content)
            assert "</" not in content
            assert "_end" not in content
        else:
            assert content == text[:most]
    assert "" in shown


@pytest.mark.parametrize("tools", ["hermes", "qwen3-coder"])
@pytest.mark.parametrize("thought", ["", "<think>\nhm\n</think>\n\n"])
@pytest.mark.parametrize("choice", ["required", "named"])
def test_forced_calls_that_max_tokens_cuts(
    serve_scripted: ServeScripted, tools: str, thought: str, choice: str
) -> None:
    """ANS-9: the beginning of a call is no content either."""
    call = TOOLS[tools].example
    end = call.index("</function>\n</tool_call>") if tools == "qwen3-coder" else call.index("<", 9)
    text = thought + call[:end]
    server = serve_scripted(list(text), tools=tools, reasoning="think")
    named = {"type": "function", "function": {"name": "get_weather"}}
    body: dict[str, Any] = {
        "messages": MESSAGES,
        "tools": [WEATHER],
        "tool_choice": named if choice == "named" else choice,
    }
    for most in range(1, len(text)):
        answer = server.http.post("/v1/chat/completions", json={**body, "max_tokens": most})
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        assert not message["content"], json.dumps(message)
        assert most > len(thought) or not message.get("tool_calls")
