"""The demo model looks at pictures, through the whole server, on hf and on llama.cpp."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from tests.support import SEEING_MODEL, Server, serve

pytest.importorskip("torch")
SHAPES = {"circle": "ellipse", "square": "rectangle"}


def drawn(shape: str, colour: str, side: int = 96) -> Image.Image:
    picture = Image.new("RGB", (side, side), "white")
    box = (side // 4, side // 4, 3 * side // 4, 3 * side // 4)
    getattr(ImageDraw.Draw(picture), SHAPES[shape])(box, fill=colour)
    return picture


def url(picture: Image.Image, format: str = "PNG") -> str:
    written = io.BytesIO()
    picture.save(written, format)
    data = base64.b64encode(written.getvalue()).decode()
    return f"data:image/{format.lower()};base64,{data}"


def says(picture: Image.Image, question: str, format: str = "PNG") -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url(picture, format)}}
    return {"role": "user", "content": [part, {"type": "text", "text": question}]}


RED_CIRCLE, BLUE_SQUARE = drawn("circle", "red"), drawn("square", "blue")
COLOUR, SHAPE, WHAT = "What colour is this?", "What shape is this?", "What do you see?"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo as GGUF, its eyes beside it."""
    pytest.importorskip("gguf")
    from demo.to_gguf import convert
    from demo.to_mmproj import convert_mmproj

    folder = tmp_path_factory.mktemp("pair")
    convert(SEEING_MODEL, folder / "demo.gguf", "f16")
    convert_mmproj(SEEING_MODEL, folder / "mmproj-demo.gguf")
    return folder / "demo.gguf"


@pytest.fixture(scope="module", params=["hf", "llamacpp"])
def seeing(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "hf":
        yield request.getfixturevalue("demo")
        return
    pytest.importorskip("llama_cpp")
    path = request.getfixturevalue("pair")
    model = {"name": "enginebay-demo", "backend": "llamacpp", "path": str(path)}
    model |= {"isolation": "thread", "options": {"threads": 1}}
    with serve(Config.model_validate({"models": [model]}), Plugins()) as server:
        yield server


def ask(server: Server, *messages: Any, **fields: Any) -> Any:
    fields = {"temperature": 0, "max_tokens": 24, **fields}
    return server.openai.chat.completions.create(
        model="enginebay-demo", messages=list(messages), **fields
    )


def answer(server: Server, *messages: Any, **fields: Any) -> str:
    return str(ask(server, *messages, **fields).choices[0].message.content).strip()


def test_colour_and_shape(seeing: Server) -> None:
    # MEDIA-1 MM-2 LF-7
    assert answer(seeing, says(RED_CIRCLE, COLOUR)) == "It is red."
    assert answer(seeing, says(BLUE_SQUARE, COLOUR)) == "It is blue."
    assert answer(seeing, says(RED_CIRCLE, SHAPE)) == "It is a circle."
    assert answer(seeing, says(BLUE_SQUARE, SHAPE)) == "It is a square."


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_formats(seeing: Server, format: str) -> None:
    # MEDIA-1
    assert answer(seeing, says(drawn("circle", "red", 256), COLOUR, format)) == "It is red."


def test_streams_and_choices(seeing: Server) -> None:
    # MEDIA-5 MM-11
    whole = ask(seeing, says(RED_CIRCLE, WHAT), n=3)
    texts = {str(choice.message.content).strip() for choice in whole.choices}
    assert texts == {"I see a red circle."}
    assert whole.usage.prompt_tokens_details.image_tokens == 36
    streamed: dict[int, str] = {}
    with ask(seeing, says(RED_CIRCLE, WHAT), n=2, stream=True) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                streamed[choice.index] = streamed.get(choice.index, "") + (
                    choice.delta.content or ""
                )
    assert {text.strip() for text in streamed.values()} == texts


def test_the_next_turn_finds_the_picture(seeing: Server) -> None:
    # MEDIA-7 MM-10
    picture = drawn("circle", "green", 112)
    first = ask(seeing, says(picture, COLOUR))
    said = {"role": "assistant", "content": first.choices[0].message.content}
    asked = {"role": "user", "content": SHAPE}
    later = ask(seeing, says(picture, COLOUR), said, asked)
    tokens = first.usage.prompt_tokens
    assert later.usage.prompt_tokens_details.cached_tokens >= tokens - 8
    other = ask(seeing, says(drawn("square", "green", 112), COLOUR))
    assert other.usage.prompt_tokens_details.cached_tokens < 10


def test_two_pictures(seeing: Server) -> None:
    # MEDIA-3: in their order; each is seen, and exchanged they are another prompt
    def logprob(first: Image.Image, second: Image.Image) -> float:
        parts = [*says(first, "")["content"][:1], *says(second, WHAT)["content"]]
        message = {"role": "user", "content": parts}
        asked = ask(seeing, message, logprobs=True, max_tokens=6)
        assert asked.usage.prompt_tokens_details.image_tokens == 72
        return sum(token.logprob for token in asked.choices[0].logprobs.content)

    one, two = logprob(RED_CIRCLE, BLUE_SQUARE), logprob(BLUE_SQUARE, RED_CIRCLE)
    assert one != two
    assert logprob(RED_CIRCLE, BLUE_SQUARE) == pytest.approx(one, abs=0.01)


def test_constraints(seeing: Server) -> None:
    # MEDIA-9 MM-11
    choice = answer(
        seeing,
        says(RED_CIRCLE, COLOUR),
        extra_body={"structured_outputs": {"choice": ["It is red.", "It is blue."]}},
    )
    assert choice == "It is red."
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "seen", "schema": schema}}
    seen = json.loads(
        answer(seeing, says(RED_CIRCLE, COLOUR), response_format=form, max_tokens=200)
    )
    assert seen["colour"] in ("red", "blue")


