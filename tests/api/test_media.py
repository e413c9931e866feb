"""Pictures, sounds and videos in chats, over HTTP: where they stand, what is refused."""

import base64
import io
import struct
import wave
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from enginebay.contract.media import Modality
from enginebay.testing.media import MEDIA, sample
from tests.support import Server, plugins_with, scripted, scripted_config, serve

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}[<image>]{% elif p.type == 'text' %}"
    "{{ p.text }}{% endif %}{% endfor %}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}<assistant>"
)
"""Knows pictures, and drops sounds."""


def png(width: int = 8, height: int = 8, colour: str = "red") -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(written, "PNG")
    return written.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


RED, BLUE = data_url(png()), data_url(png(colour="blue"))


def image(url: str = RED, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def says(*content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content), **fields}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    """Three models: media as words in the text, a template that knows pictures, and text alone."""
    seeing = scripted(["red"], media=["image", "audio", "video"])
    parts = scripted(["red"], media=["image", "audio"], chat_template=TEMPLATE)
    plugins = plugins_with(seeing=seeing, parts=parts, blind=scripted(["red"]))
    entry = {"path": "."}
    config = scripted_config()
    models = [
        config.models[0].model_copy(update={"name": name, "backend": name, **entry})
        for name in ("seeing", "parts", "blind")
    ]
    with serve(config.model_copy(update={"models": models}), plugins) as server:
        yield dict.fromkeys(("seeing", "parts", "blind"), server)


@pytest.fixture(params=["seeing", "parts"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(servers: dict[str, Server]) -> Server:
    return servers["seeing"]


def explain(server: Server, model: str, *messages: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "messages": list(messages), **fields}
    answer = server.http.post(f"{CHAT}/explain", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refused(
    server: Server, *messages: Any, model: str = "seeing", status: int = 400, **fields: Any
) -> dict[str, Any]:
    body = {"model": model, "messages": list(messages), **fields}
    for path in (CHAT, f"{CHAT}/explain"):
        answer = server.http.post(path, json=body)
        assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return dict(error)


def placed(report: dict[str, Any]) -> str:
    """The prompt as tokens, each item as one character."""
    tokens = [token["text"] for token in report["tokens"]]
    for item in reversed(report["media"]):
        assert tokens[item["start"] : item["start"] + item["tokens"]] == [MEDIA] * item["tokens"]
        tokens[item["start"] : item["start"] + item["tokens"]] = [MEDIA]
    return "".join(tokens)


def test_items_stand_where_the_parts_stood(server: Server) -> None:
    # MM-2 MEDIA-3 LF-4 TAB-32
    asked = says(text("one"), image(RED), text("two"), image(BLUE), text("three"))
    report = explain(server, "seeing", asked)
    assert placed(report) == f"<user>one\n{MEDIA}\ntwo\n{MEDIA}\nthree\n<assistant>"
    assert report["prompt"] == "<user>one\n<image>\ntwo\n<image>\nthree\n<assistant>"
    assert [item["param"] for item in report["media"]] == [
        "messages[0].content[1]",
        "messages[0].content[3]",
    ]
    shown = explain(server, "parts", asked)
    assert placed(shown) == f"<user>one[{MEDIA}]two[{MEDIA}]three\n<assistant>"
    assert shown["prompt"] == "<user>one[<image>]two[<image>]three\n<assistant>"


@pytest.mark.parametrize(
    "part",
    [
        image(),
        {"type": "image_url", "image_url": RED},
        {"type": "input_image", "image_url": RED},
        {"type": "image", "image": RED},
        {"type": "image", "url": RED},
        {"type": "image", "image_url": {"url": RED}},
        {"type": "image", "source": {"type": "url", "url": RED}},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": RED.partition(",")[2]},
        },
        {"type": "image_url", "image_url": {"url": RED}, "uuid": "another's"},
    ],
)
def test_every_spelling_is_the_same(server: Server, model: str, part: dict[str, Any]) -> None:
    # MM-3 LF-7 MEDIA-2 TAB-30
    report = explain(server, model, says(text("see"), part))
    expected = explain(server, model, says(text("see"), image()))
    assert report["tokens"] == expected["tokens"]
    assert report["ignored"] == []


def test_images_of_ollama_alone(server: Server, model: str) -> None:
    for message in ({"images": [RED]}, {"images": [RED], "content": None}):
        report = explain(server, model, {"role": "user", **message})
        assert len(report["media"]) == 1


def test_images_of_ollama_come_before_the_text(server: Server, model: str) -> None:
    # LF-7: SillyTavern and Ollama's clients send these
    beside = {"role": "user", "content": "see", "images": [RED.partition(",")[2], BLUE]}
    report = explain(server, model, beside)
    assert placed(report) == placed(explain(server, model, says(image(), image(BLUE), text("see"))))
    assert report["media"][1]["param"] == "messages[0].images[1]"
    assert report["ignored"] == []


def wav(seconds: float) -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"\1\0" * int(16_000 * seconds))
    return written.getvalue()


SOUND = base64.b64encode(wav(0.5)).decode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": SOUND, "format": "mp3"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{SOUND}"}},
        {"type": "audio", "audio": f"data:audio/wav;base64,{SOUND}"},
    ],
)
def test_sounds(server: Server, model: str, part: dict[str, Any]) -> None:
    """Also where the template knows parts, but not these."""
    # LF-9 MM-4 MEDIA-4
    report = explain(server, model, says(text("hear"), part, text("it")))
    assert placed(report) == f"<user>hear\n{MEDIA}\nit\n<assistant>"
    assert report["media"][0]["type"] == "audio/wav"


