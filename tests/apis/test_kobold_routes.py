"""KoboldCpp's routes: texts and streams of them, tokens, and what there is to know."""

from collections.abc import Iterator
from typing import Any

import pytest

from enginebay import ModelInfo
from tests.apis.kobold import GENERATE, STREAM, Recording, check_error, events, text_of
from tests.conftest import ServeScripted
from tests.support import Server, plugins_with, scripted, scripted_config, serve

SAID = ["The ", "é🙂", "end", "\n", "of it."]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(scripted_config(), plugins_with(scripted=scripted(SAID))) as running:
        yield running


def stream(server: Server, **body: Any) -> list[dict[str, Any]]:
    with server.http.stream("POST", STREAM, json={"prompt": "x", **body}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(events(response.iter_lines()))


@pytest.mark.parametrize("folder", ["v1", "latest"])
def test_a_text(server: Server, folder: str) -> None:  # KOB-12
    response = server.http.post(f"/api/{folder}/generate", json={"prompt": "x"})
    assert response.json() == {"results": [{"text": "".join(SAID), "finish_reason": "stop"}]}


def test_length(server: Server) -> None:
    response = server.http.post(GENERATE, json={"prompt": "x", "max_length": 5})
    assert response.json() == {"results": [{"text": "The é", "finish_reason": "length"}]}
    *_, last = stream(server, max_length=5)
    assert last["finish_reason"] == "length"


@pytest.mark.parametrize("body", [{}, {"max_length": 1}, {"stop_sequence": ["end"]}, {"n": 1}])
def test_a_stream_is_the_same_text(server: Server, body: dict[str, Any]) -> None:
    # KOB-1, KOB-2
    *pieces, last = stream(server, **body)
    assert all(piece.keys() == {"token", "finish_reason"} for piece in [*pieces, last])
    assert {piece["finish_reason"] for piece in pieces} <= {None}
    assert all(piece["token"] for piece in pieces)
    [whole] = server.http.post(GENERATE, json={"prompt": "x", **body}).json()["results"]
    assert "".join(piece["token"] for piece in [*pieces, last]) == whole["text"]
    assert last["finish_reason"] == whole["finish_reason"]


def test_an_empty_text(serve_scripted: ServeScripted) -> None:
    server = serve_scripted([])
    assert stream(server) == [{"token": "", "finish_reason": "stop"}]
    assert text_of(server.http.post(GENERATE, json={"prompt": "x"})) == ""


def test_trim_stop(server: Server) -> None:  # KOB-7
    body = {"prompt": "x", "stop_sequence": ["end"]}
    kept = server.http.post(GENERATE, json=body)
    assert text_of(kept) == "The é🙂end"
    assert text_of(server.http.post(GENERATE, json={**body, "trim_stop": True})) == "The é🙂"
    *pieces, last = stream(server, stop_sequence=["end"], trim_stop=True)
    assert "".join(piece["token"] for piece in [*pieces, last]) == "The é🙂"


def test_singleline(server: Server) -> None:
    body = {"prompt": "x", "singleline": True, "trim_stop": True}
    assert text_of(server.http.post(GENERATE, json=body)) == "The é🙂end"


def test_180_tokens_if_nothing_is_said(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["a"] * 500)
    assert text_of(server.http.post(GENERATE, json={"prompt": "x"})) == "a" * 180


def test_grammar(serve_scripted: ServeScripted) -> None:  # KOB-11
    server = serve_scripted(["maybe"])
    body = {"prompt": "x", "grammar": 'root ::= "yes" | "no"', "max_length": 10}
    assert text_of(server.http.post(GENERATE, json=body)) in ("yes", "no")
    *pieces, last = stream(server, **body)
    assert "".join(piece["token"] for piece in [*pieces, last]) in ("yes", "no")
    error = check_error(server.http.post(GENERATE, json={**body, "grammar": "root ::= nothing"}))
    assert "grammar" in error["msg"]


@pytest.fixture
def recording() -> Iterator[tuple[Server, Recording]]:
    backend = Recording(context_length=100)
    with serve(scripted_config(), plugins_with(scripted=lambda _: backend)) as server:
        yield server, backend


def test_fields(recording: tuple[Server, Recording]) -> None:
    server, backend = recording
    body = {
        "prompt": "x",
        "max_length": 7,
        "rep_pen": 1.1,
        "rep_pen_range": 0,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "top_a": 0.2,
        "typical": 0.8,
        "tfs": 0.7,
        "mirostat": 2,
        "mirostat_tau": 4,
        "mirostat_eta": 0.2,
        "dry_multiplier": 0.8,
        "dry_base": 1.75,
        "dry_allowed_length": 3,
        "dry_sequence_breakers": ["\n", "!"],
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "dynatemp_range": 0.3,
        "dynatemp_exponent": 2,
        "smoothing_factor": 0.4,
        "sampler_seed": 17,
        "logit_bias": {"65": -5},
        "banned_tokens": ["the", ""],
        "banned_strings": ["a b"],
        "stop_sequence": ["stop"],
        "singleline": True,
        "use_default_badwordsids": True,
    }
    assert server.http.post(GENERATE, json=body).status_code == 200
    [asked] = backend.asked
    sampling = asked.sampling
    assert sampling.max_tokens == 7
    assert sampling.repetition_penalty == 1.1
    assert sampling.penalty_last_n == -1
    assert sampling.seed == 17
    assert sampling.stop == ("stop", "\n")
    assert sampling.include_stop_str_in_output
    assert sampling.ignore_eos
    assert sampling.banned_strings == ("the", "a b")
    assert sampling.logit_bias == {65: -5}
    assert sampling.dry_sequence_breakers == ("\n", "!")
    same = ("temperature", "top_p", "top_k", "min_p", "top_a", "tfs", "mirostat", "mirostat_tau")
    same += ("mirostat_eta", "dry_multiplier", "dry_base", "dry_allowed_length", "xtc_probability")
    same += ("xtc_threshold", "dynatemp_range", "dynatemp_exponent", "smoothing_factor")
    assert {name: getattr(sampling, name) for name in same} == {name: body[name] for name in same}
    assert sampling.typical_p == 0.8


@pytest.mark.parametrize(
    ("body", "ignores"),
    [
        ({}, False),
        ({"use_default_badwordsids": False, "bypass_eos": False}, False),
        ({"use_default_badwordsids": True}, True),
        ({"ban_eos_token": True}, True),
        ({"bypass_eos": True, "use_default_badwordsids": False}, True),
    ],
)
def test_end_of_sequence(
    recording: tuple[Server, Recording], body: dict[str, Any], ignores: bool
) -> None:  # KOB-14
    server, backend = recording
    assert server.http.post(GENERATE, json={"prompt": "x", **body}).status_code == 200
    assert backend.asked[-1].sampling.ignore_eos == ignores


def test_what_has_no_effect_is_named(server: Server) -> None:
    def named(**body: Any) -> set[str]:
        response = server.http.post(GENERATE, json={"prompt": "x", **body})
        assert response.status_code == 200, response.text
        return set(filter(None, response.headers.get("x-unsupported-params", "").split(", ")))

    assert not named(
        rep_pen_slope=1, sampler_order=[6, 0, 1, 3, 4, 2, 5], grammar_retain_state=False, n=1
    )
    assert not named(rep_pen_slope=0, grammar="", images=[], logprobs=False, memory="")
    assert not named(
        **dict.fromkeys(("use_story", "use_memory", "use_authors_note", "use_world_info"), True),
        **dict.fromkeys(("frmtadsnsp", "frmtrmblln", "frmtrmspch", "frmttriminc"), True),
        **dict.fromkeys(("quiet", "gui_settings", "can_abort", "streaming"), True),
        api_server="http://x",
    )
    assert named(rep_pen_slope=0.7, sampler_order=[0, 1], grammar_retain_state=True) == {
        *("rep_pen_slope", "sampler_order", "grammar_retain_state")
    }
    assert named(n=2, logprobs=True, max_tokens=5, images=["x"], what=1) == {
        *("n", "logprobs", "max_tokens", "images", "what")
    }
    # What this engine does not do, by the client's names.
    assert named(rep_pen=1.5, typical=0.5, bypass_eos=True, banned_tokens=["x"]) == {
        *("rep_pen", "typical", "bypass_eos", "banned_tokens")
    }


def test_strictness(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], server={"strict_params": True})
    error = check_error(server.http.post(GENERATE, json={"prompt": "x", "sampler_order": [1]}))
    assert "sampler_order" in error["msg"]
    error = check_error(server.http.post(GENERATE, json={"prompt": "x", "n": 2}))
    assert "n" in error["msg"]


