"""`/v1/chat/completions` over real HTTP, with an engine that says what it is told."""

import json
from typing import Any

import pytest

from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.support import InlineBackend, plugins_with, scripted_config, serve

HELLO = ["Hel", "lo ", "there"]
USER = [{"role": "user", "content": "hi"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
THINKING = ["<thi", "nk>\nhm", "m</th", "ink>\n\n", "Hel", "lo"]
CALL = (
    '<think>weather?</think>\n\nLet me see.\n<tool_call>\n{"name": "get_weather", '
    '"arguments": {"city": "Oslo"}}\n</tool_call>\n<tool_call>\n{"name": "get_weather", '
    '"arguments": {"city": "Rome"}}\n</tool_call>'
)


def test_whole_answer(serve_scripted: ServeScripted) -> None:  # LF-13
    # MLC-1 MLC-3 MLC-8 MLC-24 MLC-25 MLC-26 MLC-32 MLC-38 TAB-9 TAB-10 TAB-11 TAB-14 WEB-2 WEB-5
    # WEB-8 WEB-9 WEB-12 WEB-23 WEB-25 WEB-35 VLLM-94 VLLM-96 VLLM-98
    server = serve_scripted(HELLO)
    answer = server.openai.chat.completions.create(model="scripted", messages=USER)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "scripted"
    assert len(answer.choices) == 1
    choice = answer.choices[0]
    assert choice.index == 0
    assert choice.message.role == "assistant"
    assert choice.message.content == "Hello there"
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert answer.usage
    prompt = "<user>hi\n<assistant>"
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len("Hello there") + 1
    assert answer.usage.total_tokens == len(prompt) + len("Hello there") + 1


def test_stream(serve_scripted: ServeScripted) -> None:  # LF-14 LF-15 LF-16 LF-26
    # MLC-10 MLC-12 MLC-13 MLC-14 MLC-15 MLC-30 TAB-18 TAB-21 TAB-22 TAB-23 TAB-25 WEB-14 WEB-15
    # WEB-16 WEB-17 WEB-18 WEB-19 WEB-20 WEB-36 WEB-38 VLLM-39 VLLM-40 VLLM-70 VLLM-76
    server = serve_scripted(HELLO)
    body = {"messages": USER, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = list(response.iter_lines())
    assert lines[1::2] == [""] * (len(lines) // 2)
    assert lines[-2] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2:2]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "finish_reason": None,
    }
    assert all(set(choice["delta"]) == {"content"} for choice in choices[1:-1])
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    assert "".join(choice["delta"]["content"] for choice in choices[1:-1]) == "Hello there"
    assert choices[-1] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert not any("usage" in chunk for chunk in chunks)


def test_stream_usage(serve_scripted: ServeScripted) -> None:
    # MLC-29 TAB-28 TAB-77 WEB-21 WEB-22 VLLM-73 VLLM-75
    server = serve_scripted(HELLO)
    chunks = list(
        server.openai.chat.completions.create(
            model="scripted",
            messages=USER,
            stream=True,
            n=3,
            stream_options={"include_usage": True},
        )
    )
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage
    assert usage.prompt_tokens == len("<user>hi\n<assistant>")
    assert usage.completion_tokens == 3 * (len("Hello there") + 1)


def test_n_choices(serve_scripted: ServeScripted) -> None:
    # MLC-28 TAB-79 TAB-82 TAB-83 TAB-88 VLLM-41 LF-25
    server = serve_scripted(lambda prompt, index: ["I ", "am ", str(index)])
    create = server.openai.chat.completions.create
    whole = create(model="scripted", messages=USER, n=3)
    assert [choice.message.content for choice in whole.choices] == ["I am 0", "I am 1", "I am 2"]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = [""] * 3
    order: list[int] = []
    for chunk in create(model="scripted", messages=USER, n=3, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        order.append(choice.index)
    assert texts == ["I am 0", "I am 1", "I am 2"]
    assert order[:3] == [0, 1, 2]
    assert order != sorted(order)


def test_reasoning(serve_scripted: ServeScripted) -> None:
    # TAB-19 VLLM-62 VLLM-85 VLLM-86
    server = serve_scripted(THINKING, reasoning="think")
    create = server.openai.chat.completions.create
    message: Any = create(model="scripted", messages=USER).choices[0].message
    assert message.content == "Hello"
    assert message.reasoning_content == "hmm"
    deltas: list[Any] = [
        chunk.choices[0].delta for chunk in create(model="scripted", messages=USER, stream=True)
    ]
    assert "".join(delta.content or "" for delta in deltas) == "Hello"
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == "hmm"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_tool_calls(serve_scripted: ServeScripted, size: int) -> None:
    # MLC-34 MLC-35 TAB-51 TAB-55 TAB-57 VLLM-66 VLLM-68 VLLM-91
    pieces = [CALL[at : at + size] for at in range(0, len(CALL), size)]
    server = serve_scripted(pieces, reasoning="think", tools="hermes")
    create = server.openai.chat.completions.create
    choice = create(model="scripted", messages=USER, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see.\n"
    calls: Any = choice.message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [
        {"city": "Oslo"},
        {"city": "Rome"},
    ]
    assert len({call.id for call in calls}) == 2

    with server.openai.chat.completions.stream(
        model="scripted", messages=USER, tools=TOOLS
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.content == choice.message.content
    streamed: Any = final.message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in streamed] == [
        (c.function.name, c.function.arguments) for c in calls
    ]


def test_tool_call_deltas() -> None:
    """Name and id once, arguments as they form, an index for every call."""
    plugins = plugins_with(scripted=lambda settings: InlineBackend(ScriptedEngine(list(CALL))))
    with serve(scripted_config(reasoning="think", tools="hermes"), plugins) as server:
        stream = server.openai.chat.completions.create(
            model="scripted", messages=USER, tools=TOOLS, stream=True
        )
        pieces: Any = [c for chunk in stream for c in chunk.choices[0].delta.tool_calls or []]
    for index in (0, 1):
        first, *rest = [piece for piece in pieces if piece.index == index]
        assert (first.function.name, first.type) == ("get_weather", "function")
        assert first.id.startswith("call_")
        assert len(rest) > 5
        assert all(piece.function.name is None and piece.id is None for piece in rest)


def test_tools_are_off_without_tools_or_with_choice_none(serve_scripted: ServeScripted) -> None:
    # TAB-53 VLLM-90
    server = serve_scripted([CALL], reasoning="think", tools="hermes")
    create = server.openai.chat.completions.create
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = create(model="scripted", messages=USER, **options).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.message.tool_calls is None
        assert choice.message.content == CALL.partition("</think>\n\n")[2]


def test_tool_choice_none_hides_the_tools(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(lambda prompt, index: ["tools" if "get_weather" in prompt else "none"])
    create = server.openai.chat.completions.create
    answer = create(model="scripted", messages=USER, tools=TOOLS)
    assert answer.choices[0].message.content == "tools"
    answer = create(model="scripted", messages=USER, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.content == "none"


def test_text_that_is_no_call_stays_content(serve_scripted: ServeScripted) -> None:
    engine = {"constraints": False}
    said = ["<tool_call>", "what?", "</tool_call>"]
    server = serve_scripted(said, tools="hermes", engine=engine)
    choice = server.openai.chat.completions.create(
        model="scripted", messages=USER, tools=TOOLS
    ).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == "<tool_call>what?</tool_call>"
    assert choice.message.tool_calls is None


def test_history_reaches_the_template(serve_scripted: ServeScripted) -> None:
    # TAB-31 TAB-34 TAB-35 TAB-36 TAB-37 MLC-36
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}"
        "{% if c.function.arguments is mapping %}{{ c.function.arguments.city }}"
        "{% else %}{{ c.function.arguments }}{% endif %}{% endfor %};{% endfor %}"
    )
    server = serve_scripted(
        lambda prompt, index: [prompt], engine={"chat_template": template}, tools="none"
    )
    call = {"id": "1", "type": "function"}
    messages: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {**call, "function": {"name": "f", "arguments": '{"city": "Oslo"}'}},
                {**call, "function": {"name": "f", "arguments": "broken {"}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "21"},
    ]
    answer = server.openai.chat.completions.create(model="scripted", messages=messages)
    assert answer.choices[0].message.content == (
        "system:be brief;user:ab;assistant:Oslobroken {;tool:21;"
    )


def test_arguments_as_an_object_are_written_back_as_text(serve_scripted: ServeScripted) -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ ('' + c.function.arguments) if c.function.arguments is string else '' }}"
        "{% endfor %}{% endfor %}"
    )
    server = serve_scripted(
        lambda prompt, index: [prompt], engine={"chat_template": template}, tools="none"
    )
    function = {"name": "f", "arguments": {"city": "Åre", "days": 2}}
    called = {"role": "assistant", "tool_calls": [{"function": function}]}
    answer = server.http.post("/v1/chat/completions", json={"messages": [*USER, called]}).json()
    assert answer["choices"][0]["message"]["content"] == '{"city": "Åre", "days": 2}'


