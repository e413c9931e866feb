"""Whatever a request asks for and does not get is said, in a header or as an error."""

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from enginebay.config.neutral_values import NEUTRAL
from enginebay.testing import ScriptedEngine
from tests.api.test_overrides import Recorder
from tests.conftest import ServeScripted
from tests.support import Server, engine_backend, plugins_with, scripted, scripted_config, serve

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"messages": USER}


NOT_HERE: dict[str, Any] = {
    "store": True, "metadata": {"a": "b"}, "service_tier": "flex", "verbosity": "low",
    "prediction": {"type": "content", "content": "x"}, "prompt_cache_key": "x",
    "banned_strings": ["no"], "banned_tokens": [5], "allowed_token_ids": [5],
    "spaces_between_special_tokens": True, "use_beam_search": True, "num_beams": 4,
    "length_penalty": 2, "early_stopping": True, "best_of": 2, "detokenize": False,
    "cache_prompt": False, "parse_tool_calls": False, "id_slot": 0, "n_keep": -1, "n_probs": 3,
    "samplers": ["top_k"], "lora": [{"id": 0}],
    "penalize_nl": True, "regex": "a+", "ebnf": "x", "stop_regex": "x", "no_stop_trim": True,
    "stream_reasoning": False, "return_hidden_states": True, "truncation_side": "right",
    "truncation_length": 5, "cfg_scale": 2, "guidance_scale": 3,
    "negative_prompt": "x", "repetition_decay": 5, "generate_window": 512, "smoothing_curve": 2,
    "speculative_ngram": True, "epsilon_cutoff": 1, "eta_cutoff": 1, "penalty_alpha": 0.5,
    "encoder_repetition_penalty": 2, "no_repeat_ngram_size": 2, "max_tokens_second": 5,
    "auto_max_new_tokens": True, "prompt_template": "x", "options": {"num_ctx": 5},
    "format": "json", "think": False, "enable_thinking": False,
    "thinking": {"type": "disabled"}, "reasoning_effort": "low", "made_up": 0, "made_up_2": False,
    "made_up_3": -1, "made_up_4": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    """One that names what has no effect, and one that refuses it."""
    plugins = plugins_with(scripted=scripted(["ok"]))
    strict = scripted_config(server={"strict_params": True})
    with serve(scripted_config(), plugins) as naming, serve(strict, plugins) as refusing:
        yield naming, refusing


@pytest.mark.parametrize("name", NOT_HERE)
def test_what_has_no_effect_is_named(servers: tuple[Server, Server], name: str) -> None:
    # FIX-5
    naming, refusing = servers
    body = {**BODY, name: NOT_HERE[name]}
    answer = naming.http.post(CHAT, json=body)
    assert answer.status_code == 200
    assert answer.headers["x-unsupported-params"] == name
    refused = refusing.http.post(CHAT, json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name


@pytest.mark.parametrize(("name", "values"), NEUTRAL.items(), ids=str)
def test_values_by_which_a_field_asks_for_nothing(
    servers: tuple[Server, Server], name: str, values: tuple[Any, ...]
) -> None:
    # FIX-5
    naming, refusing = servers
    inside = {"include_obfuscation": "stream_options"}.get(name)
    inside = "structured_outputs" if name.startswith("disable_a") else inside
    for value in (*values, None, "", [], {}):
        fields = {inside: {name: value}} if inside else {name: value}
        answer = refusing.http.post(CHAT, json={**BODY, **fields})
        assert answer.status_code == 200, answer.text
    fields = {inside: {name: "other"}} if inside else {name: "other"}
    named = naming.http.post(CHAT, json={**BODY, **fields}).headers["x-unsupported-params"]
    assert named == (f"{inside}.{name}" if inside else name)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"do_sample": False}, None),
        ({"do_sample": False, "temperature": 0}, None),
        ({"do_sample": True}, None),
        ({"do_sample": True, "temperature": 3}, None),
        ({"do_sample": False, "temperature": 3}, "temperature"),
        ({"do_sample": False, "temperature": 3, "min_temp": 1, "max_temp": 2},
         "max_temp, min_temp, temperature"),
        ({"do_sample": True, "temperature": 0}, "do_sample"),
    ],
)  # fmt: skip
def test_do_sample(fields: dict[str, Any], named: str | None) -> None:
    # FIX-5, LF-20
    engine = Recorder()
    config = scripted_config(sampling={"temperature": 0.7})
    with serve(config, plugins_with(scripted=engine_backend(lambda: engine))) as server:
        for path, start in ((CHAT, BODY), (TEXT, {"prompt": "x"})):
            answer = server.http.post(path, json={**start, **fields})
            assert answer.headers.get("x-unsupported-params") == named
            greedy = not fields["do_sample"] or fields.get("temperature") == 0
            expected = 0 if greedy else fields.get("temperature", 0.7)
            sampling = engine.asked[-1].sampling
            assert (sampling.temperature, sampling.dynatemp_range) == (expected, 0)
        explained = server.http.post(f"{CHAT}/explain", json={**BODY, "do_sample": False}).json()
        assert explained["sampling"]["temperature"] == {"value": 0, "source": "request"}
        switch = {"overrides": {"temperature": {"override": 0.5, "force": True}}}
        server.http.post("/v1/sampling/override/switch", json=switch)
        answer = server.http.post(CHAT, json={**BODY, "do_sample": False})
        assert engine.asked[-1].sampling.temperature == 0.5
        assert answer.headers["x-unsupported-params"] == "do_sample"