def test_the_prompt_is_cut_behind_the_memory(recording: tuple[Server, Recording]) -> None:
    server, backend = recording

    def prompt(**body: Any) -> str:
        response = server.http.post(GENERATE, json={"max_length": 10, **body})
        assert response.status_code == 200, response.text
        cut = int(response.headers.get("x-truncated-prompt-tokens", 0))
        memory = body.get("memory", "")
        assert cut == max(0, len(body["prompt"]) - (len(got()) - len(memory)))
        return got()

    def got() -> str:
        return "".join(map(chr, backend.asked[-1].prompt_token_ids))

    text = "0123456789" * 9
    assert prompt(prompt=text) == text
    assert prompt(prompt="x" + text) == text  # to what the model can take
    assert prompt(prompt=text, max_context_length=20) == "0123456789"
    assert prompt(prompt=text, max_context_length=1000) == text
    assert prompt(prompt="short", memory="It was. ", max_context_length=50) == "It was. short"
    assert prompt(prompt=text, memory="It was. ", max_context_length=20) == "It was. 89"
    assert prompt(prompt=text, memory="It was. ") == "It was. " + text[8:]
    error = check_error(
        server.http.post(
            GENERATE,
            json={"prompt": "x", "memory": "y" * 15, "max_length": 10, "max_context_length": 20},
        )
    )
    assert error["msg"].startswith("memory has 15 tokens")


