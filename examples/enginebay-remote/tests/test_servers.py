"""Servers of other kinds, by what they are documented to send; and what goes wrong with them."""

import asyncio
import itertools
from contextlib import aclosing
from typing import Any

import pytest
from completion_events import PATH, choice, vllm
from enginebay_remote import create
from enginebay_remote.dialects import DIALECTS, TRIAL
from enginebay_remote.failures import NotFoundError
from enginebay_remote.options import Options
from fake import DONE, Answer, Fake, events, fake

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    Delta,
    GenerationRequest,
    InvalidRequestError,
    ModelUnloadedError,
    QueueFullError,
    SamplingParams,
    ServingError,
    UnsupportedParameterError,
)


async def run(
    server: Fake, sampling: SamplingParams, **options: Any
) -> tuple[list[Delta], frozenset[str]]:
    """The deltas of a request for that server, and what it cannot do."""
    values = Options.model_validate({"retries": 0, "api": "completions", **options})
    backend = create(BackendSettings(name="m", path=server.url, options=values))
    info = await backend.start()
    try:
        request = GenerationRequest(request_id="r", prompt_token_ids=(7, 8), sampling=sampling)
        async with aclosing(backend.generate(request)) as deltas:
            return [delta async for delta in deltas], info.unsupported
    finally:
        await backend.close()


async def test_vllm() -> None:
    """Token ids beside the text, with the one that ends it, which is not part of the logprobs."""
    logprobs = {
        "tokens": ["token_id:9", "token_id:2"],
        "token_logprobs": [-0.5, -0.1],
        "top_logprobs": [{"token_id:9": -0.5, "token_id:4": -0.2}, {"token_id:2": -0.1}],
    }
    answer = events(
        choice("x", token_ids=[9, 2], logprobs=logprobs, finish_reason="stop", stop_reason=None),
        {
            "choices": [],
            "usage": {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
        },
    )
    sampling = SamplingParams(logprobs=1, top_k=0, stop_token_ids=(5,), logit_bias={3: -1e9})
    with fake(vllm(answer)) as server:
        [delta], unsupported = await run(server, sampling, extra_body={"priority": 3})
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("x", (9, 2), "stop")
    assert (delta.stop_reason, delta.prefill_tokens, delta.cached_tokens) == (None, 1, 1)
    assert delta.logprobs
    [entry] = delta.logprobs
    assert (entry.token_id, entry.token, entry.logprob) == (9, "x", -0.5)
    assert [(top.token_id, top.logprob) for top in entry.top] == [(4, -0.2)]
    assert "mirostat" in unsupported
    assert "min_tokens" not in unsupported
    body = server.bodies(PATH)[-1]
    assert body == {
        "model": "m",
        "prompt": [7, 8],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 98,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": False,
        "stop_token_ids": [5],
        "logit_bias": {"3": -100.0},
        "logprobs": 1,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        "priority": 3,
    }


async def test_llama_server() -> None:
    """Ids beside logprobs; the template, the context and the end of sequence from `/props`."""
    entry = {"id": 9, "token": "x", "logprob": -0.5, "top_logprobs": []}
    props = {
        "default_generation_settings": {"n_ctx": 64},
        "chat_template": "T",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    answers: dict[str, list[Answer]] = {
        "/v1/models": [(200, {"data": [{"id": "g", "owned_by": "llamacpp"}]})],
        "/props": [(200, props)],
        "/tokenize": [(200, {"tokens": [2]})],
        "/detokenize": [(200, {"content": "x"})],
        PATH: [
            (200, choice("x", logprobs={"content": [entry]}, finish_reason="length")),
            (
                200,
                events(
                    choice("x", logprobs={"content": [entry]}, finish_reason=None),
                    choice("", logprobs=None, finish_reason="stop"),
                ),
            ),
        ],
    }
    with fake(answers) as server:
        deltas, unsupported = await run(server, SamplingParams(repetition_penalty=1.5))
    assert [delta.token_ids for delta in deltas] == [(9,), (2,)]
    assert [delta.logprobs for delta in deltas] == [None, None]
    assert [delta.prefill_tokens for delta in deltas] == [0, 2]
    body = server.bodies(PATH)[-1]
    assert (body["repeat_penalty"], body["logprobs"], body["max_tokens"]) == (1.5, 1, 62)
    assert server.bodies("/tokenize")[0] == {
        "content": "Hello",
        "add_special": True,
        "parse_special": True,
    }
    assert {"stop_token_ids", "constraint"} <= unsupported


async def test_a_server_without_a_tokenizer() -> None:
    answers = vllm(b"")
    del answers["/tokenize"]
    gives = pytest.raises(BackendUnavailableError, match="give the option `tokenizer`")
    with fake(answers) as server, gives:
        await run(server, SamplingParams())


async def test_sglang() -> None:
    """No token ids: those of the text. The stop token is told, also at the end of sequence."""
    answers: dict[str, list[Answer]] = {
        "/v1/models": [(200, {"data": [{"id": "s", "owned_by": "sglang", "max_model_len": 9}]})],
        "/tokenize": [(200, {"tokens": [7]})],
        PATH: [
            (200, choice("x", finish_reason="length")),
            (200, events(choice("x", finish_reason="stop", matched_stop=2))),
        ],
    }
    with fake(answers) as server:
        [delta], unsupported = await run(server, SamplingParams())
    assert (delta.token_ids, delta.stop_reason) == ((7, 2), None)
    assert {"logprobs", "seed"} <= unsupported


async def test_closing_the_stream_closes_the_connection() -> None:
    """Which is how servers learn that nobody listens any more."""
    event = events(choice("x", token_ids=[9])).removesuffix(DONE)
    answers = vllm(b"")
    answers[PATH][-1] = (200, itertools.repeat(event))
    with fake(answers) as server:
        options = Options(retries=0, api="completions")
        backend = create(BackendSettings(name="m", path=server.url, options=options))
        await backend.start()
        try:
            request = GenerationRequest(request_id="r", prompt_token_ids=(7, 8))
            async with aclosing(backend.generate(request)) as deltas:
                assert (await anext(deltas)).text == "x"
            assert await asyncio.to_thread(server.left.wait, 60)
        finally:
            await backend.close()


async def test_closing_the_backend_ends_what_is_under_way() -> None:
    """At once, and with the error that says so."""
    event = events(choice("x", token_ids=[9])).removesuffix(DONE)
    answers = vllm(b"")
    answers[PATH][-1] = (200, itertools.repeat(event))
    with fake(answers) as server:
        options = Options(retries=0, api="completions")
        backend = create(BackendSettings(name="m", path=server.url, options=options))
        await backend.start()
        request = GenerationRequest(request_id="r", prompt_token_ids=(7, 8))
        async with aclosing(backend.generate(request)) as deltas:
            await anext(deltas)
            await backend.close()
            with pytest.raises(ModelUnloadedError):
                async for _ in deltas:
                    pass
        assert await asyncio.to_thread(server.left.wait, 60)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, {"error": {"message": "no", "param": "top_k"}}, InvalidRequestError),
        (
            400,
            {"error": {"message": "no", "code": "unsupported_parameter", "param": "top_k"}},
            UnsupportedParameterError,
        ),
        (422, {"detail": "no"}, InvalidRequestError),
        (429, {"error": {"message": "no"}}, QueueFullError),
        (401, {"error": {"message": "no"}}, BackendUnavailableError),
        (404, {"message": "no"}, NotFoundError),
        (502, b"<html>no</html>", BackendUnavailableError),
        (500, {"error": "no"}, ServingError),
        (200, events({"error": {"message": "no", "code": 400}}), InvalidRequestError),
        (200, events({"error": {"message": "no", "type": "server_error"}}), ServingError),
        (200, b"data: {\n\n", BackendUnavailableError),
        (200, b"", BackendUnavailableError),
        (200, events(), BackendUnavailableError),
        (200, events(choice("", finish_reason="content_filter")), BackendUnavailableError),
    ],
)
async def test_errors(status: int, body: Any, expected: type[ServingError]) -> None:
    """What is the client's to mend is passed on, all else is this server's failure."""
    answers = vllm(b"")
    answers[PATH][-1] = (status, body)
    with fake(answers) as server, pytest.raises(expected) as raised:
        await run(server, SamplingParams())
    assert type(raised.value) is expected
    if status == 400:
        assert (raised.value.message, raised.value.param) == ("no", "top_k")


