"""Choices, logprobs, errors, tries and ends of chats, and which way a server is asked."""

import asyncio
import itertools
from contextlib import aclosing
from typing import Any

import pytest
from chat_events import (
    OPENING,
    PATH,
    SAID,
    called,
    event,
    hosted,
    joined,
    read,
    request,
    run,
    usage,
)
from enginebay_remote import create
from enginebay_remote.chat_reading import says_something
from enginebay_remote.failures import NotFoundError
from enginebay_remote.http import Http
from enginebay_remote.options import Options
from enginebay_remote.servers import server_of
from fake import DONE, Answer, events, fake

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    ContentDelta,
    EngineDeadError,
    InvalidRequestError,
    QueueFullError,
    SamplingParams,
    ServingError,
    TokenCounts,
)


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
            says = lambda event: says_something(event, request())  # noqa: E731
            found = http.events(PATH, {}, {}, says=says)
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


async def test_media_and_half_characters_are_passed_on() -> None:
    """Content is the server's business."""
    parts = [
        {"type": "text", "text": "\ud800"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}},
        {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}},
    ]
    messages = ({"role": "user", "content": parts},)
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
