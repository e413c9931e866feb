"""Reasoning over real HTTP: formats, switches, budgets, and what usage says of it."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from enginebay import EngineBackend, GenerationRequest
from enginebay.testing import ScriptedEngine
from enginebay_parsers import REASONING
from tests.conftest import ServeScripted
from tests.support import InlineBackend, Server, plugins_with, scripted_config, serve

USER: Any = [{"role": "user", "content": "hi"}]
THOUGHT = "<think>one two three</think>\n\nHello"
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
# Shows its variables, and begins reasoning when it is told to.
TEMPLATE = (
    "{% set shown = [reasoning_effort | default(none), enable_thinking | default(none), "
    "thinking | default(none), style | default(none)] %}{{ shown | tojson }}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
    "{% if add_generation_prompt and enable_thinking %}<think>\n{% endif %}"
)


class Recorder(ScriptedEngine):
    """Remembers what it was asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.requests: list[GenerationRequest] = []

    def add_request(self, request: GenerationRequest) -> None:
        self.requests.append(request)
        super().add_request(request)

    @property
    def prompt(self) -> str:
        return self.detokenize(self.requests[-1].prompt_token_ids)


def ask(server: Server, **body: Any) -> Any:
    """The same request, whole and streamed, which must say the same; the whole answer."""
    body = {"model": "scripted", "messages": USER, **body}
    whole = server.http.post("/v1/chat/completions", json=body)
    assert whole.status_code == 200, whole.text
    answer = whole.json()
    streamed = server.http.post(
        "/v1/chat/completions",
        json={**body, "stream": True, "stream_options": {"include_usage": True}},
    )
    events = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    message = answer["choices"][0]["message"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert not any(value is None for delta in deltas for value in delta.values())
    for name in ("content", "reasoning_content", "reasoning"):
        assert "".join(delta.get(name, "") for delta in deltas) == (message.get(name) or "")
    assert usage(chunks[-1]) == usage(answer)
    return answer


def usage(body: Any) -> Any:
    return {name: value for name, value in body["usage"].items() if name != "extra"}


def message_of(answer: Any) -> dict[str, Any]:
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


FORMATS = {
    "think": "<think>hm</think>\n\nHello",
    "mistral": "[THINK]hm[/THINK]\n\nHello",
    "cohere": ("<|START_THINKING|>hm<|END_THINKING|>\n\n<|START_RESPONSE|>Hello<|END_RESPONSE|>"),
    "seed": "<seed:think>hm</seed:think>\n\nHello",
    "hunyuan": "<think:opensource>hm</think:opensource>\n\nHello",
    "gemma": "<|channel>thought\nhm<channel|>\n\nHello",
    "solar": "<|think|>hm<|end|><|begin|>assistant<|content|>\n\nHello<|end|>",
    "apertus": "<|inner_prefix|>hm<|inner_suffix|>\n\nHello",
    "harmony": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>"
        "\n\nHello<|return|>"
    ),
    "muse": " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>\n\nHello<|eot|>",
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_formats(serve_scripted: ServeScripted, name: str, size: int) -> None:
    # TAB-59, TAB-60, TAB-61, TAB-62, TAB-68
    text = FORMATS[name]
    server = serve_scripted([text[i : i + size] for i in range(0, len(text), size)], reasoning=name)
    message = message_of(ask(server))
    assert message["reasoning_content"] == "hm"
    gap = REASONING[name].margins().gap  # ANS-2: what a template writes there is left out
    assert message["content"] == "\n\nHello"[len(gap) :]


def test_without_a_format_tags_are_text(serve_scripted: ServeScripted) -> None:
    # TAB-2, TAB-61, TAB-64, VLLM-63
    server = serve_scripted([THOUGHT], reasoning="none")
    answer = ask(server)
    assert message_of(answer) == {"role": "assistant", "content": THOUGHT}
    assert "completion_tokens_details" not in answer["usage"]


def test_only_thought(serve_scripted: ServeScripted) -> None:
    # TAB-10, TAB-68, TAB-75
    server = serve_scripted(["<think>hm</think>\n\n", "  \n"], reasoning="think")
    message = message_of(ask(server))
    assert message == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_thought_that_max_tokens_cuts_off(serve_scripted: ServeScripted) -> None:
    # Complaint 6
    server = serve_scripted(list(THOUGHT), reasoning="think")
    answer = ask(server, max_tokens=12)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert message_of(answer)["content"] is None
    assert message_of(answer)["reasoning_content"] == "one t"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 12}


