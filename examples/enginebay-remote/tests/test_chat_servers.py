"""The chat way with servers of other kinds, by what they are documented to send and to take."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from enginebay_remote import create
from enginebay_remote.chat_dialects import CHAT_DIALECTS, ChatDialect
from enginebay_remote.chat_reading import ChatReader, says_something
from enginebay_remote.failures import NONSENSE, NotFoundError
from enginebay_remote.http import Http, read_events
from enginebay_remote.options import Options, Server
from enginebay_remote.servers import server_of
from fake import DONE, Answer, Fake, events, fake
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    Chat,
    ContentDelta,
    Delta,
    EngineDeadError,
    GenerationRequest,
    InvalidRequestError,
    ModelInfo,
    Part,
    QueueFullError,
    ReasoningDelta,
    RefusalDelta,
    SamplingParams,
    ServingError,
    TokenCounts,
    ToolCallDelta,
    UnsupportedParameterError,
)

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}


def event(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """An event with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, **more}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def called(index: int | None, id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    """A piece of a call; what is None is left out."""
    function = {"name": name, "arguments": arguments}
    piece = {"index": index, "id": id, "type": "function", "function": function}
    piece["function"] = {key: value for key, value in function.items() if value is not None}
    return {key: value for key, value in piece.items() if value is not None}


def usage(**more: Any) -> dict[str, Any]:
    """What a server tells of tokens."""
    return {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12, **more}


OPENING = event({"role": "assistant", "content": ""})
STREAMS: dict[str, tuple[bytes, list[Part], str, TokenCounts | None]] = {
    "comments, and an event of several lines": (
        b": ping\n\ndata:\n\nevent: message\n"
        b'data: {"choices":\ndata: [{"delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'
        + DONE,
        [ContentDelta("x")],
        "stop",
        None,
    ),
    "characters cut in two, and halves that stand alone": (
        events(
            event({"content": "\ud83d"}),
            event({"content": "\ude00 \ude00"}),
            event({"tool_calls": [called(0, "1", "get\ud83d", '"\ud83d')]}),
            event({"tool_calls": [called(0, None, None, '\ude00\ud83d"')]}, "stop"),
        ),
        [
            ContentDelta("\U0001f600 \ufffd"),
            ToolCallDelta(0, "get\ufffd", '"\U0001f600\ufffd"', "1"),
        ],
        "stop",
        None,
    ),
    "vLLM": (
        events(
            OPENING,
            event({"reasoning": "Hm", "reasoning_content": "Hm"}),
            event({"reasoning": ".", "reasoning_content": "."}),
            event({"content": "Hel"}),
            event({"content": "lo"}),
            event({"tool_calls": [called(0, "chatcmpl-tool-1", "get", None)]}),
            event({"tool_calls": [called(0, None, None, '{"a"')]}),
            event({"tool_calls": [called(0, None, None, ": 1}")]}),
            event({"tool_calls": [called(1, "chatcmpl-tool-2", "get", "{}")]}),
            event({"content": ""}, "tool_calls", stop_reason=None),
            {"choices": [], "usage": usage(prompt_tokens_details=None)},
        ),
        [
            ReasoningDelta("Hm."),
            ContentDelta("Hello"),
            ToolCallDelta(0, "get", '{"a": 1}', "chatcmpl-tool-1"),
            ToolCallDelta(1, "get", "{}", "chatcmpl-tool-2"),
        ],
        "stop",
        TokenCounts(prompt_tokens=5, completion_tokens=7),
    ),
    "SGLang": (
        events(
            event({"role": "assistant", "content": "", "reasoning_content": None}),
            event({"content": None, "reasoning_content": "Hm.", "tool_calls": None}),
            event({"content": "Hello", "reasoning_content": None}),
            event({"tool_calls": [called(0, "call_1", "get", "")]}),
            event({"tool_calls": [{**called(0, None, None, "{}"), "id": None}]}),
            event({}, "tool_calls", matched_stop=None),
            {"choices": [], "usage": usage(reasoning_tokens=2)},
        ),
        [ReasoningDelta("Hm."), ContentDelta("Hello"), ToolCallDelta(0, "get", "{}", "call_1")],
        "stop",
        TokenCounts(prompt_tokens=5, completion_tokens=7, reasoning_tokens=2),
    ),
    "DeepSeek": (
        b": keep-alive\n\n"
        + events(
            event({"role": "assistant", "content": None, "reasoning_content": ""}),
            event({"content": None, "reasoning_content": "Hm."}),
            event({"content": "Hello", "reasoning_content": None}),
            event({"content": "", "reasoning_content": None}, "length")
            | {
                "usage": usage(
                    prompt_cache_hit_tokens=3,
                    prompt_cache_miss_tokens=2,
                    completion_tokens_details={"reasoning_tokens": 4},
                )
            },
        ),
        [ReasoningDelta("Hm."), ContentDelta("Hello")],
        "length",
        TokenCounts(prompt_tokens=5, completion_tokens=7, cached_tokens=3, reasoning_tokens=4),
    ),
    "OpenRouter": (
        b": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n"
        + events(
            event({"role": "assistant", "content": "", "reasoning": None}),
            event(
                {
                    "content": "",
                    "reasoning": "Hm.",
                    "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}],
                }
            ),
            event({"content": "Hello"}, native_finish_reason=None),
            event({"content": ""}, "stop", native_finish_reason="end_turn"),
            {"choices": [], "usage": usage(cost=0.1, prompt_tokens_details={"cached_tokens": 1})},
        ),
        [ReasoningDelta("Hm."), ContentDelta("Hello")],
        "stop",
        TokenCounts(prompt_tokens=5, completion_tokens=7, cached_tokens=1),
    ),
    "OpenAI": (
        events(
            event({"role": "assistant", "content": None, "refusal": None}),
            event({"refusal": "I "}) | {"usage": None},
            event({"refusal": "won't."}),
            event({}, "content_filter"),
            {
                "choices": [],
                "usage": usage(
                    prompt_tokens_details={"cached_tokens": 2, "audio_tokens": 0},
                    completion_tokens_details={"reasoning_tokens": 0},
                ),
            },
        ),
        [RefusalDelta("I won't.")],
        "content_filter",
        TokenCounts(prompt_tokens=5, completion_tokens=7, cached_tokens=2, reasoning_tokens=0),
    ),
    "Mistral": (
        events(
            event({"role": "assistant", "content": ""}),
            event(
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}
            ),
            event({"content": [{"type": "text", "text": "Hello"}]}),
            event(
                {
                    "tool_calls": [
                        called(0, "a1B2c3D4e", "get", "{}"),
                        called(1, "f5G6h7I8j", "get", '{"a": 1}'),
                    ]
                },
                "tool_calls",
            )
            | {"usage": usage()},
        ),
        [
            ReasoningDelta("Hm."),
            ContentDelta("Hello"),
            ToolCallDelta(0, "get", "{}", "a1B2c3D4e"),
            ToolCallDelta(1, "get", '{"a": 1}', "f5G6h7I8j"),
        ],
        "stop",
        TokenCounts(prompt_tokens=5, completion_tokens=7),
    ),
    "calls without an index, one as an object": (
        events(
            event({"tool_calls": [called(None, "1", "get", {"a": "\u00e6"})]}),
            event({"tool_calls": [called(None, "2", "get", "{")]}),
            event({"tool_calls": [called(None, None, None, "}")]}, "stop"),
        ),
        [ToolCallDelta(0, "get", '{"a": "\u00e6"}', "1"), ToolCallDelta(1, "get", "{}", "2")],
        "stop",
        None,
    ),
    "calls all of index 0, and a name that comes late and again": (
        events(
            event({"tool_calls": [called(0, "1", None, "{")]}),
            event({"tool_calls": [called(0, None, "get", "}")]}),
            event({"tool_calls": [called(0, "1", "get", " ")]}),
            event({"tool_calls": [called(0, "2", "get", "{}")]}, "stop"),
        ),
        [ToolCallDelta(0, "get", "{} ", "1"), ToolCallDelta(1, "get", "{}", "2")],
        "stop",
        None,
    ),
    "the old names": (
        events(
            event({"function_call": {"name": "get", "arguments": ""}}),
            event({"function_call": {"arguments": "{}"}}),
            event({}, "function_call"),
        ),
        [ToolCallDelta(0, "get", "{}")],
        "stop",
        None,
    ),
}


