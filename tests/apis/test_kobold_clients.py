"""What clients of KoboldCpp send, untouched."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from enginebay.config.keys import Key
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of
from tests.api.test_queue import keys_of
from tests.apis.kobold import GENERATE, STREAM, check_error, events, text_of
from tests.conftest import ServeScripted
from tests.support import Server, plugins_with, scripted, scripted_config, serve

SILLYTAVERN_KOBOLDAI = {
    "prompt": "Seraphina: Hello!\nYou: Hi.\nSeraphina:",
    "use_story": False,
    "use_memory": False,
    "use_authors_note": False,
    "use_world_info": False,
    "max_context_length": 2048,
    "max_length": 80,
    "rep_pen": 1.1,
    "rep_pen_range": 1024,
    "rep_pen_slope": 0.7,
    "temperature": 0.7,
    "tfs": 1,
    "top_a": 0,
    "top_k": 0,
    "top_p": 0.92,
    "min_p": 0,
    "typical": 1,
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "singleline": False,
    "use_default_badwordsids": False,
    "mirostat": 0,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5,
    "grammar": "",
    "sampler_seed": 4,
    "stop_sequence": ["\nYou:", "\nSeraphina:"],
}
"""With the settings of the KoboldAI's own page it is only what comes before `rep_pen`."""

SILLYTAVERN_KOBOLDCPP = {
    "prompt": "Seraphina: Hello!\nYou: Hi.\nSeraphina:",
    "model": "scripted",
    "max_new_tokens": 80,
    "max_tokens": 80,
    "temperature": 0.7,
    "top_p": 0.92,
    "typical_p": 1,
    "typical": 1,
    "sampler_seed": -1,
    "seed": -1,
    "min_p": 0,
    "repetition_penalty": 1.1,
    "rep_pen": 1.1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_k": 0,
    "skew": 0,
    "min_length": 0,
    "min_tokens": 0,
    "num_beams": 1,
    "length_penalty": 1,
    "early_stopping": False,
    "add_bos_token": True,
    "dynamic_temperature": False,
    "dynatemp_low": 1,
    "dynatemp_high": 1,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "dry_allowed_length": 2,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "dry_penalty_last_n": 0,
    "max_tokens_second": 0,
    "stopping_strings": ["\nYou:"],
    "stop": ["\nYou:"],
    "truncation_length": 8192,
    "ban_eos_token": False,
    "skip_special_tokens": True,
    "top_a": 0,
    "tfs": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "mirostat": 0,
    "custom_token_bans": "",
    "banned_strings": [],
    "api_type": "koboldcpp",
    "api_server": "http://127.0.0.1:5000",
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "xtc_threshold": 0.1,
    "xtc_probability": 0,
    "nsigma": 0,
    "top_n_sigma": 0,
    "rep_pen_range": 0,
    "repetition_penalty_range": 0,
    "rep_pen_slope": 1,
    "trim_stop": True,
    "grammar": "",
    "logit_bias": {},
    "stream": True,
}

LITE = {
    "n": 1,
    "max_context_length": 4096,
    "max_length": 240,
    "rep_pen": 1.05,
    "temperature": 0.75,
    "top_p": 0.92,
    "top_k": 100,
    "top_a": 0,
    "typical": 1,
    "tfs": 1,
    "rep_pen_range": 360,
    "rep_pen_slope": 0.7,
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "memory": "",
    "trim_stop": True,
    "genkey": "KCPP8422",
    "min_p": 0,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "nsigma": 0,
    "banned_tokens": [],
    "render_special": False,
    "logprobs": False,
    "replace_instruct_placeholders": True,
    "presence_penalty": 0,
    "logit_bias": {},
    "adaptive_target": -1,
    "adaptive_decay": 0.9,
    "stop_sequence": ["{{[INPUT]}}", "{{[OUTPUT]}}"],
    "use_default_badwordsids": False,
    "bypass_eos": False,
    "images": [],
    "quiet": True,
    "prompt": "Once upon a time",
}

HORDE = {
    "n": 1,
    "max_context_length": 1024,
    "max_length": 80,
    "rep_pen": 1.08,
    "rep_pen_range": 1024,
    "rep_pen_slope": 0.7,
    "temperature": 0.62,
    "tfs": 1,
    "top_a": 0,
    "top_k": 0,
    "top_p": 0.9,
    "typical": 1,
    "sampler_order": [6, 0, 1, 2, 3, 4, 5],
    "singleline": False,
    "frmttriminc": True,
    "frmtrmblln": False,
    "use_default_badwordsids": True,
    "stop_sequence": ["\nYou:"],
    "quiet": True,
    "prompt": "You: Hi.\nBot:",
}


@pytest.fixture(scope="module")
def server() -> Any:
    said = [" Hello,", " you", "\nYou:", " and", " more"]
    with serve(scripted_config(), plugins_with(scripted=scripted(said))) as running:
        yield running