def test_memory_of_a_real_model(demo: Server) -> None:
    whole = {"prompt": "Once upon a time", "temperature": 0, "max_length": 12}
    parts = {**whole, "memory": "Once upon a", "prompt": " time"}
    assert text_of(demo.http.post(GENERATE, json=parts)) == text_of(
        demo.http.post(GENERATE, json=whole)
    )


def test_end_of_sequence_of_a_real_model(demo: Server) -> None:  # KOB-14
    body = {"prompt": "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n", "temperature": 0}
    [ended] = demo.http.post(GENERATE, json=body).json()["results"]
    assert ended["finish_reason"] == "stop"
    went_on = demo.http.post(GENERATE, json={**body, "use_default_badwordsids": True})
    assert went_on.json()["results"][0]["finish_reason"] == "length"


def test_the_text_in_front_is_echoed_and_logged(recording: tuple[Server, Recording]) -> None:
    server, _ = recording
    body = {"prompt": "bc", "memory": "a", "echo": True}
    answer = server.http.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == "abcok"
    assert answer["usage"]["prompt_tokens"] == 3


# What there is to know.


def test_tokens(demo: Server) -> None:  # KOB-6
    answer = demo.http.post("/api/extra/tokencount", json={"prompt": "Hello there", "made_up": 1})
    assert answer.headers["x-unsupported-params"] == "made_up"
    counted = answer.json()
    assert counted.keys() == {"value", "ids"}
    assert counted["value"] == len(counted["ids"]) > 0
    encoded = demo.http.post("/v1/token/encode", json={"text": "Hello there"}).json()
    assert counted["ids"] == encoded["tokens"]


