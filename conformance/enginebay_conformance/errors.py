"""Checks of the responses to invalid requests."""

import httpx2

from enginebay_conformance.endpoint import CHAT, STORY, Endpoint, Json
from enginebay_conformance.expect import NotShown, expect
from enginebay_conformance.run_checks import check

WRONG: tuple[tuple[str, Json], ...] = (
    ("messages", {"messages": []}),
    ("messages", {"messages": "hi"}),
    ("messages", {"messages": [{"role": "robot", "content": "hi"}]}),
    ("messages", {"messages": [{"role": 5, "content": "hi"}]}),
    ("temperature", {"temperature": "hot"}),
    ("temperature", {"temperature": -1}),
    ("top_p", {"top_p": 2}),
    ("max_tokens", {"max_tokens": "many"}),
    ("n", {"n": 0}),
    ("stop", {"stop": {"x": 1}}),
    ("logit_bias", {"logit_bias": {"x": 1}}),
    ("tools", {"tools": [{"type": "function"}]}),
    ("stream", {"stream": "maybe"}),
)
NO_JSON = (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": [}', b"[" * 20_000)


@check("MLC-5", "VLLM-8")
def unknown_model_is_not_found(server: Endpoint) -> None:
    """A model that is not served is 404 `model_not_found`, streamed too."""
    for stream in (False, True):
        body = server.chat_body(model="no-such-model-日本", stream=stream)
        error = _error(server.post(CHAT, body), 404)
        expect(error.get("code") == "model_not_found", f"the code is {error.get('code')!r}")


@check("VLLM-26", "VLLM-83")
def wrong_values_are_refused(server: Endpoint) -> None:
    """A wrong value is a 400 with an error object that names the parameter."""
    for param, fields in WRONG:
        error = _error(server.post(CHAT, server.chat_body(**fields)), 400, f"{fields} gave ")
        named = str(error.get("param") or "")
        expect(named.startswith(param), f"{fields} is blamed on {error.get('param')!r}")


@check("MLC-11", "VLLM-36")
def streams_fail_with_a_status(server: Endpoint) -> None:
    """Errors before the first token have a status and a JSON body, also when streaming."""
    for _, fields in WRONG[:-1]:
        response = server.post(CHAT, server.chat_body(**{"stream": True, **fields}))
        _error(response, 400, f"{fields} gave ")
        kind = response.headers.get("content-type", "")
        expect(kind.startswith("application/json"), f"the content type is {kind!r}")


@check()
def a_body_that_is_no_json_is_refused(server: Endpoint) -> None:
    """A body that is not a JSON object is a 400."""
    for content in NO_JSON:
        response = server.http.post(
            CHAT, content=content, headers={"Content-Type": "application/json"}
        )
        _error(response, 400, f"{content[:20]!r} gave ")


@check()
def schemas_that_are_none_are_refused(server: Endpoint) -> None:
    """A `response_format` that cannot be is a 400, and so is a schema, never a free answer."""
    no_type = {"type": "object", "properties": {"x": {"type": "nonsense"}}}
    for value in (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": no_type}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": "{"}},
        {"type": "json_schema"},
        {"type": "nonsense"},
        "json_object",
    ):
        for stream in (False, True):
            body = server.chat_body(response_format=value, stream=stream)
            error = _error(server.post(CHAT, body), 400, f"{value} gave ")
            named = str(error.get("param") or "")
            expect(named.startswith("response_format"), f"{value} is blamed on {named!r}")


@check("VLLM-36", "MLC-11")
def a_prompt_that_does_not_fit_is_refused(server: Endpoint) -> None:
    """A prompt longer than the context is a 400 `context_length_exceeded`, streamed too."""
    length = server.context_length
    if length is None or length > 300_000:
        raise NotShown("the server does not report its context length")
    long = [{"role": "user", "content": "hi, " * length}]
    for stream in (False, True):
        response = server.post(CHAT, server.chat_body(messages=long, stream=stream))
        error = _error(response, 400)
        expect(error.get("code") == "context_length_exceeded", f"the code is {error.get('code')!r}")


@check("MLC-6")
def unknown_fields_do_no_harm(server: Endpoint) -> None:
    """Fields that the server does not know are no errors."""
    server.chat(debug_config={"ignore_eos": False}, no_such_field={"x": 1})


@check()
def values_that_mean_off_do_no_harm(server: Endpoint) -> None:
    """Values by which SillyTavern says that a setting is off are no errors."""
    off = {
        "seed": -1,
        "logit_bias": {},
        "stop": [],
        "tools": None,
        "json_schema": {},
        "grammar_string": "",
        "custom_token_bans": "",
        "banned_strings": [],
        "negative_prompt": "",
        "guidance_scale": 1,
        "mirostat_mode": 0,
        "dry_multiplier": 0,
        "dry_sequence_breakers": "[]",
        "xtc_probability": 0,
        "min_tokens": 0,
        "smoothing_factor": 0,
        "max_tokens_second": 0,
    }
    server.chat(**off)


@check("MLC-27")
def all_fields_of_openai_are_taken(server: Endpoint) -> None:
    """A request with every plain field of OpenAI's is answered."""
    server.chat(
        top_p=0.9,
        n=2,
        stop=["\n\n\n"],
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"5": -1},
        logprobs=True,
        top_logprobs=1,
        seed=7,
        user="somebody",
        response_format={"type": "text"},
        tool_choice="none",
    )
    server.chat(messages=[{**STORY[0], "name": "ann"}], stop=None, stream=None)


@check()
def unknown_routes_have_an_error_object(server: Endpoint) -> None:
    """There is no route: 404; there is, but not with this method: 405; an error object in both."""
    _error(server.http.get("/v1/no-such-route"), 404)
    _error(server.http.get(CHAT), 405)


def _error(response: httpx2.Response, status: int, about: str = "") -> Json:
    """The error object of an answer with this status."""
    seen = f"{about}{response.status_code} {response.text[:120]}"
    expect(response.status_code == status, seen)
    body = response.json()
    error = body.get("error") if isinstance(body, dict) else None
    expect(isinstance(error, dict), seen)
    assert isinstance(error, dict)
    missing = {"message", "type", "param", "code"} - set(error)
    expect(not missing, f"{about}an error without {', '.join(sorted(missing))}: {seen}")
    expect(bool(error["message"]), f"{about}an error without a message")
    return error


CHECKS = (
    unknown_model_is_not_found,
    wrong_values_are_refused,
    streams_fail_with_a_status,
    a_body_that_is_no_json_is_refused,
    schemas_that_are_none_are_refused,
    a_prompt_that_does_not_fit_is_refused,
    unknown_fields_do_no_harm,
    values_that_mean_off_do_no_harm,
    all_fields_of_openai_are_taken,
    unknown_routes_have_an_error_object,
)
