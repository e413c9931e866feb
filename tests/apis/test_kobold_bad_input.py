"""Whatever is sent to KoboldCpp's routes: a 4xx with a `detail`, and a server that answers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.test_bad_input import JSON, NOT_JSON, WRONG
from tests.api.test_queue import keys_of
from tests.apis.kobold import GENERATE, STREAM, check_error, text_of
from tests.support import Server, plugins_with, scripted, scripted_config, serve

COUNT = "/api/extra/tokencount"
LENIENT = ("/api/extra/abort", "/api/extra/generate/check")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    plugins = plugins_with(scripted=scripted(["ok"], context_length=64))
    with serve(scripted_config(), plugins) as running:
        yield running


def check(server: Server, path: str, content: bytes, **headers: str) -> int:
    """The status, which is 200 or that of an error of ours."""
    response = server.http.post(path, content=content, headers=headers)
    if response.status_code != 200:
        assert 400 <= response.status_code < 500, response.text[:500]
        check_error(response, response.status_code)
    return response.status_code


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["x", "y"]}, "prompt"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "x", "memory": 5}, "memory"),
        ({"prompt": "x" * 600}, "maximum context length"),
        ({"prompt": "x", "max_length": 0}, "max_length"),
        ({"prompt": "x", "max_length": -1}, "max_length"),
        ({"prompt": "x", "max_length": "many"}, "max_length"),
        ({"prompt": "x", "max_context_length": 0}, "max_context_length"),
        ({"prompt": "x", "max_context_length": 180}, "max_length is 180"),
        ({"prompt": "x", "max_context_length": []}, "max_context_length"),
        ({"prompt": "x", "stop_sequence": 5}, "stop_sequence"),
        ({"prompt": "x", "stop_sequence": ["a", 5]}, "stop_sequence[1]"),
        ({"prompt": "x", "stop_sequence": ["a"] * 65}, "stop_sequence"),
        ({"prompt": "x", "trim_stop": "x"}, "trim_stop"),
        ({"prompt": "x", "singleline": 5}, "singleline"),
        ({"prompt": "x", "rep_pen": 0}, "rep_pen:"),
        ({"prompt": "x", "rep_pen": 1000}, "rep_pen:"),
        ({"prompt": "x", "rep_pen_range": -7}, "rep_pen_range"),
        ({"prompt": "x", "rep_pen_range": 1.5}, "rep_pen_range"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "typical": 2}, "typical:"),
        ({"prompt": "x", "tfs": 2}, "tfs"),
        ({"prompt": "x", "sampler_seed": 1.5}, "sampler_seed"),
        ({"prompt": "x", "mirostat": 3}, "mirostat"),
        ({"prompt": "x", "use_default_badwordsids": "x"}, "use_default_badwordsids"),
        ({"prompt": "x", "bypass_eos": []}, "bypass_eos"),
        ({"prompt": "x", "banned_tokens": [5]}, "banned_tokens[0]"),
        ({"prompt": "x", "banned_tokens": ["a" * 1001]}, "banned_tokens"),
        ({"prompt": "x", "banned_strings": {}}, "banned_strings"),
        ({"prompt": "x", "grammar": 5}, "grammar"),
        ({"prompt": "x", "grammar": "root ::= ("}, "grammar"),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias"),
        ({"prompt": "x", "logit_bias": {str(10**7): 1}}, "logit_bias"),
        ({"prompt": "x", "genkey": 5}, "genkey"),
        ({"prompt": "x", "model": 5}, "model"),
    ],
)
def test_wrong_bodies(server: Server, path: str, body: dict[str, Any], named: str) -> None:
    response = server.http.post(
        path, content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert named in check_error(response)["msg"]


def test_text_without_end(server: Server) -> None:
    """Errors have no wire names of other APIs."""
    body = {"prompt": "x", "max_length": 100, "max_context_length": 1000}
    response = server.http.post(GENERATE, json=body)
    assert response.status_code == 200
    assert response.headers["x-clamped-params"] == "max_length=63"


@pytest.mark.parametrize("path", [GENERATE, STREAM, COUNT])
def test_what_is_no_object(server: Server, path: str) -> None:
    for content in NOT_JSON:
        assert check(server, path, content, **{"Content-Type": "application/json"}) == 400
        assert check(server, path, content) == 400
    for kind in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "a/b/c"):
        check(server, path, b"a=1", **{"Content-Type": kind})


@pytest.mark.parametrize("path", LENIENT)
def test_what_is_no_object_does_not_matter(server: Server, path: str) -> None:  # KOB-5
    for content in (*NOT_JSON, b"", b"null", b'{"genkey": ["x"]}', b'{"genkey": {"a": NaN}}'):
        for headers in ({"Content-Type": "application/json"}, {"Content-Type": "a/b/c"}, {}):
            status = check(server, path, content, **headers)
            assert status == (400 if content == b"\xff\xfe" else 200)  # no UTF-8 to any route


FIELDS = (
    *("prompt", "memory", "max_length", "max_context_length", "stop_sequence", "trim_stop"),
    *("singleline", "rep_pen", "rep_pen_range", "rep_pen_slope", "temperature", "top_p", "top_k"),
    *("min_p", "top_a", "typical", "tfs", "mirostat", "dry_sequence_breakers", "sampler_seed"),
    *("grammar", "logit_bias", "banned_tokens", "banned_strings", "use_default_badwordsids"),
    *("bypass_eos", "sampler_order", "genkey", "model", "quiet", "images", "stop", "request_id"),
)


def test_wrong_values_of_every_field(server: Server) -> None:
    for name in FIELDS:
        for value in WRONG:
            body = json.dumps({"prompt": "x", name: value}).encode()
            check(server, GENERATE, body, **{"Content-Type": "application/json"})
    for name in ("prompt", "special", "model"):
        for value in WRONG:
            body = json.dumps({"prompt": "x", name: value}).encode()
            check(server, COUNT, body, **{"Content-Type": "application/json"})
    assert text_of(server.http.post(GENERATE, json={"prompt": "x"})) == "ok"


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3), JSON | st.just("x"))
def test_any_json_is_answered(server: Server, fields: dict[str, Any], prompt: Any) -> None:
    body = json.dumps({"prompt": prompt, **fields}).encode()
    check(server, GENERATE, body, **{"Content-Type": "application/json"})


@given(JSON)
def test_any_genkey_is_answered(server: Server, genkey: Any) -> None:
    for path in LENIENT:
        assert server.http.post(path, content=json.dumps({"genkey": genkey})).status_code == 200


def test_errors_before_any_route(server: Server) -> None:  # KOB-10
    assert "no route" in check_error(server.http.get("/api/v1/nothing"), 404)["msg"]
    assert "no route" in check_error(server.http.get("/api/extra/last_logprobs"), 404)["msg"]
    assert "does not allow" in check_error(server.http.get(GENERATE), 405)["msg"]
    with serve(
        scripted_config(server={"auth": "required", "max_request_bytes": 1000}),
        plugins_with(scripted=scripted(["ok"])),
        keys=keys_of("one"),
    ) as closed:
        for path in (GENERATE, "/api/latest/generate", STREAM, COUNT, *LENIENT):
            assert "API key" in check_error(closed.http.post(path, json={}), 401)["msg"]
        headers = {"Authorization": "Bearer one"}
        for path in (GENERATE, *LENIENT):
            response = closed.http.post(path, content=b"x" * 2000, headers=headers)
            check_error(response, 413)