def test_thought_that_the_prompt_begins(serve_scripted: ServeScripted) -> None:
    # TAB-1, TAB-4, TAB-5
    server = serve_scripted(
        ["hm</think>", "Hello"], reasoning="think", engine={"chat_template": TEMPLATE}
    )
    assert message_of(ask(server, enable_thinking=True))["reasoning_content"] == "hm"
    plain = message_of(ask(server, enable_thinking=False))
    assert plain == {"role": "assistant", "content": "hm</think>Hello"}


# As Apriel's: earlier reasoning stands there without what begins it.
BARE = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.reasoning_content %}{{ message.reasoning_content }}\n[BEGIN FINAL RESPONSE]\n"
    "{% endif %}{{ message.content or '' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>Here are my reasoning steps:\n{% endif %}"
)
STEPS = "Here are my reasoning steps:\nFirst, I say Hello\nto him" + " and so on" * 40


@pytest.mark.parametrize(
    ("start", "body", "said", "reasoning", "content"),
    [
        ("auto", {}, "It is.", None, "It is."),
        ("always", {}, "It is.", "It is.", ""),
        ("always", {}, "Why.</think>It is.", "Why.", "It is."),
        ("always", {}, "<think>Why.</think>It is.", "Why.", "It is."),
        ("always", {"enable_thinking": True}, "Why.</think>It is.", "Why.", "It is."),
        ("always", {"response_prefix": "Well"}, "Why.</think>It is.", "Why.", "It is."),
        ("always", {"response_prefix": "</think>"}, "It is.", None, "It is."),
        ("never", {"enable_thinking": True}, "It is.", None, "It is."),
        ("never", {}, "<think>Why.</think>It is.", "Why.", "It is."),
        ("auto", {"enable_thinking": True}, "Why.</think>It is.", "Why.", "It is."),
    ],
)
def test_where_an_answer_begins_by_the_config(
    serve_scripted: ServeScripted,
    start: str,
    body: dict[str, Any],
    said: str,
    reasoning: str | None,
    content: str,
) -> None:
    # FIX-16
    engine = {"chat_template": TEMPLATE}
    server = serve_scripted([*said], engine=engine, reasoning="think", reasoning_start=start)
    message = message_of(ask(server, **body))
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)


def test_a_continued_answer_begins_as_its_text_ends(serve_scripted: ServeScripted) -> None:
    """`reasoning_start` is about answers that begin anew."""
    # FIX-16
    for start, begun, inside in (
        ("always", "It", False),
        ("never", "<think>Wh", True),
        ("always", "<think>Why.</think>It", False),
    ):
        server = serve_scripted(
            ["y"], name=f"{start}{inside}{len(begun)}", reasoning="think", reasoning_start=start
        )
        messages = [*USER, {"role": "assistant", "content": begun}]
        body = {"messages": messages, "continue_final_message": True}
        body["add_generation_prompt"] = False
        answer = server.http.post("/v1/chat/completions/explain", json=body).json()
        assert answer["starts_in_reasoning"] is inside


@pytest.mark.parametrize(
    "body",
    [
        {
            "messages": [*USER, {"role": "assistant", "content": "", "reasoning_content": "So"}],
            "continue_final_message": "reasoning_content",
        },
        {
            "messages": [*USER, {"role": "assistant", "content": STEPS}],
            "continue_final_message": True,
        },
        {"response_prefix": "First, I say Hello\nto him"},
        {},
    ],
)
def test_reasoning_that_a_request_continues(
    serve_scripted: ServeScripted, body: dict[str, Any]
) -> None:
    # TAB-1, TAB-5, TAB-8
    server = serve_scripted(
        [" hm\n[BEGIN FINAL", " RESPONSE]\nHello"],
        reasoning="apriel",
        engine={"chat_template": BARE},
    )
    message = message_of(ask(server, **body))
    assert message["reasoning_content"] == " hm"
    assert message["content"] == "Hello"