def test_do_sample_where_the_engine_has_no_temperature(serve_scripted: ServeScripted) -> None:
    answer = serve_scripted(["ok"]).http.post(CHAT, json={**BODY, "do_sample": False})
    assert answer.headers["x-unsupported-params"] == "do_sample"


@pytest.mark.parametrize("name", ["truncation_length", "num_ctx"])
def test_a_window_is_named_where_it_is_exceeded(serve_scripted: ServeScripted, name: str) -> None:
    # FIX-5: SillyTavern sends it with every request
    naming = serve_scripted(["ok"])
    strict = serve_scripted(["ok"], server={"strict_params": True})
    for path, start, size in (
        (CHAT, BODY, 20),
        (TEXT, {"prompt": "x" * 19}, 19),
        (TEXT, {"prompt": ["x", "x" * 19]}, 19),
        (f"{CHAT}/explain", BODY, 20),
    ):
        for limits, exceeds in (
            ({name: size}, False), ({name: size - 1}, True), ({name: 0}, False),
            ({name: size + 5, "max_tokens": 5}, False), ({name: size + 4, "max_tokens": 5}, True),
        ):  # fmt: skip
            answer = naming.http.post(path, json={**start, **limits})
            headers = answer.json()["headers"] if "explain" in path else dict(answer.headers)
            named = {k.lower(): v for k, v in headers.items()}.get("x-unsupported-params")
            assert named == (name if exceeds else None)
            status = strict.http.post(path, json={**start, **limits}).status_code
            assert status == (400 if exceeds else 200)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "metadata": {}, "service_tier": "auto", "modalities": ["text"]},
        {"stream_options": {}, "functions": None, "banned_strings": [], "user": "me"},
        {"custom_token_bans": "", "api_type": "tabby", "api_server": "http://x", "num_ctx": 8192},
        {
            "tools": [],
            "stream_options": {"x": None},
            "reasoning": {},
            "messages": [
                {"role": "user", "content": "x", "images": [], "audio": None, "annotations": []}
            ],
        },
        {"json_schema": {}, "negative_prompt": "", "guidance_scale": 1, "max_tokens_second": 0},
        {"skip_special_tokens": True, "echo": False, "prompt_logprobs": 0},
    ],
)
def test_what_asks_for_nothing_is_not(serve_scripted: ServeScripted, fields: Any) -> None:
    server = serve_scripted(["ok"], server={"strict_params": True})
    answer = server.http.post(CHAT, json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    assert "x-unsupported-params" not in answer.headers


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_max_tokens_beyond_the_context(serve_scripted: ServeScripted, path: str) -> None:
    prompt = {"prompt": "x" * 20} if path == TEXT else BODY
    tokens = 20
    server = serve_scripted(["a"] * 99, engine={"context_length": 64})
    answer = server.http.post(path, json={**prompt, "max_tokens": 5000})
    tokens = answer.json()["usage"]["prompt_tokens"]
    assert answer.headers["x-clamped-params"] == f"max_tokens={64 - tokens}"
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answer.json()["usage"]["total_tokens"] == 64
    unsaid = server.http.post(path, json=prompt)
    assert "x-clamped-params" not in unsaid.headers
    strict = serve_scripted(["a"], engine={"context_length": 64}, server={"strict_params": True})
    refused = strict.http.post(path, json={**prompt, "max_tokens": 5000})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_tokens"
    fits = strict.http.post(path, json={**prompt, "max_tokens": 64 - tokens})
    assert fits.status_code == 200


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 5}, 5),
        ({"truncate_prompt_tokens": -1, "max_tokens": 60}, 4),
        ({"truncate_prompt_tokens": -1}, 48),
        ({"truncate_prompt_tokens": -1, "max_tokens": 500}, 1),
    ],
)
def test_truncated_prompts(serve_scripted: ServeScripted, fields: Any, kept: int) -> None:
    # VLLM-23
    server = serve_scripted(lambda prompt, index: [prompt], engine={"context_length": 64})
    text = "".join(chr(ord("A") + i % 26) for i in range(100))
    whole = f"<user>{text}\n<assistant>"
    for path, body, sent in (
        (TEXT, {"prompt": text}, text),
        (TEXT, {"prompt": [ord(c) for c in text]}, text),
        (CHAT, {"messages": [{"role": "user", "content": text}]}, whole),
    ):
        answer = server.http.post(path, json={**body, **fields})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-truncated-prompt-tokens"] == str(len(sent) - kept)
        choice = answer.json()["choices"][0]
        said = choice["text"] if path == TEXT else choice["message"]["content"]
        assert said == sent[-kept:][: 64 - kept]
    short = server.http.post(TEXT, json={"prompt": "abc", **fields})
    assert ("x-truncated-prompt-tokens" in short.headers) == (kept < 3)