def test_stop_strings(serve_scripted: ServeScripted) -> None:
    # TAB-12 VLLM-69
    server = serve_scripted(HELLO)
    create = server.openai.chat.completions.create
    choice: Any = create(model="scripted", messages=USER, stop=["o th"]).choices[0]
    assert choice.message.content == "Hell"
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "o th")
    chunks: list[Any] = list(create(model="scripted", messages=USER, stop="o th", stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hell"
    assert chunks[-1].choices[0].stop_reason == "o th"


def test_length(serve_scripted: ServeScripted) -> None:
    # WEB-37
    server = serve_scripted(HELLO)
    answer = server.openai.chat.completions.create(
        model="scripted", messages=USER, max_completion_tokens=4
    )
    assert answer.choices[0].message.content == "Hell"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert answer.usage.completion_tokens == 4


def test_logprobs(serve_scripted: ServeScripted) -> None:
    # MLC-18 TAB-13 TAB-20 WEB-13 VLLM-48 VLLM-100 VLLM-102 VLLM-103
    server = serve_scripted(["Hé", "!"])
    create = server.openai.chat.completions.create
    options: Any = {"model": "scripted", "messages": USER, "logprobs": True, "top_logprobs": 2}
    logprobs = create(**options).choices[0].logprobs
    assert logprobs
    assert logprobs.content
    assert [entry.token for entry in logprobs.content] == ["H", "é", "!"]
    assert logprobs.content[1].bytes == list("é".encode())
    assert logprobs.content[1].top_logprobs[0].token == "é"
    streamed = [
        entry.token
        for chunk in create(**options, stream=True)
        for entry in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or []
    ]
    assert streamed == ["H", "é", "!"]
    without = create(model="scripted", messages=USER, logprobs=True).choices[0].logprobs
    assert without
    assert without.content
    assert without.content[0].top_logprobs == []


def test_text_is_not_escaped(serve_scripted: ServeScripted) -> None:
    # TAB-24
    server = serve_scripted(["日本"])
    body = {"messages": USER, "stream": True}
    assert "日本".encode() in server.http.post("/v1/chat/completions", json=body).content


def test_the_same_without_v1_and_without_model(serve_scripted: ServeScripted) -> None:
    # WEB-39 MLC-33
    server = serve_scripted(HELLO)
    answer = server.http.post("/chat/completions", json={"messages": USER}).json()
    assert answer["model"] == "scripted"
    assert answer["choices"][0]["message"]["content"] == "Hello there"


def test_request_id(serve_scripted: ServeScripted) -> None:
    # VLLM-27 MLC-2 MLC-9
    server = serve_scripted(HELLO)
    response = server.http.post(
        "/v1/chat/completions", json={"messages": USER}, headers={"X-Request-Id": "mine"}
    )
    assert response.json()["id"] == "chatcmpl-mine"
    assert response.headers["x-request-id"] == "mine"


def test_template_kwargs(serve_scripted: ServeScripted) -> None:
    # TAB-39 VLLM-22
    server = serve_scripted(lambda prompt, index: [prompt], engine={"chat_template": "{{ mood }}!"})
    answer = server.openai.chat.completions.create(
        model="scripted",
        messages=USER,  # type: ignore[arg-type]
        extra_body={"chat_template_kwargs": {"mood": "fine"}},
    )
    assert answer.choices[0].message.content == "fine!"


def test_generation_can_start_inside_reasoning(serve_scripted: ServeScripted) -> None:
    # TAB-1 TAB-5
    server = serve_scripted(
        ["hmm</think>", "Hello"], engine={"chat_template": "{{ messages[0].content }}<think>\n"}
    )
    message: Any = (
        server.openai.chat.completions.create(model="scripted", messages=USER).choices[0].message
    )
    assert (message.reasoning_content, message.content) == ("hmm", "Hello")