def test_items_in_every_role(server: Server, model: str) -> None:
    # MEDIA-8
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    report = explain(
        server,
        model,
        says(text("s"), image(RED), role="system"),
        says(text("u"), image(BLUE)),
        {"role": "assistant", "tool_calls": [call]},
        says(image(RED), text("t"), role="tool", tool_call_id="1"),
        says(text("v")),
    )
    assert [item["param"] for item in report["media"]] == [
        "messages[0].content[1]",
        "messages[1].content[1]",
        "messages[3].content[0]",
    ]


def test_a_template_that_drops_an_item() -> None:
    """It is put into the text, and where that is dropped, too, the request is refused."""
    # MEDIA-8
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}\n{% endif %}{% endfor %}"
    )
    seeing = scripted(["x"], media=["image"], chat_template=template)
    with serve(scripted_config(), plugins_with(scripted=seeing)) as server:
        answer = says(text("a"), image(), role="assistant")
        error = refused(server, says(text("b")), answer, says(text("c")), model="scripted")
        assert error["param"] == "messages[1].content[1]"
        assert "writes this image not at all" in error["message"]


def test_a_template_that_writes_one_item_twice_and_drops_another() -> None:
    """As many as there should be, but not the same ones."""
    # MEDIA-8
    template = "{{ messages[0].content }}{{ messages[0].content }}"
    seeing = scripted(["x"], media=["image"], chat_template=template)
    with serve(scripted_config(), plugins_with(scripted=seeing)) as server:
        asked = says(text("a"), image()), says(text("b"), image(BLUE))
        error = refused(server, *asked, model="scripted")
        assert error["param"] == "messages[0].content[1]"
        assert "writes this image 2 times" in error["message"]


def test_a_template_that_writes_items_of_one_kind_only() -> None:
    """Then all are put into the text, each in its place; words stay words."""
    # MEDIA-8 MEDIA-20
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}"
        "{% endif %}{% endfor %}{% endif %}{% endfor %}"
    )
    seeing = scripted(["x"], media=["image", "audio"], chat_template=template)
    with serve(scripted_config(), plugins_with(scripted=seeing)) as server:
        sound = {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}}
        for pictures in range(1, 9):
            parts = [text("an <image>"), *[image()] * pictures, sound, text("what <image>?")]
            report = explain(server, "scripted", says(*parts))
            places = [f"messages[0].content[{at}]" for at in range(1, pictures + 2)]
            assert [item["param"] for item in report["media"]] == places