def request(sampling: SamplingParams | None = None, n: int = 1, **chat: Any) -> GenerationRequest:
    """A request for a chat."""
    asked = Chat(**{"messages": (USER,), **chat})
    return GenerationRequest(
        request_id="r",
        prompt_token_ids=(),
        chat=asked,
        n=n,
        sampling=sampling or SamplingParams(),
    )


def joined(deltas: Sequence[Delta]) -> list[Part]:
    """Neighbours of one kind as one part."""
    parts: list[Part] = []
    for part in itertools.chain.from_iterable(delta.parts for delta in deltas):
        last = parts[-1] if parts else None
        if isinstance(part, ToolCallDelta):
            if isinstance(last, ToolCallDelta) and last.index == part.index:
                assert part.name is None
                part = ToolCallDelta(
                    last.index, last.name, last.arguments + part.arguments, last.id
                )
                parts.pop()
        elif isinstance(last, type(part)):
            part = type(part)(last.text + part.text)
            parts.pop()
        parts.append(part)
    return parts


async def read(chunks: Sequence[bytes]) -> list[Delta]:
    """What a reader makes of these bytes."""

    async def arriving() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    reader = ChatReader(request())
    async with aclosing(read_events(arriving())) as found:
        deltas = [delta async for each in found for delta in reader.deltas(each)]
    return [*deltas, *reader.finish()]