@pytest.mark.parametrize("said", ["Yes, ", "I think in [BEGIN FINAL RESPONSE]"])
def test_an_answer_that_a_request_continues(serve_scripted: ServeScripted, said: str) -> None:
    # TAB-3
    server = serve_scripted(["Hello"], reasoning="apriel", engine={"chat_template": BARE})
    messages = [*USER, {"role": "assistant", "content": said}]
    message = message_of(ask(server, messages=messages, continue_final_message=True))
    assert message == {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("functionary-v3.2", "all\nHello"),
        ("command-r", "<|CHATBOT_TOKEN|>Hello<|END_OF_TURN_TOKEN|>"),
    ],
)
def test_what_a_format_writes_around_answers(
    serve_scripted: ServeScripted, name: str, text: str, size: int
) -> None:
    # TAB-53, TAB-63
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    server = serve_scripted(pieces, tools=name, reasoning="none")
    for tools in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}):
        assert message_of(ask(server, **tools)) == {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_calls_in_thought(serve_scripted: ServeScripted, size: int) -> None:
    # TAB-69, TAB-70, VLLM-60
    text = f"<think>a{CALL}b</think>c"
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    server = serve_scripted(pieces, reasoning="think", tools="hermes")
    message = message_of(ask(server, tools=TOOLS))
    assert (message["reasoning_content"], message["content"]) == ("ab", "c")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}

    off = serve_scripted(pieces, reasoning="think", tools="hermes", tools_in_reasoning=False)
    answer = ask(off, tools=TOOLS)
    assert message_of(answer)["reasoning_content"] == f"a{CALL}b"
    assert "tool_calls" not in message_of(answer)
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("in_thought", [True, False])
def test_calls_behind_thought(serve_scripted: ServeScripted, in_thought: bool) -> None:
    # VLLM-58, VLLM-59, VLLM-85
    quoting = CALL.replace("1", '"</think><think>"')
    server = serve_scripted(
        [f"<think>a</think>So: {quoting}"],
        reasoning="think",
        tools="hermes",
        tools_in_reasoning=in_thought,
    )
    message = message_of(ask(server, tools=TOOLS))
    assert (message["reasoning_content"], message["content"]) == ("a", "So: ")
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert arguments == {"a": "</think><think>"}


@pytest.mark.parametrize("size", [1, 9, 1000])
def test_harmony_calls(serve_scripted: ServeScripted, size: int) -> None:
    # TAB-57, VLLM-58, VLLM-68
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "I'll look.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
        '<|message|>{"a": 1}'
    )
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    server = serve_scripted(pieces, reasoning="harmony", tools="harmony")
    answer = ask(server, tools=TOOLS)
    message = message_of(answer)
    assert (message["reasoning_content"], message["content"]) == ("hm", "I'll look.")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


USAGE = [
    (THOUGHT, len("<think>one two three</think>")),
    ("Hello", 0),
    ("a<think>b</think>c<think>d</think>e", len("<think>b</think>")),
    (f"<think>a{CALL}b</think>c", len("<think>ab</think>")),
    ("<think>cut o", len("<think>cut o")),
]


@pytest.mark.parametrize(("text", "tokens"), USAGE)
@pytest.mark.parametrize("merged", [True, False])
def test_reasoning_tokens(text: str, tokens: int, merged: bool) -> None:
    """Exact, though the tokens come in as few deltas as a slow reader makes them."""

    def create(settings: Any) -> Any:
        if merged:
            return EngineBackend(lambda: ScriptedEngine(list(text)))
        return InlineBackend(ScriptedEngine(list(text)))

    config = scripted_config(reasoning="think", tools="hermes")
    with serve(config, plugins_with(scripted=create)) as server:
        answer = ask(server, tools=TOOLS)
        assert answer["usage"]["completion_tokens"] == len(text) + 1
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": tokens}
        answer = server.openai.chat.completions.create(
            model="scripted", messages=USER, tools=TOOLS, n=3
        )
        assert answer.usage
        assert answer.usage.completion_tokens_details
        assert answer.usage.completion_tokens_details.reasoning_tokens == 3 * tokens


FIELDS = [
    ("reasoning_content", {"content": "Hello", "reasoning_content": "one two three"}),
    ("reasoning", {"content": "Hello", "reasoning": "one two three"}),
    (
        "both",
        {
            "content": "Hello",
            "reasoning": "one two three",
            "reasoning_content": "one two three",
        },
    ),
    ("content", {"content": THOUGHT}),
]


@pytest.mark.parametrize(("field", "message"), FIELDS)
def test_what_reasoning_is_called(
    serve_scripted: ServeScripted, field: str, message: dict[str, str]
) -> None:
    # Complaint 7
    server = serve_scripted(list(THOUGHT), reasoning="think", reasoning_field=field)
    answer = ask(server)
    assert message_of(answer) == {"role": "assistant", **message}
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 28