@pytest.mark.parametrize("word", ["<image>", "<audio>", "<image><image>"])
def test_words_that_look_like_placeholders_are_text(server: Server, model: str, word: str) -> None:
    # MEDIA-20
    tool = {"type": "function", "function": {"name": "f", "description": word}}
    asked = says(text(f"is {word} a tag?"), image(), text(word))
    report = explain(server, model, asked, tools=[tool])
    assert len(report["media"]) == 1
    prompt = placed(report)
    assert prompt.count(word) == 3
    assert f"is {word} a tag?" in prompt
    alone = explain(server, model, says(text(f"is {word} a tag?")))
    assert alone["media"] == []
    assert f"is {word} a tag?" in placed(alone)


def test_usage_counts_items(server: Server, model: str) -> None:
    # MM-9 MEDIA-6
    asked = [says(text("see"), image(), image(data_url(png(512, 512))))]
    for stream in (False, True):
        body = {"model": model, "messages": asked, "n": 2}
        if stream:
            with server.openai.chat.completions.create(
                **body, stream=True, stream_options={"include_usage": True}
            ) as chunks:
                usage = list(chunks)[-1].usage
        else:
            usage = server.openai.chat.completions.create(**body).usage
        details = usage.prompt_tokens_details.model_dump(exclude_none=True)
        assert details == {"cached_tokens": 0, "image_tokens": 4 + 8}
        report = explain(server, model, *asked)
        assert usage.prompt_tokens == report["prompt_tokens"] == len(report["tokens"])
    encoded = server.http.post("/v1/token/encode", json={"model": model, "text": asked}).json()
    tokenized = server.http.post("/tokenize", json={"model": model, "messages": asked}).json()
    assert tokenized["count"] == report["prompt_tokens"]
    assert encoded["length"] == report["prompt_tokens"] - len("<assistant>") * (model == "seeing")
    plain = server.http.post(CHAT, json={"model": model, "messages": [says(text("see"))]}).json()
    assert plain["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_what_each_model_takes(server: Server) -> None:
    # MM-1 MEDIA-10 TAB-30
    cards = {card["id"]: card for card in server.http.get("/v1/models").json()["data"]}
    takes = {name: card["architecture"]["input_modalities"] for name, card in cards.items()}
    assert takes == {
        "seeing": ["text", "image", "audio", "video"],
        "parts": ["text", "image", "audio"],
        "blind": ["text"],
    }
    for name, card in cards.items():
        assert card["architecture"]["output_modalities"] == ["text"]
        props = server.http.get("/props", params={"model": name}).json()["modalities"]
        assert props == {
            "vision": "image" in takes[name],
            "audio": "audio" in takes[name],
            "video": "video" in takes[name],
        }
        report = server.http.get(f"/v1/models/{name}/inspect").json()
        assert ("images" in report["capabilities"]) == props["vision"]


@pytest.mark.parametrize(
    ("message", "param", "kind"),
    [
        (says(text("x"), image("http://192.0.2.1/x.png")), "messages[0].content[1]", "image"),
        (says(image("")), "messages[0].content[0]", None),
        ({"role": "user", "content": "x", "images": ["AA=="]}, "messages[0].images[0]", "image"),
        (says({"type": "input_audio", "input_audio": {"data": SOUND}}),
         "messages[0].content[0]", "audio"),
        (says({"type": "video_url", "video_url": {"url": "data:,x"}}),
         "messages[0].content[0]", "video"),
    ],
)  # fmt: skip
def test_a_model_of_text_takes_none(
    server: Server, message: dict[str, Any], param: str, kind: str | None
) -> None:
    """Before anything is fetched."""
    # MM-1 MEDIA-13 TAB-33 FIX-1
    error = refused(server, message, model="blind")
    assert error["param"] == param
    if kind:
        assert error["message"] == f"this model takes text only; the {kind} cannot be used"
        assert error["code"] == "unsupported_modality"


def test_a_model_without_video(server: Server) -> None:
    part = {"type": "video_url", "video_url": {"url": "data:,x"}}
    error = refused(server, says(part), model="parts")
    assert "takes audio and image and text only" in error["message"]


_noise = io.BytesIO()
Image.effect_noise((64, 64), 90).save(_noise, "PNG")
NOISE = _noise.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is this large."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    crc = struct.pack(">I", zlib.crc32(header))
    data = b"\0\0\0\4IDAT" + bytes(8)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + crc + data


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"></svg>'


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url"}, "needs `image_url`"),
        ({"type": "image_url", "image_url": None}, "needs `image_url`"),
        ({"type": "image_url", "image_url": 5}, "needs `image_url`"),
        ({"type": "image_url", "image_url": []}, "needs `image_url`"),
        ({"type": "image_url", "image_url": {}}, "needs `image_url.url`"),
        ({"type": "image_url", "image_url": {"url": None}}, "needs `image_url.url`"),
        ({"type": "input_image", "file_id": "file-1"}, "keeps no files"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "needs `input_audio.url`"),
        (image("cat.png"), "http"),
        (image("/etc/passwd"), "http"),
        (image("file:///etc/passwd"), "file"),
        (image("data:image/png;base64"), "data URL"),
        (image("data:image/png;base64,$$$"), "base64"),
        (image(data_url(b"")), "empty"),
        (image(data_url(SVG, "image/svg+xml")), "SVG"),
        (image(data_url(b"<!doctype html><p>")), "HTML"),
        (image(data_url(b"%PDF-1.7")), "PDF"),
        (image("data:image/png;base64,iVBO\nRw0K"), "line break"),
        (image(data_url(SVG)), "SVG"),
        (image(data_url(bomb(31_623, 31_623))), "too many pixels"),
        ({"type": "audio", "audio": data_url(wav(1 / 16_000), "audio/wav")}, "sound"),
        (image(data_url(NOISE[: len(NOISE) // 2])), "damaged"),
        (image(data_url(wav(0.5))), "not read as a picture"),
        ({"type": "audio_url", "audio_url": RED}, "not read as a sound"),
        ({"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(0)).decode()}},
         "sound"),
    ],
)  # fmt: skip
def test_bad_items_are_refused_by_their_path(
    server: Server, part: dict[str, Any], words: str
) -> None:
    # MEDIA-14 MEDIA-15 MEDIA-19 MEDIA-32
    error = refused(server, says(text("x"), image(), part))
    assert error["param"] == "messages[0].content[2]"
    assert words in error["message"]
    fine = server.http.post(CHAT, json={"model": "seeing", "messages": [says(image())]})
    assert fine.status_code == 200


@pytest.mark.parametrize("type", ["image_embeds", "hologram", "input_file", "file"])
def test_other_parts_are_refused(server: Server, type: str) -> None:
    # MEDIA-14
    error = refused(server, says(text("x"), {"type": type, "file_id": "file-1"}))
    assert error["param"].startswith("messages[0].content[1]")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain,b%C3%A9"}},
        {"type": "input_file", "filename": "a.txt", "file_data": "data:;base64,YsOp"},
        {"type": "input_file", "filename": "a.txt", "file_data": "YsOp"},
    ],
)
def test_files_of_text(server: Server, part: dict[str, Any]) -> None:
    report = explain(server, "blind", says(text("read "), part))
    assert report["prompt"] == "<user>read a.txt:\nbé\n\n<assistant>"
    assert report["ignored"] == []


def test_files_of_anything_else(server: Server) -> None:
    for data, words in ((b"\xff\xfe", "not text"), (b"a\0", "not text"), (None, "base64")):
        sent = "data:;base64,%" if data is None else data_url(data, "application/pdf")
        error = refused(server, says({"type": "file", "file": {"file_data": sent}}), model="blind")
        assert error["param"] == "messages[0].content[0]"
        assert words in error["message"]


def test_options(server: Server) -> None:
    # MEDIA-11 MEDIA-18
    large = data_url(png(1024, 512))
    assert explain(server, "seeing", says(image(large)))["media"][0]["tokens"] == 12
    small = explain(
        server, "seeing", says(image(large)), mm_processor_kwargs={"max_pixels": 65_536}
    )
    assert small["media"][0]["tokens"] == 5
    assert small["media"][0]["options"] == {"max_pixels": 65_536}
    low = explain(server, "seeing", says(image(large, detail="low")))
    assert low["media"][0]["tokens"] == 8
    both = explain(
        server,
        "seeing",
        says(image(large, detail="low")),
        mm_processor_kwargs={"max_pixels": 65_536},
    )
    assert both["media"][0]["options"] == {"max_pixels": 65_536}
    for bad in ({"depth": 3}, {"max_pixels": "9"}, {"max_pixels": -1}, {"max_pixels": 10**12}):
        error = refused(server, says(image()), mm_processor_kwargs=bad)
        assert error["param"] == f"mm_processor_kwargs.{next(iter(bad))}"
    error = refused(server, says(image(detail="huge")))
    assert error["param"] == "messages[0].content[0].image_url.detail"


@pytest.mark.parametrize("kind", ["imgae", ""])
def test_options_of_media_that_do_not_exist(server: Server, kind: str) -> None:
    error = refused(server, says(image()), media_io_kwargs={kind: {"max_pixels": 9}})
    assert error["message"] == "there are no such media; there are image, audio, video"
    assert error["param"].startswith("media_io_kwargs.")


def test_options_of_other_media(server: Server) -> None:
    error = refused(server, says(image()), media_io_kwargs={"audio": {"max_pixels": 9}})
    assert error["param"] == "media_io_kwargs.audio.max_pixels"
    assert error["message"] == "it is an option of image and video"


@pytest.mark.parametrize("kinds", [["audio"], ["audio", "image"]])
def test_a_detail_that_the_model_cannot_heed(kinds: list[Modality]) -> None:
    hearing = scripted(["x"], media=kinds)
    with serve(scripted_config(), plugins_with(scripted=hearing)) as server:
        part = {"type": "input_audio", "input_audio": {"data": SOUND, "detail": "low"}}
        answer = server.http.post(CHAT, json={"messages": [says(part)]})
        named = answer.headers["x-unsupported-params"]
        assert named == "messages[0].content[0].input_audio.detail"


def test_items_are_not_truncated(server: Server, model: str) -> None:
    # MEDIA-21
    asked = says(text("word " * 50), image(), text("end"))
    error = refused(server, asked, truncate_prompt_tokens=5)
    assert error["param"] == "truncate_prompt_tokens"
    report = explain(server, model, asked, truncate_prompt_tokens=60)
    assert placed(report).count(MEDIA) == 1
    assert report["truncated_tokens"] > 0


def test_an_item_that_does_not_fit(server: Server) -> None:
    # MEDIA-17
    body = {"model": "seeing", "messages": [says(text("x" * 4075), image())]}
    error = server.http.post(CHAT, json=body).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "4 are of kind image" in error["message"]


def test_too_many_items(server: Server) -> None:
    # MEDIA-17
    error = refused(server, says(*[image()] * 17))
    assert error["param"] == "messages[0].content[16]"
    assert "the most are 16" in error["message"]
    refused(server, says(*[image()] * 300))


def test_logprobs_of_such_a_prompt(server: Server) -> None:
    # MEDIA-21
    error = refused(server, says(image()), prompt_logprobs=1)
    assert error["param"] == "prompt_logprobs"


def test_the_kinds_of_sample() -> None:
    assert sample("image", 1).key != sample("image", 2).key