@pytest.mark.parametrize(("stream", "parts", "reason", "told"), STREAMS.values(), ids=list(STREAMS))
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_streams(
    stream: bytes, parts: list[Part], reason: str, told: TokenCounts | None, data: st.DataObject
) -> None:
    """Cut anywhere, with either kind of line end."""
    if data.draw(st.booleans()):
        stream = stream.replace(b"\n", b"\r\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
    deltas = asyncio.run(read(pieces))
    assert joined(deltas) == parts
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [reason]
    assert (deltas[-1].finish_reason, deltas[-1].usage) == (reason, told)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "choices",
                        "delta",
                        "index",
                        "content",
                        "reasoning",
                        "tool_calls",
                        "function",
                    ),
                    *("name", "arguments", "id", "finish_reason", "usage", "logprobs"),
                    *("prompt_tokens_details", "token", "type", "thinking", "error"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["choices", "usage"]), JSON, max_size=2))
def test_nonsense_is_an_error_of_the_kinds_that_are_expected(said: dict[str, Any]) -> None:
    """Which the backend makes a 503 of, as below."""
    try:
        says_something(said)
        list(ChatReader(request()).deltas(said))
    except (*NONSENSE, ServingError):
        pass


def hosted(server: str, *answers: Answer) -> tuple[dict[str, list[Answer]], dict[str, Any]]:
    """What a fake server answers, and the options to take it for one of a kind."""
    card = {"id": "m", "owned_by": "somebody", "context_window": 99}
    return {"/v1/models": [(200, {"data": [card]})], PATH: list(answers)}, {"server": server}


async def run(
    running: Fake, asked: GenerationRequest, **options: Any
) -> tuple[list[Delta], ModelInfo]:
    """The deltas of a request for that server, and what is said of its model."""
    values = Options.model_validate({"retries": 0, **options})
    backend = create(BackendSettings(name="m", path=running.url, options=values))
    info = await backend.start()
    try:
        async with aclosing(backend.generate(asked)) as deltas:
            return [delta async for delta in deltas], info
    finally:
        await backend.close()


SAID = events(event({"content": "x"}), event({}, "stop"), {"choices": [], "usage": usage()})
EVERYTHING: dict[str, Any] = {
    "messages": (
        {"role": "developer", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "Hello", "reasoning_content": "Hm."},
        USER,
    ),
    "tools": (TOOL,),
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "reasoning_effort": "high",
    "enable_thinking": True,
    "chat_template_kwargs": {
        "enable_thinking": True,
        "thinking": True,
        "reasoning_effort": "high",
        "language": "nb",
    },
    "chosen_params": frozenset({"temperature", "max_tokens", "seed", "top_k", "stop"}),
}
CHOSEN = SamplingParams(temperature=1.0, max_tokens=9, seed=3, top_k=0, stop=("a",), logprobs=2)
SENT = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 1.0,
    "max_tokens": 9,
    "seed": 3,
    "stop": ["a"],
    "logprobs": True,
    "top_logprobs": 2,
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "reasoning_effort": "high",
}
GONE = object()