def named(response: httpx2.Response) -> set[str]:
    return set(filter(None, response.headers.get("x-unsupported-params", "").split(", ")))


# What the scripted engine does not do; a real one does all of it.
UNSUPPORTED = {
    *("temperature", "top_p", "top_k", "rep_pen", "repetition_penalty", "sampler_seed"),
    *("rep_pen_range", "penalty_last_n", "repetition_penalty_range"),
}
SLOPE = {"rep_pen_slope"}


def test_sillytavern_koboldai(server: Server) -> None:  # KOB-8
    assert server.http.get("/api/v1/info/version").json()["result"] == "1.2.5"
    assert server.http.get("/api/v1/model").json()["result"] not in ("", "ReadOnly")
    assert server.http.get("/api/extra/version").json()["result"]
    whole = server.http.post(GENERATE, json=SILLYTAVERN_KOBOLDAI)
    assert text_of(whole) == " Hello, you\nYou:"  # SillyTavern cuts that off
    assert named(whole) - UNSUPPORTED == SLOPE
    with server.http.stream("POST", STREAM, json=SILLYTAVERN_KOBOLDAI) as response:
        assert response.status_code == 200
        tokens = [event["token"] for event in events(response.iter_lines())]
    assert "".join(tokens) == " Hello, you\nYou:"
    assert server.http.post("/api/extra/abort").status_code == 200
    own = dict(list(SILLYTAVERN_KOBOLDAI.items())[:7])
    assert text_of(server.http.post(GENERATE, json=own)).endswith(" and more")


def test_sillytavern_koboldcpp() -> None:  # KOB-8
    said = [" Hello,", " you", "\nYou:", " and"]
    config = scripted_config(server={"auth": "required"})
    plugins = plugins_with(scripted=scripted(said))
    with serve(config, plugins, keys=keys_of("tavern")) as server:
        server.http.headers["Authorization"] = "Bearer tavern"
        assert server.http.get("/v1/models").json()["data"][0]["id"] == "scripted"
        counted = server.http.post("/api/extra/tokencount", json={"prompt": "Hello"}).json()
        assert (counted["value"], len(counted["ids"])) == (5, 5)
        with server.http.stream("POST", "/v1/completions", json=SILLYTAVERN_KOBOLDCPP) as response:
            assert response.status_code == 200
            assert named(response) - UNSUPPORTED == set()
            lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
        texts = [choice["text"] for line in lines for choice in json.loads(line)["choices"]]
        assert "".join(texts) == " Hello, you"
        assert server.http.post("/api/extra/abort").json()["success"]


def test_a_body_of_sillytavern_for_a_real_model(demo: Server) -> None:  # KOB-8
    for body in (SILLYTAVERN_KOBOLDAI, {**LITE, "max_length": 20}, {**HORDE, "max_length": 20}):
        body = {**body, "max_context_length": 512}
        response = demo.http.post(GENERATE, json=body)
        assert isinstance(text_of(response), str)
        assert named(response) <= {*SLOPE, "sampler_order", "replace_instruct_placeholders"}


def test_koboldai_lite(server: Server) -> None:
    with server.http.stream("POST", STREAM, json=LITE) as response:
        assert named(response) - UNSUPPORTED == {*SLOPE, "replace_instruct_placeholders"}
        *_, last = events(response.iter_lines())
    assert last["finish_reason"] == "stop"
    assert server.http.post("/api/extra/generate/check", json={"genkey": "KCPP8422"}).json() == {
        "results": [{"text": ""}]
    }
    assert server.http.get("/api/extra/perf").json()["total_gens"] > 0


def test_a_worker_of_the_horde(serve_scripted: ServeScripted) -> None:
    server = serve_scripted([" Hello", "\nYou:", " x"])
    for path in ("model", "info/version"):
        assert isinstance(server.http.get(f"/api/v1/{path}").json()["result"], str)
    for path in ("config/max_length", "config/max_context_length"):
        assert server.http.get(f"/api/v1/{path}").json()["value"] > 0
    assert server.http.get("/api/v1/config/soft_prompts_list").json()["values"] == []
    assert text_of(server.http.post("/api/latest/generate", json=HORDE)) == " Hello\nYou:"


def test_counting_is_free() -> None:
    """Frontends count tokens and look after their texts all the time."""
    key = Key("one", digest_of("one"), requests_per_minute=1)
    keys = KeyStore(Path("no such file"), [key])
    config = scripted_config(server={"auth": "required"})
    with serve(config, plugins_with(scripted=scripted(["ok"])), keys=keys) as server:
        server.http.headers["Authorization"] = "Bearer one"
        assert text_of(server.http.post(GENERATE, json={"prompt": "x"})) == "ok"
        check_error(server.http.post(GENERATE, json={"prompt": "x"}), 429)
        for _ in range(3):
            for path in ("tokencount", "abort", "generate/check"):
                response = server.http.post(f"/api/extra/{path}", json={"prompt": "x"})
                assert response.status_code == 200