def test_requests_choose_where_reasoning_goes(serve_scripted: ServeScripted) -> None:
    # Complaint 7
    server = serve_scripted(list(THOUGHT), reasoning="think")
    assert message_of(ask(server, separate_reasoning=False))["content"] == THOUGHT
    left_out = message_of(ask(server, include_reasoning=False))
    assert left_out == {"role": "assistant", "content": "Hello"}
    merging = serve_scripted(list(THOUGHT), reasoning="think", reasoning_field="content")
    separate = message_of(ask(merging, separate_reasoning=True))
    assert separate["reasoning_content"] == "one two three"


MERGED: list[tuple[str, str, dict[str, Any]]] = [
    # Thought that the prompt has begun gets the tag that clients look for, of whatever format.
    ("[THINK]a[/THINK]b", "<think>a</think>b", {"reasoning": "mistral"}),
    (FORMATS["harmony"], "<think>hm</think>\n\nHello", {"reasoning": "harmony"}),
    ("<think>a</think>b<think>c</think>d", "<think>a</think>b<think>c</think>d", {}),
    ("<think>cut o", "<think>cut o", {}),
    ("<think>a</think>\n\n", "<think>a</think>", {}),
    (f"<think>a</think>{CALL}", "<think>a</think>", {}),
    (f"<think>a{CALL}b</think>c", "<think>a</think><think>b</think>c", {}),
]


@pytest.mark.parametrize(("text", "content", "model"), MERGED)
def test_reasoning_in_the_content(
    serve_scripted: ServeScripted, text: str, content: str, model: dict[str, Any]
) -> None:
    model = {"reasoning": "think", "tools": "hermes", "reasoning_field": "content", **model}
    for pieces in ([text], list(text)):
        message = message_of(ask(serve_scripted(pieces, **model), tools=TOOLS))
        assert message["content"] == content


VARIABLES: list[tuple[dict[str, Any], Sequence[object]]] = [
    ({}, [None, None, None]),
    ({"reasoning_effort": "high"}, ["high", True, True]),
    ({"reasoning_effort": "minimal"}, ["minimal", None, None]),
    ({"reasoning_effort": "none"}, ["none", False, False]),
    ({"enable_thinking": False}, [None, False, False]),
    ({"thinking": True}, [None, True, True]),
    ({"thinking": {"type": "disabled"}}, [None, False, False]),
    ({"thinking": {"type": "enabled", "budget_tokens": 10}}, [None, True, True]),
    ({"thinking": {"type": "auto"}}, [None, None, None]),
    ({"reasoning_effort": "low", "enable_thinking": False}, ["low", False, False]),
    (
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "max"}},
        ["max", True, True],
    ),
]


@pytest.mark.parametrize(("body", "variables"), VARIABLES)
def test_what_the_template_is_told(body: dict[str, Any], variables: Sequence[object]) -> None:
    engine = Recorder(["Hello"], chat_template=TEMPLATE)
    plugins = plugins_with(scripted=lambda settings: InlineBackend(engine))
    with serve(scripted_config(reasoning="think"), plugins) as server:
        ask(server, **body)
    assert engine.prompt.startswith(json.dumps([*variables, None]))


def test_template_variables_of_the_config() -> None:
    # TAB-39, TAB-42
    engine = Recorder(["Hello"], chat_template=TEMPLATE)
    plugins = plugins_with(scripted=lambda settings: InlineBackend(engine))
    config = scripted_config(
        reasoning="think",
        template_vars={"style": "short", "reasoning_effort": "low"},
        force_template_vars={"enable_thinking": True},
    )
    with serve(config, plugins) as server:
        ask(server, chat_template_kwargs={"style": "long", "enable_thinking": False})
        assert engine.prompt.startswith('["low", true, null, "long"]')
        ask(server, reasoning_effort="none", template_vars={})
        assert engine.prompt.startswith('["none", true, false, "short"]')


@pytest.mark.parametrize(
    "name",
    [
        "reasoning_budget",
        "reasoning_budget_tokens",
        "thinking_budget",
        "thinking_token_budget",
        "thinking_budget_tokens",
    ],
)
def test_budget_of_a_request(serve_scripted: ServeScripted, name: str) -> None:
    server = serve_scripted(list(THOUGHT), reasoning="think")
    for tokens, thought in ((7, "one two"), (100, "one two three"), (-1, "one two three")):
        answer = ask(server, **{name: tokens})
        assert message_of(answer)["reasoning_content"] == thought
        assert message_of(answer)["content"] == "Hello"
        spent = len(f"<think>{thought}</think>")
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": spent}
    answer = ask(server, **{name: 0})
    assert message_of(answer) == {"role": "assistant", "content": "Hello"}