@pytest.mark.parametrize(
    ("server", "otherwise", "roles", "thought"),
    [
        (
            "vllm",
            {"top_k": -1, "chat_template_kwargs": EVERYTHING["chat_template_kwargs"]},
            "developer",
            "reasoning_content",
        ),
        (
            "sglang",
            {
                "top_k": -1,
                "seed": GONE,
                "chat_template_kwargs": EVERYTHING["chat_template_kwargs"],
            },
            "developer",
            "reasoning_content",
        ),
        (
            "openai",
            {"max_tokens": GONE, "max_completion_tokens": 9},
            "developer",
            None,
        ),
        (
            "openrouter",
            {"top_k": -1, "reasoning_effort": GONE, "reasoning": {"effort": "high"}},
            "developer",
            "reasoning",
        ),
        (
            "deepseek",
            {"seed": GONE, "parallel_tool_calls": GONE, "thinking": {"type": "enabled"}},
            "system",
            "reasoning_content",
        ),
        (
            "mistral",
            {
                "seed": GONE,
                "random_seed": 3,
                "stream_options": GONE,
                "logprobs": GONE,
                "top_logprobs": GONE,
            },
            "system",
            None,
        ),
        ("other", {}, "developer", "reasoning_content"),
    ],
)
async def test_bodies(
    server: str, otherwise: dict[str, Any], roles: str, thought: str | None
) -> None:
    """Each server is sent what was chosen, under its own names; the rest is left to it."""
    answers, options = hosted(server, (200, SAID))
    with fake(answers) as running:
        _, info = await run(running, request(CHOSEN, **EVERYTHING), **options)
    [body] = running.bodies(PATH)
    messages = body.pop("messages")
    expected = {name: value for name, value in (SENT | otherwise).items() if value is not GONE}
    assert body == expected
    assert messages[0] == {"role": roles, "content": "Be brief."}
    answer = {"role": "assistant", "content": "Hello"}
    assert messages[2] == answer | ({thought: "Hm."} if thought else {})
    assert info.context_length == 99
    sent_otherwise = {"seed"} if "random_seed" in body else set()
    lacking = {name for name, value in otherwise.items() if value is GONE} - sent_otherwise
    assert info.unsupported >= lacking & {"seed", "logprobs", "parallel_tool_calls"}


@pytest.mark.parametrize(
    ("server", "chat", "sent"),
    [
        ("openrouter", {"reasoning_budget": 9}, {"reasoning": {"max_tokens": 9}}),
        ("openrouter", {"enable_thinking": False}, {"reasoning": {"enabled": False}}),
        (
            "deepseek",
            {"enable_thinking": False, "reasoning_effort": "none"},
            {"thinking": {"type": "disabled"}},
        ),
        ("vllm", {"structured_outputs": {"regex": "a"}}, {"structured_outputs": {"regex": "a"}}),
        ("sglang", {"structured_outputs": {"regex": "a"}}, {"regex": "a"}),
        ("llama-server", {"structured_outputs": {"grammar": "g"}}, {"grammar": "g"}),
    ],
)
async def test_thinking_and_forms(server: str, chat: dict[str, Any], sent: dict[str, Any]) -> None:
    """Under the names that each server has for them."""
    answers, options = hosted(server, (200, SAID))
    with fake(answers) as running:
        await run(running, request(**chat), **options)
    [body] = running.bodies(PATH)
    rest = {name: value for name, value in body.items() if name not in (*_SAME, "messages")}
    assert rest == sent


_SAME = ("model", "stream", "stream_options")


@pytest.mark.parametrize(
    ("server", "chat"),
    [
        ("deepseek", {"response_format": {"type": "json_schema", "json_schema": {}}}),
        ("llama-server", {"structured_outputs": {"regex": "a"}}),
    ],
)
async def test_forms_that_a_server_does_not_know(server: str, chat: dict[str, Any]) -> None:
    """An error before anything is sent, since an answer of any form would be worse."""
    answers, options = hosted(server, (200, SAID))
    with fake(answers) as running, pytest.raises(UnsupportedParameterError) as raised:
        await run(running, request(**chat), **options)
    assert raised.value.param == "constraint"
    assert not running.bodies(PATH)


_README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
_COLUMNS = {"Enginebay": "enginebay", "vLLM": "vllm", "SGLang": "sglang", "others": "other"}


def table() -> Iterator[tuple[str, str, str]]:
    """The README's table of the chat way: what, which server, what it says there."""
    lines = _README.partition("### Chat\n\n")[2].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    head = [cell.strip() for cell in lines[0].strip("|").split("|")][1:]
    for what, *cells in rows[2:]:
        for column, cell in zip(head, cells, strict=True):
            yield what, _COLUMNS.get(column, column.lower()), cell


