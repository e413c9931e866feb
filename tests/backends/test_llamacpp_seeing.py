"""A GGUF model that sees, through the whole server."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from enginebay import Media
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from tests.backends.gguf_models import write_llama
from tests.backends.mmproj_models import write_mlp
from tests.backends.mtmd_reference import picture
from tests.support import Server, serve

TEMPLATE = """{% for message in messages %}<|user|>
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}{% endfor %}"""
TOKENS = 64


@pytest.fixture(scope="module", params=["by the template", "by a mark"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    template = TEMPLATE if request.param == "by the template" else TEMPLATE.replace("<image>", "")
    write_llama(folder / "model.gguf", template)
    write_mlp(folder / "mmproj-model.gguf")
    model = {"name": "eyes", "backend": "llamacpp", "path": str(folder), "options": {"threads": 1}}
    with serve(Config.model_validate({"models": [model]}), Plugins()) as server:
        yield server


def part(media: Media) -> dict[str, Any]:
    url = f"data:{media.type};base64,{base64.b64encode(media.data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def ask(server: Server, *parts: dict[str, Any], **more: Any) -> Any:
    body = {
        "messages": [{"role": "user", "content": parts}],
        "temperature": 0,
        "max_tokens": 8,
        "ignore_eos": True,
        "logprobs": True,
        **more,
    }
    return server.http.post("/v1/chat/completions", json=body)


def said(answer: Any) -> list[float]:
    assert answer.status_code == 200, answer.text
    return [e["logprob"] for e in answer.json()["choices"][0]["logprobs"]["content"]]


def test_a_picture_is_seen(server: Server) -> None:
    # MEDIA-2 MEDIA-3 MEDIA-6 MEDIA-7 MEDIA-10 MM-1
    first, second = part(picture(1)), part(picture(2))
    answer = ask(server, text("a"), first, text("b"), second, text("?"))
    usage = answer.json()["usage"]
    assert usage["prompt_tokens_details"]["image_tokens"] == 2 * TOKENS
    exchanged = ask(server, text("a"), second, text("b"), first, text("?"))
    assert said(answer) != said(exchanged)
    again = ask(server, text("a"), first, text("b"), second, text("?"))
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 2 * TOKENS
    assert said(again) == pytest.approx(said(answer), abs=0.05)
    [model] = server.http.get("/v1/models").json()["data"]
    assert model["architecture"]["input_modalities"] == ["text", "image"]


def test_two_choices_and_a_stream_say_the_same(server: Server) -> None:
    # MEDIA-5
    parts = [part(picture(3)), text("What is it?")]
    whole = ask(server, *parts, n=2).json()["choices"]
    assert whole[0]["message"]["content"] == whole[1]["message"]["content"]
    body = {"model": "eyes", "max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True}}
    messages: Any = [{"role": "user", "content": parts}]
    stream = server.openai.chat.completions.create(messages=messages, stream=True, **body)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert streamed == whole[0]["message"]["content"]


@pytest.mark.parametrize("words", ["<image>", "<__media__>", "<|image_pad|>[IMG]", "<|eos|>"])
def test_placeholders_in_text_are_text(server: Server, words: str) -> None:
    # MEDIA-20 MM-6
    alone = ask(server, text(words)).json()["usage"]
    assert "image_tokens" not in alone["prompt_tokens_details"]
    beside = ask(server, text(words), part(picture(1)), text(words)).json()["usage"]
    assert beside["prompt_tokens_details"]["image_tokens"] == TOKENS


def test_a_schema_beside_a_picture(server: Server) -> None:
    # MEDIA-9
    schema = {"enum": ["red", "blue"]}
    form = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema}}
    answer = ask(
        server, part(picture(1)), text("?"), response_format=form, max_tokens=20, ignore_eos=False
    )
    assert answer.json()["choices"][0]["message"]["content"] in ('"red"', '"blue"')


def test_what_cannot_be_seen_is_refused(server: Server) -> None:
    # MEDIA-13 MEDIA-15 MEDIA-17 MEDIA-18
    good = part(picture(1))
    cut = picture(1)
    damaged = part(Media(kind="image", data=cut.data[: len(cut.data) // 2], type=cut.type))
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    for wrong in (damaged, sound):
        error = ask(server, good, text("and"), wrong)
        assert error.status_code == 400
        assert error.json()["error"]["param"].startswith("messages[0].content[2]")
    full = ask(server, *[good] * 9)
    assert full.status_code == 400
    assert full.json()["error"]["code"] == "context_length_exceeded"
    wrong = ask(server, good, text("?"), mm_processor_kwargs={"max_pixels": -1})
    assert wrong.json()["error"]["param"] == "mm_processor_kwargs.max_pixels"
    assert said(ask(server, good, text("?")))