def test_budget_of_thinking_as_an_object(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(list(THOUGHT), reasoning="think")
    answer = ask(server, thinking={"type": "enabled", "budget_tokens": 3})
    assert message_of(answer)["reasoning_content"] == "one"


def test_budget_of_the_config(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(
        list(THOUGHT),
        reasoning="think",
        reasoning_budget=3,
        reasoning_budget_message=" That will do.",
    )
    assert message_of(ask(server))["reasoning_content"] == "one That will do."
    assert message_of(ask(server, thinking_budget=7))["reasoning_content"].startswith("one two T")
    own = message_of(ask(server, reasoning_budget_message=" Stop, 世界!"))
    assert own["reasoning_content"] == "one Stop, 世界!"
    assert message_of(ask(server, thinking_budget=-1))["reasoning_content"] == "one two three"


def test_budget_where_the_prompt_begins_thought(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(
        list("one two</think>Hello"), reasoning="think", engine={"chat_template": TEMPLATE}
    )
    answer = ask(server, enable_thinking=True, reasoning_budget=3)
    assert message_of(answer)["reasoning_content"] == "one"
    answer = ask(server, enable_thinking=True, reasoning_budget=0)
    assert message_of(answer) == {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize(("tools", "closing"), [(None, "final<|message|>"), (TOOLS, "commentary")])
def test_budget_of_channels(tools: Any, closing: str) -> None:
    engine = Recorder(list(FORMATS["harmony"]))
    plugins = plugins_with(scripted=lambda settings: InlineBackend(engine))
    with serve(scripted_config(reasoning="harmony", tools="harmony"), plugins) as server:
        answer = ask(server, reasoning_budget=1, **({"tools": tools} if tools else {}))
    assert message_of(answer)["reasoning_content"] == "h"
    budget = engine.requests[-1].sampling.reasoning_budget
    assert budget
    text = engine.detokenize(budget.close_token_ids)
    assert text == f"<|end|><|start|>assistant<|channel|>{closing}"


def test_a_budget_that_cannot_be_kept_is_named(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["Hello"], reasoning="none")
    body = {"model": "scripted", "messages": USER, "reasoning_budget": 5}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.headers["x-unsupported-params"] == "reasoning_budget"
    body["reasoning_budget"] = -1
    answer = server.http.post("/v1/chat/completions", json=body)
    assert "x-unsupported-params" not in answer.headers

    strict = serve_scripted(["Hello"], reasoning="none", server={"strict_params": True})
    body["reasoning_budget"] = 5
    answer = strict.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_budget")


def test_what_a_template_does_not_read_is_named(serve_scripted: ServeScripted) -> None:
    reads = serve_scripted(["Hello"], reasoning="think", engine={"chat_template": TEMPLATE})
    ignores = serve_scripted(["Hello"], reasoning="think")
    body = {"messages": USER, "reasoning_effort": "low", "enable_thinking": True}
    for server, names in ((reads, None), (ignores, "reasoning_effort, enable_thinking")):
        answer = server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert answer.headers.get("x-unsupported-params") == names


BAD: list[tuple[dict[str, Any], str]] = [
    ({"reasoning_budget": "many"}, "reasoning_budget"),
    ({"reasoning_budget": 1.5}, "reasoning_budget"),
    ({"reasoning_budget_message": 1}, "reasoning_budget_message"),
    ({"reasoning_effort": ""}, "reasoning_effort"),
    ({"reasoning_effort": 3}, "reasoning_effort"),
    ({"enable_thinking": "perhaps"}, "enable_thinking"),
    ({"thinking": {"type": "sometimes"}}, "thinking"),
    ({"thinking": []}, "thinking"),
    ({"separate_reasoning": 7}, "separate_reasoning"),
]


@pytest.mark.parametrize(("body", "param"), BAD)
def test_bad_values(serve_scripted: ServeScripted, body: dict[str, Any], param: str) -> None:
    server = serve_scripted(["Hello"], reasoning="think")
    text = json.dumps({"messages": USER, **body})
    answer = server.http.post("/v1/chat/completions", content=text)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