def test_the_table_in_the_readme() -> None:
    """It says what the dialects do."""
    cells = list(table())
    assert {server for _, server, _ in cells} == CHAT_DIALECTS.keys()
    for what, server, said in cells:
        assert said == documented(what, CHAT_DIALECTS[cast(Server, server)]), (what, server)


def documented(what: str, dialect: ChatDialect) -> str:
    """What a cell of the table is to say."""
    if what.startswith("`response_format`"):
        return "both" if "json_schema" in dialect.forms else "JSON"
    if what.startswith("regular"):
        forms = {"regex": "expressions", "choice": "choices", "grammar": "grammars"}
        known = [name for form, name in forms.items() if form in dialect.forms]
        return "all" if len(known) == 3 else ", ".join(known) or "no"
    if what == "`n`":
        return "yes" if dialect.several else "one by one"
    if what.startswith("reasoning of"):
        return f"`{dialect.thought_name}`" if dialect.thought_name else "nothing"
    names = re.findall(r"`(\w+)`", what) or ["logprobs"]
    [honoured] = {name in dialect.fields for name in names if name != "thinking"}
    if "enable_thinking" in names and honoured and dialect.thinking == "template":
        return "template"
    return "yes" if honoured else "no"


async def test_choices_of_one_answer() -> None:
    """The last one to end has the usage."""
    two = [
        {"choices": [{"index": i, "delta": {"content": "ab"[i]}, "finish_reason": None}]}
        for i in (1, 0)
    ]
    ends = [
        {"choices": [{"index": i, "delta": {}, "finish_reason": "stop", "stop_reason": "."}]}
        for i in (1, 0)
    ]
    told = {"choices": [], "usage": usage()}
    answers, options = hosted("vllm", (200, events(*two, *ends, told)))
    with fake(answers) as running:
        deltas, _ = await run(running, request(n=2), **options)
    assert running.bodies(PATH)[0]["n"] == 2
    assert [(delta.index, delta.finish_reason) for delta in deltas] == [
        *((1, None), (0, None)),
        *((1, "stop"), (0, "stop")),
    ]
    assert [delta.usage is None for delta in deltas] == [True, True, True, False]
    assert deltas[-1].stop_reason == "."


async def test_choices_of_a_server_that_makes_one() -> None:
    """Each is asked for by itself, with a seed of its own; the prompt is counted once."""
    answers, options = hosted("openrouter", (200, SAID))
    sampling = SamplingParams(seed=5)
    with fake(answers) as running:
        asked = request(sampling, 3, chosen_params=frozenset({"seed"}))
        deltas, _ = await run(running, asked, **options)
    bodies = running.bodies(PATH)
    assert [body["seed"] for body in bodies] == [5, 6, 7]
    assert not any("n" in body for body in bodies)
    assert [delta.index for delta in deltas if delta.finish_reason] == [0, 1, 2]
    assert deltas[-1].usage == TokenCounts(prompt_tokens=5, completion_tokens=21)