def test_unknown_fields_of_a_count_are_named(serve_scripted: ServeScripted) -> None:
    body = {"prompt": "x", "api_server": "here", "nobody_knows": 1}
    counted = serve_scripted(["a"]).http.post("/api/extra/tokencount", json=body)
    assert counted.headers["x-unsupported-params"] == "nobody_knows"


def test_tokens_without_a_bos() -> None:  # KOB-6
    class WithBos(Recording):
        async def start(self) -> ModelInfo:
            info = await super().start()
            info.special_tokens["bos_token"] = "<s>"
            return info

        async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [1] * add_special_tokens + [ord(character) for character in text]

    with serve(scripted_config(), plugins_with(scripted=lambda _: WithBos())) as server:

        def count(**body: Any) -> Any:
            return server.http.post("/api/extra/tokencount", json=body).json()

        assert count(prompt="ab") == {"value": 3, "ids": [1, 97, 98]}
        assert count(prompt="ab", special=True) == {"value": 3, "ids": [1, 97, 98]}
        assert count(prompt="ab", special=False) == {"value": 2, "ids": [97, 98]}
        assert count(prompt="", special=False) == {"value": 0, "ids": []}
        assert count(prompt="<s>")["value"] == 3  # never a second one
        assert count(prompt="x" * 5000, special=False)["value"] == 5000  # more than the context


def test_about(server: Server) -> None:
    def get(path: str) -> Any:
        return server.http.get(f"/api/{path}").json()

    for folder in ("v1", "latest"):  # KOB-12
        assert get(f"{folder}/model") == {"result": "enginebay/scripted"}
        assert get(f"{folder}/info/version") == {"result": "1.2.5"}
        assert get(f"{folder}/config/max_length") == {"value": 4095}
        assert get(f"{folder}/config/max_context_length") == {"value": 4096}
        assert get(f"{folder}/config/soft_prompts_list") == {"values": []}
        assert get(f"{folder}/config/soft_prompt") == {"value": ""}
    assert get("extra/true_max_context_length") == {"value": 4096}
    assert get("extra/version") == {  # KOB-3
        "result": "KoboldCpp",
        "version": "1.87",
        "protected": False,
        "txt2img": False,
        "vision": False,
        "transcribe": False,
        "tts": False,
        "embeddings": False,
        "websearch": False,
        "multiplayer": False,
        "admin": 0,
    }


def test_about_a_model_that_is_loaded_when_it_is_asked_for(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], load="request", server={"api_keys": ["secret"]})
    server.http.headers["Authorization"] = "Bearer secret"
    version = server.http.get("/api/extra/version").json()
    assert version["protected"]
    assert not version["vision"]
    assert server.http.get("/api/v1/model").json() == {"result": "enginebay/scripted"}
    assert server.http.get("/api/v1/config/max_context_length").json() == {"value": 4096}


def test_seeing(demo: Server) -> None:
    assert demo.http.get("/api/extra/version").json()["vision"]


def test_another_model_if_it_is_sent(server: Server) -> None:
    assert text_of(server.http.post(GENERATE, json={"prompt": "x", "model": "scripted"}))
    error = check_error(server.http.post(GENERATE, json={"prompt": "x", "model": "no"}), 404)
    assert "'no'" in error["msg"]
    check_error(server.http.post("/api/extra/tokencount", json={"prompt": "x", "model": "no"}), 404)


def test_service_info(serve_scripted: ServeScripted) -> None:
    about = serve_scripted(["x"], server={"api_keys": ["secret"]}).http
    kobold = about.get("/.well-known/serviceinfo").json()["api"]["koboldai"]
    assert kobold["rel_url"] == "/api"
    assert kobold["name"] == "KoboldAI API"


def test_not_there_if_not_wanted(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["x"], server={"apis": []})
    assert server.http.post(GENERATE, json={"prompt": "x"}).status_code == 404
    assert "koboldai" not in server.http.get("/.well-known/serviceinfo").json()["api"]