def test_a_prompt_too_long_even_to_be_truncated(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], engine={"context_length": 64})
    body = {"prompt": "x" * 10_000, "truncate_prompt_tokens": 5}
    error = server.http.post(TEXT, json=body).json()["error"]
    assert error["code"] == "context_length_exceeded"
    error = server.http.post(TEXT, json={"prompt": "x" * 99, "truncate_prompt_tokens": 90}).json()
    assert error["error"]["code"] == "context_length_exceeded"


def test_the_log(serve_scripted: ServeScripted, caplog: pytest.LogCaptureFixture) -> None:
    # TAB-78 TAB-90 VLLM-33 VLLM-77
    caplog.set_level(logging.INFO, "enginebay")
    server = serve_scripted(["secret answer"])
    body = {"messages": [{"role": "user", "content": "secret question"}], "max_tokens": 99}
    headers = {"X-Request-Id": "id-1"}
    server.http.post(CHAT, json=body, headers=headers)
    lines = [r.getMessage() for r in caplog.records if "id-1" in r.getMessage()]
    assert len(lines) == 2
    assert "'max_tokens': 99" in lines[0]
    assert "33 prompt and 14 completion tokens, finished" in lines[1]
    assert not any("secret" in record.getMessage() for record in caplog.records)
    caplog.clear()
    server = serve_scripted(["secret answer"], server={"log_prompts": True})
    server.http.post(CHAT, json=body, headers=headers)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "chatcmpl-id-1 asks: '<user>secret question\\n<assistant>'" in text
    assert "answers in choice 0: 'secret answer'" in text


def test_sampling_defaults_are_logged_with_their_source(
    serve_scripted: ServeScripted, caplog: pytest.LogCaptureFixture
) -> None:
    # VLLM-7
    caplog.set_level(logging.INFO, "enginebay")
    serve_scripted(["ok"], sampling={"temperature": 0.25})
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "sampling defaults: temperature=0.25 (config)" in text


@pytest.mark.parametrize(
    ("limits", "said"),
    [("", "concurrent completions: 4"), ("KV cache 10 tokens (few)", "KV cache 10 tokens (few)")],
)
def test_one_line_about_a_loaded_model(
    caplog: pytest.LogCaptureFixture, limits: str, said: str
) -> None:
    """REAL-13: the facts that an operator acts on, and nothing else, at INFO."""
    caplog.set_level(logging.INFO, "enginebay")
    engine = ScriptedEngine(["ok"])
    engine.info = replace(engine.info, max_batch_size=4, limits=limits)
    with serve(scripted_config(), plugins_with(scripted=engine_backend(lambda: engine))) as server:
        assert server.http.get("/v1/models/scripted/inspect").json()["limits"] == limits
    said_of_it = (each.getMessage() for each in caplog.records)
    [line] = [each for each in said_of_it if "model scripted" in each]
    pattern = (
        r"model scripted: loaded in \d+\.\d s( \(.*\))?; engine scripted; context 4096 tokens; "
    )
    bos = "; BOS of chats: none: the model's own template writes none"
    assert re.fullmatch(pattern + re.escape(said + bos), line), line
