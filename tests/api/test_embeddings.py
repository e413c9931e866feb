"""`/v1/embeddings` over real HTTP, with OpenAI's client and without."""

import base64
import json
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest

from enginebay.config.schema import Config
from enginebay.testing import ScriptedEngine
from tests.support import Server, engine_backend, plugins_with, scripted, serve

CONTEXT = 16
AS_THEY_ARE = {"normalize": False}
USER = [{"role": "user", "content": "hi"}]


class EmbeddingEngine(ScriptedEngine):
    """Embeds a prompt as its length, its first and its last token, and minus a third."""

    def __init__(self) -> None:
        super().__init__(["never said"], context_length=CONTEXT)
        self.info = replace(self.info, embedding_size=4, generates=False)

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        if any(prompt[0] == ord("!") for prompt in prompts):
            raise RuntimeError("no memory")
        return [[float(len(p)), float(p[0]), float(p[-1]), -1 / 3] for p in prompts]


class WaitingEngine(EmbeddingEngine):
    """Says when it begins to embed, and waits until it may go on."""

    begun = threading.Event()
    may_go_on = threading.Event()
    calls = 0

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        type(self).calls += 1
        self.begun.set()
        assert self.may_go_on.wait(60)
        return super().embed(prompts)


class AdaptedEngine(EmbeddingEngine):
    def __init__(self) -> None:
        super().__init__()
        self.info = replace(self.info, adapters=("pirate",), generates=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    backends = {
        "embeds": engine_backend(EmbeddingEngine),
        "says": scripted(["ok"]),
        "both": engine_backend(AdaptedEngine),
        "waits": engine_backend(WaitingEngine),
    }
    models = [{"name": name, "backend": name, "path": "."} for name in backends]
    with serve(Config.model_validate({"models": models}), plugins_with(**backends)) as running:
        yield running


def embed(server: Server, input: Any, **more: Any) -> httpx2.Response:
    return server.http.post("/v1/embeddings", json={"input": input, "model": "embeds", **more})


def refusal(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_openais_client(server: Server) -> None:
    # It asks for base64 by itself.
    answer = server.openai.embeddings.create(
        model="embeds", input=["abc", "de"], extra_body=AS_THEY_ARE
    )
    assert (answer.object, answer.model) == ("list", "embeds")
    assert [(e.object, e.index) for e in answer.data] == [("embedding", 0), ("embedding", 1)]
    assert answer.data[0].embedding == pytest.approx([3, 97, 99, -1 / 3])
    assert answer.data[1].embedding == pytest.approx([2, 100, 101, -1 / 3])
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (5, 5)


def test_both_encodings_are_the_same_numbers(server: Server) -> None:
    for normalize in (True, False):
        of = {"normalize": normalize}
        numbers = embed(server, "abc", **of).json()["data"][0]["embedding"]
        packed = embed(server, "abc", encoding_format="base64", **of).json()["data"][0]
        unpacked = struct.unpack("<4f", base64.b64decode(packed["embedding"]))
        assert unpacked == struct.unpack("<4f", struct.pack("<4f", *numbers))
    assert numbers == [3, 97, 99, -1 / 3]


@pytest.mark.parametrize("route", ["/v1/embeddings", "/embeddings"])
def test_what_sillytavern_sends(server: Server, route: str) -> None:
    answer = server.http.post(route, json={"input": ["b", "a"], "model": "embeds"}).json()
    data = sorted(answer["data"], key=lambda item: item["index"])
    ratios = [item["embedding"][1] / item["embedding"][0] for item in data]
    assert ratios == pytest.approx([98, 97])


@pytest.mark.parametrize(
    ("input", "lengths"),
    [("abc", [3]), (["abc"], [3]), ([97, 98], [2]), ([[97], [97, 98]], [1, 2])],
)
def test_inputs_as_text_or_token_ids(server: Server, input: Any, lengths: list[int]) -> None:
    answer = server.openai.embeddings.create(
        model="embeds",
        input=input,
        encoding_format="float",
        dimensions=4,
        user="me",
        extra_body=AS_THEY_ARE,
    )
    assert [item.embedding[0] for item in answer.data] == lengths
    assert answer.usage.total_tokens == sum(lengths)


def test_many_inputs_stay_in_order(server: Server) -> None:
    inputs = [chr(number) for number in range(0x4E00, 0x4E00 + 2048)]
    answer = server.openai.embeddings.create(model="embeds", input=inputs, extra_body=AS_THEY_ARE)
    assert [chr(round(item.embedding[1])) for item in answer.data] == inputs
    assert [item.index for item in answer.data] == list(range(2048))


def test_an_input_may_fill_the_context(server: Server) -> None:
    assert embed(server, "x" * CONTEXT).json()["usage"]["prompt_tokens"] == CONTEXT
    for input, place in (("x" * 17, "input"), ([1] * 17, "input"), (["a", "x" * 17], "input[1]")):
        error = refusal(embed(server, input))
        assert (error["code"], error["param"]) == ("context_length_exceeded", place)
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai.embeddings.create(model="embeds", input="x" * 1000)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [0x110000]}, "input"),
        ({"input": [[1], [2**70]]}, "input[1]"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "all"}, "dimensions"),
        ({"input": "a", "model": 5}, "model"),
    ],
)
def test_wrong_bodies(server: Server, body: dict[str, Any], param: str) -> None:
    content = json.dumps({"model": "embeds", **body})
    error = refusal(server.http.post("/v1/embeddings", content=content))
    assert error["param"] == param
    assert embed(server, "still there").status_code == 200


def test_dimensions_that_are_possible_are_said(server: Server) -> None:
    assert "have 4 dimensions" in refusal(embed(server, "a", dimensions=3))["message"]


def test_models_that_make_none(server: Server) -> None:
    for model in ("says", "pirate"):
        error = refusal(embed(server, "a", model=model))
        assert (error["param"], "does not support embeddings" in error["message"]) == (
            "model",
            True,
        )
    assert refusal(embed(server, "a", model="nobody"), 404)["code"] == "model_not_found"


def test_an_embedding_model_generates_nothing(server: Server) -> None:
    for call in (
        lambda: server.openai.chat.completions.create(model="embeds", messages=USER),  # type: ignore[arg-type]
        lambda: server.openai.completions.create(model="embeds", prompt="hi"),
    ):
        with pytest.raises(openai.BadRequestError, match="use /v1/embeddings") as caught:
            call()
        assert caught.value.param == "model"


def test_a_model_may_do_both(server: Server) -> None:
    assert embed(server, "a", model="both").status_code == 200
    text = server.openai.completions.create(model="both", prompt="a").choices[0].text
    assert text == "never said"


def test_fields_that_mean_nothing_are_named(server: Server) -> None:
    response = embed(server, "a", input_type="query", dimensions=None)
    assert response.headers["x-unsupported-params"] == "input_type"


def test_a_failure_of_the_engine_fails_one_call(server: Server) -> None:
    error = refusal(embed(server, "!"), 500)
    assert error["message"] == "the engine failed to embed: RuntimeError: no memory"
    assert embed(server, "a").status_code == 200


def test_nothing_more_is_computed_for_a_client_that_left(server: Server) -> None:
    body = json.dumps({"input": ["a"] * 1000, "model": "waits"})
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}"
        client.sendall(f"{head}\r\n\r\n{body}".encode())
        assert WaitingEngine.begun.wait(60)
    WaitingEngine.may_go_on.set()
    assert embed(server, "z", model="waits").status_code == 200
    assert WaitingEngine.calls < 1000 / 64