async def test_logprobs() -> None:
    """As the server writes them; there are no token ids beside them."""
    entry = {"token": "x", "logprob": -0.5, "bytes": [120]}
    logprobs = {"content": [{**entry, "top_logprobs": [entry, entry]}], "refusal": None}
    stream = events(
        event({"content": "x"}, logprobs=logprobs),
        event({"reasoning": "y", "content": "x"}, logprobs=logprobs),
        event({}, "stop"),
    )
    answers, options = hosted("openai", (200, stream))
    with fake(answers) as running:
        deltas, _ = await run(running, request(SamplingParams(logprobs=1)), **options)
    [found] = deltas[0].logprobs or ()
    assert deltas[1].logprobs is None  # nobody says which are of content
    assert (found.token, found.logprob, found.token_id) == ("x", -0.5, -1)
    assert [top.token for top in found.top] == ["x"]


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, {"error": {"message": "no", "param": "top_k"}}, InvalidRequestError),
        (422, {"detail": [{"msg": "no"}]}, InvalidRequestError),
        (429, {"error": {"message": "no"}}, QueueFullError),
        (401, {"error": {"message": "no"}}, BackendUnavailableError),
        (402, {"error": {"message": "no credits", "code": 402}}, BackendUnavailableError),
        (404, {"error": {"message": "no such model"}}, NotFoundError),
        (200, events(OPENING, {"error": {"message": "no", "code": 400}}), InvalidRequestError),
        (
            200,
            events(event({"content": "x"}), {"error": {"code": 502}, **event({}, "error")}),
            BackendUnavailableError,
        ),
        (200, events(event({"content": "x"}), event({}, "error")), BackendUnavailableError),
        (200, events(event({"content": "x"})), BackendUnavailableError),
        (200, events(event({"content": "x"})).removesuffix(DONE), BackendUnavailableError),
        (200, events({"choices": ["x"]}), BackendUnavailableError),
        (200, events({"choices": 3}), BackendUnavailableError),
        (200, events(event({"content": 3}, "stop")), BackendUnavailableError),
        (
            200,
            events(event({"tool_calls": [called(0, "1", None, "{}")]}, "stop")),
            BackendUnavailableError,
        ),
        (200, {"error": {"message": "no", "code": 400}}, InvalidRequestError),
        (200, {"choices": [{"message": {"content": "x"}}]}, BackendUnavailableError),
        (200, b"data: {\n\n", BackendUnavailableError),
        (200, b"data: " + b"[" * 100_000 + b"\n\n", BackendUnavailableError),
        (400, b"[" * 100_000, InvalidRequestError),
        (400, {"error": {"message": ["no"], "code": [1], "type": {}}}, InvalidRequestError),
        (200, b"", BackendUnavailableError),
    ],
)
async def test_errors(status: int, body: Any, expected: type[ServingError]) -> None:
    """What is the client's to mend is passed on, all else is this server's failure."""
    answers, options = hosted("openai", (status, body))
    with fake(answers) as running, pytest.raises(expected) as raised:
        await run(running, request(), **options)
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    ("answer", "expected", "said"),
    [
        ((200, b"no gzip", {"Content-Encoding": "gzip"}), BackendUnavailableError, "decompress"),
        ((400, b"no gzip", {"Content-Encoding": "gzip"}), BackendUnavailableError, "decompress"),
        ((301, b"", {"Location": "https://else.where/v1"}), BackendUnavailableError, "else.where"),
        ((429, {}, {"Retry-After": "\u00b2"}), QueueFullError, "429"),
        ((429, {}, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}), QueueFullError, "429"),
    ],
)
async def test_odd_headers(answer: Answer, expected: type[ServingError], said: str) -> None:
    with fake({PATH: [answer]}) as running:
        http = Http(running.url, delay=0, retries=1)
        try:
            with pytest.raises(expected, match=said):
                await anext(http.events(PATH, {}, {}))
        finally:
            await http.close()


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        ({"prompt_tokens": -1, "completion_tokens": -7}, (0, 0, 0, None)),
        ({"prompt_tokens": 1e999, "completion_tokens": "7"}, (0, 0, 0, None)),
        (
            usage(
                prompt_tokens_details={"cached_tokens": 9},
                completion_tokens_details={"reasoning_tokens": 9},
            ),
            (5, 7, 5, 7),
        ),
        # xAI and Gemini
        (usage(total_tokens=20, completion_tokens_details={"reasoning_tokens": 8}), (5, 15, 0, 8)),
    ],
)
async def test_counts_that_cannot_be(told: dict[str, Any], counts: tuple[Any, ...]) -> None:
    """They are no reason to lose an answer, and what clients get adds up."""
    [*_, last] = await read([events(event({"content": "x"}, "stop"), {"usage": told})])
    prompt, completion, cached, reasoning = counts
    assert last.usage == TokenCounts(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        reasoning_tokens=reasoning,
    )


async def test_an_answer_without_the_mark_of_its_end() -> None:
    """All is there, so nothing is wrong."""
    stream = events(event({"content": "x"}), event({}, "stop")).removesuffix(DONE)
    answers, options = hosted("other", (200, stream))
    with fake(answers) as running:
        deltas, _ = await run(running, request(), **options)
    assert joined(deltas) == [ContentDelta("x")]
    assert deltas[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    "busy",
    [
        (503, {}),
        (200, events(OPENING).removesuffix(DONE)),
        (200, events(OPENING, {"error": {"message": "busy", "code": 429}})),
    ],
)
async def test_tries_again_before_the_first_token(busy: Answer) -> None:
    """An opening is nothing said; what came of it is forgotten."""
    answers = {PATH: [busy, busy, (200, SAID)]}
    with fake(answers) as running:
        http = Http(running.url, delay=0, retries=2)
        try:
            found = http.events(PATH, {}, {}, says=says_something)
            async with aclosing(found):
                seen = [each async for each in found]
        finally:
            await http.close()
        assert len(running.asked) == 3
    assert seen[0] == event({"content": "x"})
    assert len(seen) == 3