def test_calls(seeing: Server) -> None:
    # MEDIA-9 MM-11
    tool = {
        "type": "function",
        "function": {
            "name": "note",
            "parameters": {
                "type": "object",
                "properties": {"colour": {"enum": ["red", "blue", "green"]}},
                "required": ["colour"],
            },
        },
    }
    made = ask(
        seeing, says(RED_CIRCLE, COLOUR), tools=[tool], tool_choice="required", max_tokens=60
    )
    [call] = made.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["colour"] in ("red", "blue", "green")
    assert made.choices[0].finish_reason == "tool_calls"


def test_stops_and_logprobs(seeing: Server) -> None:
    # MEDIA-9
    stopped = ask(seeing, says(RED_CIRCLE, COLOUR), stop=["red"], logprobs=True, top_logprobs=3)
    assert str(stopped.choices[0].message.content).strip() == "It is"
    assert stopped.choices[0].finish_reason == "stop"
    assert all(len(token.top_logprobs) == 3 for token in stopped.choices[0].logprobs.content)


@pytest.mark.parametrize("word", ["<image>", "<__media__>", "<|image_pad|>", "[IMG]"])
def test_placeholders_in_text(seeing: Server, word: str) -> None:
    # MEDIA-20 MEDIA-46
    asked = says(RED_CIRCLE, COLOUR)
    asked["content"].append({"type": "text", "text": f" {word} {word}"})
    seen = ask(seeing, asked)
    assert seen.usage.prompt_tokens_details.image_tokens == 36
    plain = ask(seeing, {"role": "user", "content": f"Say {word}"})
    assert plain.usage.prompt_tokens_details.image_tokens is None
    completed = seeing.http.post(
        "/v1/completions",
        json={"prompt": f"{word}{word} red", "max_tokens": 4, "temperature": 0},
    )
    assert completed.status_code == 200
    ids = seeing.http.post("/tokenize", json={"prompt": word}).json()["tokens"]
    by_ids = seeing.http.post("/v1/completions", json={"prompt": ids * 3, "max_tokens": 4})
    assert by_ids.status_code == 200
    assert answer(seeing, says(RED_CIRCLE, COLOUR)) == "It is red."


def test_many_at_once(seeing: Server) -> None:
    """Every request gets the answer about its own picture, whatever runs beside it."""
    # MEDIA-33 MEDIA-35 MM-11
    things = [(s, c) for s in SHAPES for c in ("red", "blue", "green", "orange")]
    alone = [answer(seeing, says(drawn(*thing), WHAT)) for thing in things]

    async def together() -> list[str]:
        import asyncio

        async with seeing.async_openai() as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="enginebay-demo",
                        messages=[says(drawn(*thing, side=96), WHAT)],
                        temperature=0,
                        max_tokens=24,
                    )
                    for thing in things
                )
            )
        return [str(each.choices[0].message.content).strip() for each in answers]

    assert seeing.run(together()) == alone


def test_a_cut_picture_is_refused_by_its_path(seeing: Server) -> None:
    # MEDIA-15 MM-6
    noise = Image.effect_noise((64, 64), 90)
    data = base64.b64decode(url(noise).partition(",")[2])
    half = base64.b64encode(data[: len(data) // 2]).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{half}"}}
    content = [*says(RED_CIRCLE, COLOUR)["content"], part]
    body = {"messages": [{"role": "user", "content": content}]}
    refused = seeing.http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages[0].content[2]"
    assert answer(seeing, says(RED_CIRCLE, COLOUR)) == "It is red."
