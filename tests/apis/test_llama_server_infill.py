"""llama-server's `/infill`: its prompt, its answer, its stream."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import ModelInfo
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.effort import examples
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<s>")
GRANITE = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>")
CODESTRAL = ("[PREFIX]", "[SUFFIX]")
GAP: Any = {"input_prefix": "def f(", "input_suffix": "): pass"}
FILES = [{"filename": "a.py", "text": "A = 1\n"}, {"text": "B"}]


class Coder(ScriptedEngine):
    """One token a character, but these texts are one each; `<s>` is the BOS. It says its prompt."""

    def __init__(
        self, special: Sequence[str], script: Callable[[str], Sequence[str]], context: int = 4096
    ) -> None:
        super().__init__(lambda prompt, index: script(prompt), context_length=context)
        self._special = {text: chr(0xE000 + at) for at, text in enumerate(special)}
        if "<s>" in special:
            known = {name: getattr(self.info, name) for name in ModelInfo.__dataclass_fields__}
            self.info = ModelInfo(**known | {"special_tokens": {"bos_token": "<s>"}})

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        for special, sign in self._special.items():
            text = text.replace(special, sign)
        return self.tokenize_plain(text, add_special_tokens=add_special_tokens)

    def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        bos = self._special.get("<s>", "") if add_special_tokens else ""
        return [*map(ord, bos + text)]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        text = "".join(map(chr, token_ids))
        for special, sign in self._special.items():
            text = text.replace(sign, special)
        return text


@contextmanager
def coder(
    special: Sequence[str],
    script: Callable[[str], Sequence[str]] = lambda prompt: [prompt],
    context: int = 4096,
    **server: Any,
) -> Iterator[Server]:
    backend = engine_backend(lambda: Coder(special, script, context))
    with serve(scripted_config(server=server), plugins_with(scripted=backend)) as running:
        yield running


@pytest.fixture(scope="module")
def qwen() -> Iterator[Server]:
    with coder(QWEN) as server:
        yield server


@pytest.fixture(scope="module")
def speaker() -> Iterator[Server]:
    """Says a text of two lines, in pieces."""
    with coder(QWEN, lambda prompt: ["x, ", "y", "", "\n)"]) as server:
        yield server


def post(server: Server, path: str = "/infill", **body: Any) -> dict[str, Any]:
    response = server.http.post(path, json={**GAP, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events(server: Server, **body: Any) -> list[dict[str, Any]]:
    response = server.http.post("/infill", json={**GAP, **body, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


# LLS-1: each as `format_prompt_infill` of llama-server builds it


@pytest.mark.parametrize("path", ["/infill", "/v1/infill"])
def test_repository_tokens(qwen: Server, path: str) -> None:
    """They are there without other files, too."""
    assert post(qwen, path)["content"] == (
        "<|repo_name|>myproject\n<|file_sep|>filename\n"
        "<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>"
    )
    answer = post(qwen, path, input_extra=FILES, prompt="a, ")
    assert answer["content"] == (
        "<|repo_name|>myproject\n"
        "<|file_sep|>a.py\nA = 1\n"
        "<|file_sep|>tmp\nB"
        "<|file_sep|>filename\n"
        "<|fim_prefix|>def f(a, <|fim_suffix|>): pass<|fim_middle|>"
    )
    assert not answer["truncated"]


@pytest.mark.parametrize(
    ("special", "prompt"),
    [
        (STARCODER,
         "\n\n--- snippet ---\n\nA = 1\n\n\n--- snippet ---\n\nB"
         "<s><fim_prefix>def f(a, <fim_suffix>): pass<fim_middle>"),
        (GRANITE,
         "<reponame>myproject\n\n\n--- snippet ---\n\nA = 1\n\n\n--- snippet ---\n\nB"
         "<fim_prefix>def f(a, <fim_suffix>): pass<fim_middle>"),
        (CODESTRAL,
         "\n\n--- snippet ---\n\nA = 1\n\n\n--- snippet ---\n\nB"
         "[SUFFIX]): pass[PREFIX]def f(a, "),
    ],
)  # fmt: skip
def test_plain_snippets(special: Sequence[str], prompt: str) -> None:
    with coder(special) as server:
        assert post(server, input_extra=FILES, prompt="a, ")["content"] == prompt


def test_special_tokens_in_a_file_are_text(qwen: Server) -> None:
    answer = post(qwen, input_prefix="'<|fim_middle|>'", input_suffix="")
    written = "<|repo_name|>myproject\n<|file_sep|>filename\n<|fim_prefix|>'<|fim_middle|>'"
    assert answer["content"].startswith(written)
    assert answer["tokens_evaluated"] == 24 + len("'<|fim_middle|>'")


def test_a_model_without_tokens_for_it(serve_scripted: ServeScripted) -> None:
    response = serve_scripted(["x"]).http.post("/infill", json=GAP)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("input_suffix", "unsupported_parameter")


def test_what_does_not_fit_is_left_out() -> None:
    """Files first, then what is farthest from the gap."""
    with coder(STARCODER, lambda prompt: [prompt], context=104) as server:
        body: dict[str, Any] = {"input_prefix": "p" * 40, "input_suffix": "s" * 10, "n_predict": 30}
        ends = "<s><fim_prefix>" + "p" * 40 + "<fim_suffix>" + "s" * 10 + "<fim_middle>"
        response = server.http.post(
            "/infill", json={**body, "input_extra": [{"text": "x" * 100}], "stream": True}
        )
        last = json.loads(response.text.strip().rpartition("data: ")[2])
        assert last["tokens_evaluated"] == 104 - 30
        assert last["truncated"]
        assert response.headers["x-truncated-prompt-tokens"] == "99"
        answer = post(server, **{**body, "n_predict": 41})
        assert ends.startswith(answer["content"])
        assert (answer["tokens_evaluated"], answer["truncated"]) == (54, False)
        answer = post(server, **{**body, "input_suffix": "s" * 50, "n_predict": 40})
        assert (answer["tokens_evaluated"], answer["truncated"]) == (64, True)
        assert answer["content"].startswith("<s><fim_prefix>" + "p" * 25)


def test_another_file_ends_the_answer() -> None:
    with coder(QWEN, lambda prompt: ["x", "\ue004", "more"]) as server:
        answer = post(server)
        assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("x", "eos", "")


def test_the_answer(speaker: Server) -> None:
    answer = post(speaker, return_tokens=True)
    timings = answer.pop("timings")
    assert answer == {
        "index": 0,
        "content": "x, y\n)",
        "tokens": [*map(ord, "x, y\n)"), 0],
        "stop": True,
        "model": "scripted",
        "tokens_predicted": 7,
        "tokens_evaluated": 37,
        "tokens_cached": 0,
        "has_new_line": True,
        "truncated": False,
        "stop_type": "eos",
        "stopping_word": "",
    }
    assert (timings["prompt_n"], timings["predicted_n"], timings["cache_n"]) == (37, 7, 0)
    assert post(speaker)["tokens"] == []


@pytest.mark.parametrize(
    ("body", "content", "stop_type", "word"),
    [
        ({"stop": ["y"]}, "x, ", "word", "y"),
        ({"n_predict": 2}, "x,", "limit", ""),
        ({"max_tokens": 2}, "x,", "limit", ""),
        ({"n_predict": 0}, "", "limit", ""),  # as llama.vim has a prompt read ahead
        ({"n_predict": -1}, "x, y\n)", "eos", ""),
        ({"n_predict": None, "prompt": None}, "x, y\n)", "eos", ""),
    ],
)
def test_ends(
    speaker: Server, body: dict[str, Any], content: str, stop_type: str, word: str
) -> None:
    answer = post(speaker, **body)
    assert (answer["content"], answer["stop_type"]) == (content, stop_type)
    assert answer["stopping_word"] == word
    *pieces, last = events(speaker, **body)
    assert "".join(event["content"] for event in pieces) == content
    same = ("stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "has_new_line")
    assert [last[name] for name in same] == [answer[name] for name in same]


def test_events(speaker: Server) -> None:
    *pieces, last = events(speaker)
    assert [event["stop"] for event in [*pieces, last]] == [False] * len(pieces) + [True]
    assert (last["content"], last["tokens"]) == ("", [])
    assert [t for event in pieces for t in event["tokens"]] == [*map(ord, "x, y\n)"), 0]
    for event in pieces:
        assert set(event) == {
            *("index", "content", "tokens", "stop", "tokens_predicted", "tokens_evaluated")
        }
    counts = [event["tokens_predicted"] for event in pieces]
    assert counts == sorted(counts)
    assert counts[-1] == last["tokens_predicted"] == 7
    timed = events(speaker, timings_per_token=True)
    assert all(event["timings"]["prompt_n"] == 37 for event in timed)


def test_as_llama_vim_asks(speaker: Server) -> None:
    body = {
        "input_extra": FILES,
        "prompt": "a",
        "n_predict": 64,
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.9,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n", "timings/no", "content/no", "truncated"],
    }
    response = speaker.http.post("/infill", json={**GAP, **body})
    assert response.json() == {"content": "x, y\n)", "timings/prompt_n": 56, "truncated": False}
    named = set(response.headers["x-unsupported-params"].split(", "))
    assert {"n_indent", "samplers"} <= named
    assert not {"cache_prompt", "n_predict", "input_extra"} & named
    *_, last = events(speaker, **body)
    assert last == {"content": "", "timings/prompt_n": 56, "truncated": False}


def test_what_an_answer_has_no_place_for_is_named(speaker: Server) -> None:
    body = {**GAP, "n": 3, "n_probs": 5, "suffix": "x", "echo": True}
    response = speaker.http.post("/infill", json=body)
    assert set(response.headers["x-unsupported-params"].split(", ")) == {
        *("n", "n_probs", "suffix", "echo")
    }
    assert response.json()["content"] == "x, y\n)"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_prefix": 3}, "input_prefix"),
        ({"prompt": ["a"]}, "prompt"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_extra": [{}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": "ok"}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": 123, "text": "abc"}]}, "input_extra[0].filename"),
        ({"input_suffix": "x" * 10_000_00}, "input_suffix"),
        ({"prompt": "x" * 5000}, "prompt"),
        ({"n_predict": -2}, "n_predict"),
        ({"temperature": "hot"}, "temperature"),
        ({"response_fields": "content"}, "response_fields"),
        ({"model": "other"}, "model"),
    ],
)
def test_bad_input(speaker: Server, body: dict[str, Any], param: str) -> None:
    content, headers = json.dumps({**GAP, **body}), {"Content-Type": "application/json"}
    response = speaker.http.post("/infill", content=content, headers=headers)
    assert response.status_code == (404 if param == "model" else 400), response.text
    assert response.json()["error"]["param"] == param


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
NAMES = ("input_prefix", "input_suffix", "input_extra", "prompt", "response_fields", "stop", "n")


@examples(60)
@given(body=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), JSON))
def test_any_json(speaker: Server, body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    response = speaker.http.post("/infill", content=json.dumps(body), headers=headers)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["message"]


@examples(40)
@given(pieces=st.lists(st.text("ab\n", max_size=3), min_size=1, max_size=6))
def test_any_cut_of_the_text(cut: list[list[str]], server: Server, pieces: list[str]) -> None:
    cut[:] = [pieces]
    text = "".join(pieces)
    assert post(server)["content"] == text
    assert "".join(event["content"] for event in events(server)) == text


@pytest.fixture(scope="module")
def cut() -> list[list[str]]:
    return [[]]


@pytest.fixture(scope="module")
def server(cut: list[list[str]]) -> Iterator[Server]:
    with coder(QWEN, lambda prompt: cut[0]) as running:
        yield running