async def test_closing_the_stream_closes_the_connection() -> None:
    """Which is how servers learn that nobody listens any more."""
    piece = events(event({"content": "x"})).removesuffix(DONE)
    answers, options = hosted("other", (200, itertools.repeat(piece)))
    with fake(answers) as running:
        values = Options.model_validate({"retries": 0, **options})
        backend = create(BackendSettings(name="m", path=running.url, options=values))
        await backend.start()
        try:
            async with aclosing(backend.generate(request())) as deltas:
                assert (await anext(deltas)).parts == (ContentDelta("x"),)
            assert await asyncio.to_thread(running.left.wait, 60)
        finally:
            await backend.close()


async def test_closing_the_backend_ends_what_is_under_way() -> None:
    """At once, and with the error that says so."""
    piece = events(event({"content": "x"})).removesuffix(DONE)
    answers, options = hosted("other", (200, itertools.repeat(piece)))
    with fake(answers) as running:
        values = Options.model_validate({"retries": 0, **options})
        backend = create(BackendSettings(name="m", path=running.url, options=values))
        await backend.start()
        async with aclosing(backend.generate(request())) as deltas:
            await anext(deltas)
            await backend.close()
            with pytest.raises(EngineDeadError):
                async for _ in deltas:
                    pass
        with pytest.raises(EngineDeadError):
            await anext(backend.generate(request()))


async def test_images_and_half_characters_are_passed_on() -> None:
    """Content is the server's business."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = ({"role": "user", "content": [{"type": "text", "text": "\ud800"}, image]},)
    answers, options = hosted("openai", (200, SAID))
    with fake(answers) as running:
        await run(running, request(messages=messages), **options)
    assert running.bodies(PATH)[0]["messages"] == list(messages)


async def test_extra_fields_go_before_others_and_null_takes_one_out() -> None:
    """For servers that are stricter than others, or know more."""
    answers, options = hosted("other", (200, SAID))
    extra = {"provider": {"order": ["x"]}, "stream_options": None}
    with fake(answers) as running:
        await run(running, request(), **options, extra_body=extra)
    body = running.bodies(PATH)[0]
    assert body["provider"] == {"order": ["x"]}
    assert "stream_options" not in body


async def test_servers_without_a_list_of_models() -> None:
    """Are taken at the config's word."""
    with fake({PATH: [(200, SAID)]}) as running:
        deltas, info = await run(running, request(), model="theirs")
        assert running.bodies(PATH)[0]["model"] == "theirs"
        assert (info.context_length, info.chats) == (0, True)
        assert joined(deltas) == [ContentDelta("x")]
        with pytest.raises(BackendUnavailableError):
            await run(running, request())


@pytest.mark.parametrize(
    ("url", "api", "server"),
    [
        ("http://host:8000", "http://host:8000/v1", "other"),
        ("http://host:8000/v1/", "http://host:8000/v1", "other"),
        ("http://v1.host/llm", "http://v1.host/llm/v1", "other"),
        ("https://api.openai.com/v1", "https://api.openai.com/v1", "openai"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1", "openrouter"),
        ("https://api.deepseek.com", "https://api.deepseek.com/v1", "deepseek"),
        ("https://x.y/v1beta/openai", "https://x.y/v1beta/openai", "other"),
    ],
)
async def test_addresses(url: str, api: str, server: str) -> None:
    """With a version of the API or without, and what the host tells of the server."""
    http = Http(url)
    try:
        assert http.url("/v1/models") == f"{api}/models"
        assert server_of(http, {}, Options()) == server
        assert server_of(http, {"owned_by": "vllm"}, Options(server="sglang")) == "sglang"
    finally:
        await http.close()


@pytest.mark.parametrize(
    ("options", "chats"),
    [
        ({}, True),
        ({"tokenizer": "t"}, False),
        ({"tokenizer": "t", "api": "chat"}, True),
        ({"api": "completions"}, False),
    ],
)
def test_which_api(options: dict[str, Any], chats: bool) -> None:
    """Completions with a tokenizer, chat without, unless the options say."""
    assert Options.model_validate(options).chats is chats
