"""Text to tokens and back over HTTP: `/v1/token/*` of TabbyAPI, `/tokenize` of vLLM."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2
import pytest

from enginebay.contract.engine import Engine
from enginebay.contract.types import ModelInfo
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    "{% if tools %}{{ tools[0].function.name }}{% endif %}{{ mood }}"
    "{% if add_generation_prompt %}!{% endif %}"
)
BOS = 1
USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


class WithBos(ScriptedEngine):
    """`<s>` is a token, the BOS, and all other characters are one each."""

    def __init__(self) -> None:
        super().__init__(["ok"])
        known = {name: getattr(self.info, name) for name in ModelInfo.__dataclass_fields__}
        special = {"bos_token": "<s>"}
        self.info = ModelInfo(**known | {"special_tokens": special, "chat_template": CHAT})

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        parts = re.split("(<s>)", text)
        ids = [BOS if p == "<s>" else p for p in parts]
        tokens = [t for p in ids for t in ([p] if isinstance(p, int) else map(ord, p))]
        return [BOS] * add_special_tokens + tokens

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return "".join("<s>" if i == BOS else chr(i) for i in token_ids)

    def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [BOS] * add_special_tokens + [*map(ord, text)]

    def detokenize_plain(self, token_ids: Sequence[int]) -> str:
        return self.detokenize([i for i in token_ids if i != BOS])


class NeverPlain(WithBos):
    """As a plugin of before."""

    tokenize_plain = Engine.tokenize_plain
    detokenize_plain = Engine.detokenize_plain


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    config = scripted_config()
    with serve(config, plugins_with(scripted=engine_backend(WithBos))) as running:
        yield running


def post(server: Server, path: str, **body: Any) -> dict[str, Any]:
    answer = server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert "x-unsupported-params" not in answer.headers
    result: dict[str, Any] = answer.json()
    return result


def tokens(text: str) -> list[int]:
    return WithBos().tokenize(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"text": "hi"}, [BOS, *tokens("hi")]),
        ({"text": "hi", "add_bos_token": False}, tokens("hi")),
        ({"text": "hi", "add_bos_token": None, "encode_special_tokens": None}, tokens("<s>hi")),
        ({"text": "<s>hi"}, tokens("<s>hi")),
        ({"text": "a<s>", "add_bos_token": False}, tokens("a<s>")),
        ({"text": "<s>", "encode_special_tokens": False}, [BOS, 60, 115, 62]),
        # as SillyTavern asks, dozens of times
        ({"text": "<s>", "add_bos_token": False, "encode_special_tokens": False}, [60, 115, 62]),
        ({"text": "", "add_bos_token": False, "encode_special_tokens": False}, []),
        ({"text": "hi", "decode_special_tokens": True, "model": "scripted"}, tokens("<s>hi")),
        ({"text": USER}, tokens("<s>user:hi;")),
        ({"text": USER, "add_bos_token": False}, tokens("user:hi;")),
        ({"text": USER, "template_vars": {"mood": "glad"}}, tokens("<s>user:hi;glad")),
        ({"text": [*USER, {"role": "assistant", "content": [{"type": "text", "text": "yo"}]}]},
         tokens("<s>user:hi;assistant:yo;")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_encode(server: Server, prefix: str, body: dict[str, Any], expected: list[int]) -> None:
    answer = post(server, f"{prefix}/token/encode", **body)
    assert answer == {"tokens": expected, "length": len(expected)}


def test_decode(server: Server) -> None:
    ids = tokens("<s>hi")
    assert post(server, "/v1/token/decode", tokens=ids) == {"text": "<s>hi"}
    assert post(server, "/v1/token/decode", tokens=ids, decode_special_tokens=False) == {
        "text": "hi"
    }
    assert post(server, "/v1/token/decode", tokens=[], add_bos_token=True) == {"text": ""}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": "hi"}, "<s>hi"),
        ({"prompt": "hi", "add_special_tokens": False, "model": "scripted"}, "hi"),
        ({"messages": USER}, "<s>user:hi;!"),
        ({"messages": USER, "add_generation_prompt": False}, "<s>user:hi;"),
        ({"messages": USER, "continue_final_message": True}, "<s>user:hi"),
        ({"messages": USER, "tools": [{"type": "function", "function": {"name": "look"}}],
          "chat_template_kwargs": {"mood": "glad"}}, "<s>user:hi;lookglad!"),
        ({"messages": USER, "chat_template": "default"}, "<s>user:hi;!"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_tokenize(server: Server, prefix: str, body: dict[str, Any], text: str) -> None:
    ids = tokens(text)
    answer = post(server, f"{prefix}/tokenize", **body)
    assert answer == {"count": len(ids), "max_model_len": 4096, "tokens": ids}
    answer = post(server, f"{prefix}/tokenize", return_token_strs=True, **body)
    assert "".join(answer["token_strs"]) == text
    assert post(server, f"{prefix}/detokenize", tokens=ids) == {"prompt": text, "content": text}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/token/encode", {}, "text"),
        ("/v1/token/encode", {"text": 3}, "text"),
        ("/v1/token/encode", {"text": []}, "text"),
        ("/v1/token/encode", {"text": [{"role": "robot"}]}, "text[0].role"),
        ("/v1/token/encode", {"text": "x" * 40_000}, "text"),
        ("/v1/token/encode", {"text": "x", "add_bos_token": "perhaps"}, "add_bos_token"),
        ("/v1/token/decode", {}, "tokens"),
        ("/v1/token/decode", {"tokens": "1"}, "tokens"),
        ("/v1/token/decode", {"tokens": [-1]}, "tokens[0]"),
        ("/v1/token/decode", {"tokens": [10**9]}, "tokens"),
        ("/v1/token/decode", {"tokens": [65] * 40_000}, "tokens"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": USER}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": USER, "chat_template": "{{ messages }}"}, "chat_template"),
        ("/tokenize", {"messages": USER, "continue_final_message": True,
                       "add_generation_prompt": True}, "continue_final_message"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [65] * 40_000}, "tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_done(server: Server, path: str, body: dict[str, Any], param: str) -> None:
    answer = server.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["message"]


def test_a_model_that_is_not_there(server: Server) -> None:
    answer = server.http.post("/v1/token/encode", json={"text": "x", "model": "other"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_what_has_no_effect_is_named(server: Server) -> None:
    answer = server.http.post("/v1/token/encode", json={"text": "x", "lang": "en"})
    assert answer.headers["x-unsupported-params"] == "lang"
    body = {"prompt": "x", "tools": [], "media_io_kwargs": {}}
    answer = server.http.post("/tokenize", json=body)
    assert answer.headers["x-unsupported-params"] == "media_io_kwargs, tools"


@pytest.mark.parametrize("strict", [False, True])
def test_a_backend_that_recognises_special_tokens_in_every_text(strict: bool) -> None:
    config = scripted_config(server={"strict_params": strict})
    with serve(config, plugins_with(scripted=engine_backend(NeverPlain))) as server:
        encode = {"text": "<s>", "add_bos_token": False, "encode_special_tokens": False}
        decode = {"tokens": [BOS, 65], "decode_special_tokens": False}
        encoded = server.http.post("/v1/token/encode", json=encode)
        decoded = server.http.post("/v1/token/decode", json=decode)
        if strict:
            assert encoded.json()["error"]["param"] == "encode_special_tokens"
            assert decoded.json()["error"]["param"] == "decode_special_tokens"
        else:
            assert encoded.json()["tokens"] == [BOS]
            assert encoded.headers["x-unsupported-params"] == "encode_special_tokens"
            assert decoded.json()["text"] == "<s>A"
            assert decoded.headers["x-unsupported-params"] == "decode_special_tokens"


def test_a_model_without_a_chat_template(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["x"], engine={"chat_template": None})
    answer = server.http.post("/v1/token/encode", json={"text": USER})
    assert answer.status_code == 400
    assert "has no chat template" in answer.text
    assert post(server, "/v1/token/encode", text="hi")["length"] == 2


def test_many_at_once(server: Server) -> None:
    async def ask() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            return await asyncio.gather(
                *(client.post("/v1/token/encode", json={"text": "x" * n}) for n in range(60))
            )

    assert [answer.json()["length"] for answer in asyncio.run(ask())] == [*range(1, 61)]


def test_a_real_model_counts_what_it_is_asked(demo: Server) -> None:
    messages = [{"role": "user", "content": "What is 7 + 5? <|im_end|>"}]
    told = post(demo, "/tokenize", messages=messages, return_token_strs=True)
    body = {"messages": messages, "max_tokens": 1}
    answer = post(demo, "/v1/chat/completions", **body)
    assert answer["usage"]["prompt_tokens"] == told["count"]
    assert post(demo, "/detokenize", tokens=told["tokens"])["prompt"].count("<|im_end|>") == 2
    plain = {"text": "<|im_end|>", "add_bos_token": False, "encode_special_tokens": False}
    ids = post(demo, "/v1/token/encode", **plain)
    recognised = post(demo, "/v1/token/encode", text="<|im_end|>", add_bos_token=False)
    assert ids["length"] > recognised["length"] == 1
    assert post(demo, "/v1/token/decode", tokens=ids["tokens"])["text"] == "<|im_end|>"
    bare = {"tokens": recognised["tokens"], "decode_special_tokens": False}
    assert post(demo, "/v1/token/decode", **bare)["text"] == ""


@pytest.mark.wing("llama_server", "messages", "responses")
def test_a_prompt_has_the_tokens_of_its_answer(serve_scripted: ServeScripted) -> None:
    """Every route that counts them knows what the config does to a chat."""
    running = serve_scripted(["x"], continue_assistant=True)
    chat = {"model": "scripted", "messages": [*USER, {"role": "assistant", "content": "yo"}]}
    answer = running.http.post("/v1/chat/completions", json=chat).json()
    counts = [
        running.http.post("/tokenize", json=chat).json()["count"],
        *(
            running.http.post(path, json=body).json()["input_tokens"]
            for path, body in (
                ("/v1/chat/completions/input_tokens", chat),
                ("/v1/messages/count_tokens", chat),
                ("/v1/responses/input_tokens", {"input": chat["messages"]}),
            )
        ),
    ]
    assert counts == [answer["usage"]["prompt_tokens"]] * 4
