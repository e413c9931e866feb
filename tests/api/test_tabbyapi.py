"""What TabbyAPI documents and SillyTavern sends to it: every name, every value that means off."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.completion_bodies import CompletionRequest
from enginebay.config.sampling import FIELDS
from enginebay.contract.sampling_params import SamplingParams
from enginebay.models.overrides import Overrides, OverridesError
from tests.support import REPOSITORY, Server, plugins_with, scripted, scripted_config, serve

USER: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    """A server whose engine can do next to nothing, and that refuses what it cannot do."""
    config = scripted_config(server={"strict_params": True})
    with serve(config, plugins_with(scripted=scripted(["o", "k"]))) as running:
        yield running


# TabbyAPI's names, as `shared` documents and its own schema have them: equal ones, and a value.
ALIASES: list[tuple[tuple[str, ...], Any]] = [
    (("max_tokens", "max_completion_tokens", "max_length"), 5),
    (("min_tokens", "min_length"), 5),
    (("stop", "stop_sequence", "stopping_strings"), ["x"]),
    (("banned_tokens", "custom_token_bans"), "5, 6"),
    (("allowed_tokens", "allowed_token_ids"), [5, 6]),
    (("typical", "typical_p"), 0.5),
    (("repetition_penalty", "rep_pen"), 1.5),
    (("penalty_range", "repetition_range", "repetition_penalty_range", "rep_pen_range"), 5),
    (("dry_range", "dry_penalty_last_n"), 5),
    (("mirostat_mode", "mirostat"), 1),
    (("ban_eos_token", "ignore_eos"), True),
    (("max_temp", "dynatemp_high"), 2.0),
    (("min_temp", "dynatemp_low"), 0.5),
    (("temp_exponent", "dynatemp_exponent"), 2.0),
    (("seed", "sampler_seed"), 7),
    (("tfs", "tfs_z"), 0.5),
]


@pytest.mark.parametrize(
    ("names", "name", "value"),
    [(names, name, value) for names, value in ALIASES for name in names],
)
def test_every_name_means_the_same(names: tuple[str, ...], name: str, value: Any) -> None:
    for body, start in (
        (ChatCompletionRequest, {"messages": USER}),
        (CompletionRequest, {"prompt": "x"}),
    ):
        sent = body.model_validate({**start, name: value})
        first = body.model_validate({**start, names[0]: value})
        assert sent.sampling_fields() == first.sampling_fields() != {}
        assert sent.unknown_fields() == []


@pytest.mark.parametrize("name", ["template_vars", "chat_template_kwargs"])
def test_names_of_template_variables(name: str) -> None:
    body = ChatCompletionRequest.model_validate({"messages": USER, name: {"mood": "glad"}})
    assert body.chat_template_kwargs == {"mood": "glad"}


@pytest.mark.parametrize(
    "name",
    ["reasoning_budget_tokens", "reasoning_budget", "thinking_budget", "thinking_token_budget"],
)
def test_names_of_the_reasoning_budget(name: str) -> None:
    assert ChatCompletionRequest.model_validate({"messages": USER, name: 9}).budget_tokens == 9


@pytest.mark.parametrize(
    ("reasoning", "effort", "thinks", "budget"),
    [
        ({"effort": "low"}, "low", None, None),
        ({"enabled": False}, None, False, None),
        ({"max_tokens": 9}, None, None, 9),
        ({}, None, None, None),
    ],
)
def test_reasoning_options(
    reasoning: dict[str, Any], effort: str | None, thinks: bool | None, budget: int | None
) -> None:
    body = ChatCompletionRequest.model_validate({"messages": USER, "reasoning": reasoning})
    assert (body.reasoning_effort, body.thinks, body.budget_tokens) == (effort, thinks, budget)
    assert body.unknown_fields() == []
    flat = {"reasoning_effort": "high", "enable_thinking": True, "thinking_budget": 3}
    body = ChatCompletionRequest.model_validate({"messages": USER, "reasoning": reasoning, **flat})
    assert (body.reasoning_effort, body.thinks, body.budget_tokens) == ("high", True, 3)


# acceptance 2.1: what means off, and what SillyTavern sends for what is not in use
OFF: list[tuple[str, Any]] = [
    ("seed", -1), ("sampler_seed", -1), ("json_schema", {}), ("grammar_string", ""),
    ("custom_token_bans", ""), ("banned_strings", []), ("logit_bias", {}), ("negative_prompt", ""),
    ("guidance_scale", 1), ("max_tokens_second", 0), ("dry_multiplier", 0), ("xtc_probability", 0),
    ("mirostat_mode", 0), ("mirostat", 0), ("min_tokens", 0), ("smoothing_factor", 0),
    ("dry_sequence_breakers", "[]"), ("temperature", 1), ("top_p", 1), ("typical_p", 1),
    ("typical", 1), ("min_p", 0), ("repetition_penalty", 1), ("rep_pen", 1), ("repeat_penalty", 1),
    ("frequency_penalty", 0), ("presence_penalty", 0), ("top_k", 0), ("top_k", -1), ("skew", 0),
    ("dynamic_temperature", False), ("dynatemp_range", 0), ("dynatemp_exponent", 1),
    ("smoothing_curve", 1), ("stopping_strings", []), ("stop", []), ("ban_eos_token", False),
    ("ignore_eos", False), ("top_a", 0), ("tfs", 1), ("tfs_z", 1), ("adaptive_target", -0.01),
    ("repetition_decay", 0), ("rep_pen_slope", 1), ("temperature_last", False),
    ("speculative_ngram", False), ("token_healing", False), ("nsigma", -1), ("n_probs", 0),
    ("num_ctx", 8192), ("truncation_length", 8192), ("api_type", "tabby"), ("legacy_api", False),
    ("api_server", "http://127.0.0.1:5000/"), ("allowed_tokens", []), ("regex_pattern", ""),
    ("generate_window", 0), ("cfg_scale", 1.0), ("min_temp", 1), ("max_temp", 1),
    ("top_n_sigma", 0),
    ("temperature", None), ("stop", None), ("json_schema", None), ("logit_bias", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), OFF, ids=lambda value: json.dumps(value)[:40])
def test_what_means_off(strict: Server, name: str, value: Any) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "x", name: value}),
        ("/v1/chat/completions", {"messages": USER, name: value}),
    ):
        if name == "n_probs" and "chat" in path:
            continue
        answer = strict.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert "x-unsupported-params" not in answer.headers
    fields = CompletionRequest.model_validate({"prompt": "x", name: value}).sampling_fields()
    assert SamplingParams(**fields) == SamplingParams()


SILLYTAVERN = {
    "prompt": "User: hi\nAssistant:", "model": "scripted", "max_new_tokens": 300,
    "max_tokens": 300, "logprobs": None, "temperature": 1, "top_p": 1, "typical_p": 1,
    "typical": 1, "sampler_seed": -1, "seed": -1, "min_p": 0, "repetition_penalty": 1,
    "rep_pen": 1, "repeat_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0, "top_k": 0,
    "skew": 0, "min_tokens": 0, "add_bos_token": True, "dynamic_temperature": False,
    "dynatemp_low": 1, "dynatemp_high": 1, "dynatemp_range": 0, "dynatemp_exponent": 1,
    "smoothing_factor": 0, "smoothing_curve": 1, "dry_allowed_length": 2, "dry_multiplier": 0,
    "dry_base": 1.75, "dry_sequence_breakers": '["\\n",":","\\"","*"]', "dry_penalty_last_n": 0,
    "max_tokens_second": 0, "stopping_strings": ["\nUser:"], "stop": ["\nUser:"],
    "truncation_length": 8192, "ban_eos_token": False, "ignore_eos": False,
    "skip_special_tokens": True, "top_a": 0, "tfs": 1, "tfs_z": 1, "mirostat_mode": 0,
    "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "custom_token_bans": "",
    "banned_strings": [], "api_type": "tabby", "api_server": "http://127.0.0.1:5000/",
    "legacy_api": False, "xtc_threshold": 0.1, "xtc_probability": 0, "rep_pen_range": 0,
    "repetition_penalty_range": 0, "repeat_last_n": 0, "repetition_decay": 0,
    "temperature_last": True, "speculative_ngram": False, "guidance_scale": 1,
    "negative_prompt": "", "grammar_string": "", "json_schema": {}, "n_predict": 300,
    "num_predict": 300, "num_ctx": 8192, "n_probs": None, "rep_pen_slope": 1, "n": 1,
    "logit_bias": {}, "nsigma": 0, "adaptive_target": -0.01, "adaptive_decay": 0.9,
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_all_that_sillytavern_sends_at_once(stream: bool) -> None:
    with serve(scripted_config(), plugins_with(scripted=scripted(["o", "k"]))) as server:
        body = {**SILLYTAVERN, "stream": stream}
        answer = server.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        # the one thing that this engine does not have and SillyTavern switches on by default
        assert answer.headers["x-unsupported-params"] == "temperature_last"
        if not stream:
            assert answer.json()["choices"][0]["text"] == "ok"
            return
        *events, done, _ = answer.text.split("\n\n")
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        assert done == "data: [DONE]"
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ok"
        assert not any(chunk.keys() & {"error", "message", "detail"} for chunk in chunks)


def test_sillytavern_with_logprobs(strict: Server) -> None:
    for asked in ({"logprobs": 1}, {"n_probs": 1}, {"logprobs": 1, "n_probs": 1}):
        answer = strict.http.post("/v1/completions", json={"prompt": "x", **asked})
        logprobs = answer.json()["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["o", "k"]
        assert logprobs["top_logprobs"] == [{"o": 0.0}, {"k": 0.0}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        # docs/03.-Usage.md
        ("/v1/completions", {"model": "scripted", "prompt": "Once upon a time,",
                             "max_tokens": 400, "stream": False, "min_p": 0.0,
                             "repetition_penalty": 1.0}),
        # its schemas, every field
        ("/v1/completions", {"prompt": "x", "stream": False, "stream_options": None,
                             "response_format": {"type": "text"}, "n": 1, "best_of": 1,
                             "echo": False, "suffix": "", "user": "me", "add_bos_token": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}],
                                  "add_generation_prompt": True, "template_vars": {},
                                  "response_prefix": "so", "continue_final_message": False,
                                  "tools": [], "tool_choice": "auto", "add_bos_token": None,
                                  "parallel_tool_calls": True, "json_schema": None,
                                  "reasoning": None, "reasoning_effort": None,
                                  "enable_thinking": None, "model": "scripted"}),
        ("/v1/token/encode", {"text": "hi"}),
        ("/v1/token/encode", {"text": USER, "add_bos_token": True, "encode_special_tokens": True,
                              "decode_special_tokens": True}),
        ("/v1/token/decode", {"tokens": [104, 105], "add_bos_token": True,
                              "encode_special_tokens": True, "decode_special_tokens": True}),
        ("/v1/template/switch", {"prompt_template_name": "chatml"}),
        ("/v1/template/unload", None),
        ("/v1/sampling/override/switch", {"overrides": {"top_p": {"override": 1.5,
                                                                  "force": False}}}),
        ("/v1/sampling/override/unload", None),
    ],
)  # fmt: skip
def test_documented_bodies(strict: Server, path: str, body: dict[str, Any] | None) -> None:
    answer = strict.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert "x-unsupported-params" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/health", "/v1/models", "/props", "/v1/auth/permission", "/v1/templates",
        "/v1/template/list", "/v1/sampling/overrides", "/v1/sampling/override/list",
        "/.well-known/serviceinfo", "/version", "/v1/loras", "/v1/lora/list", "/v1/lora",
    ],
)  # fmt: skip
def test_what_can_be_read(strict: Server, path: str) -> None:
    assert strict.http.get(path).status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
ENTRY = st.fixed_dictionaries({"override": JSON}, optional={"force": JSON, "additive": JSON})
BODIES = (
    st.tuples(
        st.sampled_from(["/v1/token/encode", "/v1/token/decode", "/tokenize", "/detokenize"]),
        st.dictionaries(
            st.sampled_from(
                ["text", "tokens", "prompt", "messages", "tools", "add_bos_token", "model"]
            ),
            JSON | st.just(USER),
            max_size=3,
        )
        | JSON,
    )
    | st.tuples(
        st.just("/v1/sampling/override/switch"),
        st.fixed_dictionaries(
            {"overrides": st.dictionaries(st.sampled_from(sorted(FIELDS)), ENTRY | JSON)},
            optional={"preset": JSON, "model": JSON},
        ),
    )
    | st.tuples(
        st.sampled_from(["/v1/template/switch", "/v1/template/unload"]),
        st.dictionaries(st.sampled_from(["name", "model"]), JSON) | JSON,
    )
)


@given(BODIES)
def test_any_json_is_answered(strict: Server, sent: tuple[str, Any]) -> None:
    path, body = sent
    content, headers = json.dumps(body), {"Content-Type": "application/json"}
    answer = strict.http.post(path, content=content, headers=headers)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)) | st.text(), ENTRY | JSON))
def test_overrides_are_taken_or_refused(entries: dict[str, Any]) -> None:
    """What is taken can be applied to any request, which then has params."""
    try:
        overrides = Overrides(entries)
    except OverridesError:
        return
    for body in (
        CompletionRequest.model_validate({"prompt": "x"}),
        CompletionRequest.model_validate({**SILLYTAVERN, "stop": ["a"], "banned_tokens": [5]}),
    ):
        SamplingParams(**overrides.applied_to(body, {}).sampling_fields())
    list(overrides.sources())
    both = overrides.over(Overrides({"top_k": {"override": 3, "force": True}}))
    top_k = both.applied_to(body, {}).top_k
    assert top_k == 3 or overrides.gives("top_k", top_k)


@pytest.mark.wing("kobold", "messages", "ollama", "page", "responses")
def test_the_page_has_every_route_that_it_says_is_there(strict: Server) -> None:
    """`docs/guides/tabbyapi.md`."""
    page = (REPOSITORY / "docs" / "guides" / "tabbyapi.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1:4] for row in page.splitlines() if re.match(r"\| `(GET|POST) ", row)]
    assert len(rows) > 30
    known = strict.app.openapi()["paths"]
    for names, supported, _ in rows:
        method, path = names.strip().strip("`").split()
        there = any(method.lower() in known.get(p, {}) for p in (path, f"/v1{path}"))
        assert there or supported.strip() != "yes", names