PAGE = b"<!DOCTYPE html><html><body>Welcome to nginx!</body></html>"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, PAGE, "/v1/completions does not answer in JSON (text/html); is it an OpenAI"),
        (502, PAGE, ": Bad Gateway (status 502)"),
        (401, {"error": {"message": "no key"}}, "no key (status 401); its key is the option `api_"),
    ],
)
async def test_what_is_said_of_errors(status: int, body: Any, message: str) -> None:
    """What is wrong and what to do, and no pages."""
    with fake({**vllm(b""), PATH: [(200, choice("x", token_ids=[9])), (status, body)]}) as server:
        with pytest.raises(BackendUnavailableError) as raised:
            await run(server, SamplingParams())
        assert message in raised.value.message
        assert "nginx" not in raised.value.message


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_what_is_said_of_addresses(api: str) -> None:
    async def error(path: str, **options: Any) -> str:
        values = Options.model_validate({"api": api, "retries": 0, **options})
        with pytest.raises(BackendUnavailableError) as raised:
            await create(BackendSettings(name="m", path=path, options=values)).start()
        return raised.value.message

    broken = ("http://", "http://host:80a/v1", "http://[::1/v1", "http://\u2026/v1", "http://a b")
    for path in (*broken, "gpu.lan:8000", "models/m"):
        assert "is the server's URL, http://host:8000/v1 say, not " in await error(path)
    with fake({}) as server:
        said = await error(server.url)
        assert said.startswith(f"there is no {server.url}/v1/models (")
        assert "the option `model` names one" in said
    with fake({"/v1/models": [(200, PAGE)]}) as server:
        assert "/v1/models does not answer in JSON (text/html)" in await error(server.url)
    assert f"{server.url}: it cannot be reached (" in await error(server.url)


def test_every_sampling_param_is_tried() -> None:
    known = DIALECTS["enginebay"].known - {"max_tokens"}
    assert known <= set(TRIAL)


@pytest.mark.parametrize(
    "said",
    [
        {"choices": 3},
        {"choices": ["x"]},
        {"usage": [1]},
        {"choices": [{"text": 3}]},
        choice("x", logprobs={"tokens": ["token_id:9"], "token_logprobs": []}),
    ],
)
async def test_what_is_no_completion(said: dict[str, Any]) -> None:
    """An error that says so, whatever reading it comes to."""
    error = pytest.raises(BackendUnavailableError, match=r"no completion|without an answer")
    with fake(vllm(events(said))) as server, error:
        await run(server, SamplingParams(logprobs=0))


async def test_characters_cut_in_two() -> None:
    cut = [choice("\ud83d", finish_reason=None), choice("\ude00", finish_reason="stop")]
    with fake(vllm(events(*cut))) as server:
        deltas, _ = await run(server, SamplingParams())
    assert "".join(delta.text for delta in deltas) == "\U0001f600"
