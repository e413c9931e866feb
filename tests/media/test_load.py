"""All media of a request: MEDIA-12, MEDIA-15, MEDIA-17, MEDIA-29, MM-3, MM-6."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.media import Media, MediaLimits, Modality
from enginebay.media.load import MediaLoader, MediaSource
from enginebay.media.policy import MediaPolicy
from tests.media.origin import Names, Origin, Visit, ok, origin, policy, redirect, unknown
from tests.media.samples import BOMBS, PNG, data_url, picture, tone, video, wav

Load = Callable[..., Awaitable[list[Media]]]


async def load(sources: Sequence[MediaSource], allowed: MediaPolicy | None = None) -> list[Media]:
    with closing(MediaLoader(allowed or policy(), resolve=Names())) as loader:
        return await loader.load(sources)


def sources(*urls: str, kind: Modality = "image") -> list[MediaSource]:
    """Each with its place as its param."""
    return [
        MediaSource(kind=kind, url=url, param=f"messages[0].content[{place}]")
        for place, url in enumerate(urls)
    ]


async def refusal(*urls: str, kind: Modality = "image", at: int = 0, **settings: object) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        await load(sources(*urls, kind=kind), policy(**settings))
    assert caught.value.status == 400
    assert caught.value.param == f"messages[0].content[{at}]"
    return caught.value.message


@pytest.fixture
async def pictures() -> AsyncIterator[Origin]:
    async with origin(a=ok(PNG), b=ok(picture("JPEG"), "Content-Type: text/plain")) as served:
        yield served


async def test_items_keep_their_order(pictures: Origin, tmp_path: Path) -> None:
    (tmp_path / "c.png").write_bytes(picture("BMP"))
    wanted = [
        MediaSource(kind="image", url=pictures.url("b"), param="", options={"max_pixels": 9}),
        MediaSource(kind="audio", url=data_url(wav(tone()), "audio/mp3"), param=""),
        MediaSource(kind="image", url=f"file://{tmp_path}/c.png", param=""),
        MediaSource(kind="video", url=data_url(video(frames=2)), param=""),
        MediaSource(kind="image", url=pictures.url("a"), param=""),
    ]
    limits = MediaLimits(pixels=1000)
    found = await load(wanted, policy(folder=tmp_path, limits=limits))
    assert [(item.kind, item.type) for item in found] == [
        ("image", "image/jpeg"),
        ("audio", "audio/wav"),
        ("image", "image/bmp"),
        ("video", "video/mp4"),
        ("image", "image/png"),
    ]
    assert found[0].options == {"max_pixels": 9}
    assert {item.limits for item in found} == {limits}
    assert await load([]) == []


async def test_the_same_picture_from_anywhere_has_one_key(pictures: Origin, tmp_path: Path) -> None:
    # MM-3, LF-7
    (tmp_path / "a.png").write_bytes(PNG)
    inline = data_url(PNG)
    urls = (pictures.url("a"), inline, inline.partition(",")[2], f"file://{tmp_path}/a.png")
    found = await load(sources(*urls), policy(folder=tmp_path))
    assert len({item.key for item in found}) == 1
    for kind in ("audio", "video"):  # LF-8, LF-9
        data = wav(tone(0.1)) if kind == "audio" else video(frames=2)
        (tmp_path / "item").write_bytes(data)
        pictures.answers["/item"] = ok(data)
        urls = (data_url(data), pictures.url("item"), f"file://{tmp_path}/item")
        found = await load(sources(*urls, kind=kind), policy(folder=tmp_path))
        assert [item.data for item in found] == [data] * 3


async def test_the_part_that_is_wrong_is_named(pictures: Origin) -> None:
    good, bad = pictures.url("a"), pictures.url("b")
    pictures.answers["/b"] = ok(b"", status="404 Not Found")
    assert "its server says 404" in await refusal(good, good, bad, good, at=2)


WRONG: dict[str, tuple[bytes, str]] = {
    "HTML with a picture's type": (b"<!DOCTYPE html><html></html>", "is HTML (text/html)"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is SVG (image/svg+xml)"),
    "PDF": (b"%PDF-1.7", "is PDF"),
    "TIFF": (b"II*\0" + bytes(9), "is TIFF"),
    "a video": (video(frames=2), "is MP4 (video/mp4), which is not read as a picture"),
    "nothing": (b"", "is empty"),
    **{name: (data, "the picture") for name, data in BOMBS.items()},
}


@pytest.mark.parametrize("name", WRONG)
async def test_attack_item(name: str, pictures: Origin) -> None:
    data, words = WRONG[name]
    pictures.answers["/a"] = ok(data, "Content-Type: image/png")
    assert words in await refusal(pictures.url("a"))
    assert words in await refusal(data_url(data))


async def test_a_picture_as_a_video() -> None:
    said = await refusal(data_url(PNG), kind="video")
    assert said == (
        "what was sent as a video is PNG (image/png), which is not read as a video; "
        "send QuickTime, MP4 or WebM"
    )


async def test_attack_300_pictures(pictures: Origin) -> None:
    # MEDIA-17
    said = await refusal(*[pictures.url("a")] * 300, at=16)
    assert "300 pictures, sounds and videos" in said
    assert "16 (server.max_media_items)" in said
    assert pictures.asked == []
    assert "the most are 0" in await refusal(data_url(PNG), items=0)


async def test_attack_much_together(pictures: Origin) -> None:
    """Each within the limit of an item."""
    size = len(PNG)
    three = [pictures.url("a")] * 3
    with pytest.raises(InvalidRequestError, match=f"together have more than {3 * size - 1} bytes"):
        await load(sources(*three), policy(request_bytes=3 * size - 1))
    with pytest.raises(InvalidRequestError, match="together"):
        await load(sources(*[data_url(PNG)] * 3), policy(request_bytes=3 * size - 1))
    assert len(await load(sources(*three), policy(request_bytes=3 * size))) == 3


async def test_attack_large_item(pictures: Origin) -> None:
    size = len(PNG)
    for url in (pictures.url("a"), data_url(PNG)):
        said = await refusal(url, item_bytes=size - 1)
        assert said == f"the picture has more than {size - 1} bytes"
        assert len(await load(sources(url), policy(item_bytes=size))) == 1


async def test_what_was_sent_is_looked_at_before_anything_is_fetched(pictures: Origin) -> None:
    await refusal(pictures.url("a"), data_url(b"<svg/>"), at=1)
    assert pictures.asked == []


async def test_items_are_fetched_together(pictures: Origin) -> None:
    there = asyncio.Barrier(3)

    async def wait_for_others(visit: Visit) -> None:
        await there.wait()
        visit.writer.write(ok(PNG))

    pictures.answers["/a"] = wait_for_others
    assert len(await load(sources(*[pictures.url("a")] * 3))) == 3


async def hang(visit: Visit) -> None:
    visit.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n\x89PNG")
    await visit.is_over()


async def test_the_first_error_closes_the_other_connections() -> None:
    async with origin(a=hang) as slow, origin() as quick:

        async def fail(visit: Visit) -> None:
            await slow.arrived.wait()
            visit.writer.write(ok(b"", status="500 Internal Server Error"))

        quick.answers["/b"] = fail
        said = await refusal(slow.url("a"), slow.url("a"), quick.url("b"), at=2)
        assert "its server says 500" in said
        await asyncio.wait_for(slow.left.wait(), 5)


async def silent(visit: Visit) -> None:
    await visit.is_over()


@pytest.mark.parametrize("answer", [silent, hang], ids=["before an answer", "within the body"])
async def test_a_request_that_is_cancelled_closes_the_connection(
    answer: Callable[[Visit], Awaitable[None]],
) -> None:
    # MEDIA-12
    async with origin(a=answer) as served:
        with closing(MediaLoader(policy(), resolve=Names())) as loader:
            task = asyncio.create_task(loader.load(sources(served.url("a"), served.url("a"))))
            await served.arrived.wait()
            assert not served.left.is_set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(served.left.wait(), 5)
            served.answers["/a"] = ok(PNG)
            assert len(await loader.load(sources(served.url("a")))) == 1


async def test_turns_are_given_back() -> None:
    """However fetches end."""
    async with origin(a=ok(b"<html>"), b=hang, c=redirect("c"), d=ok(PNG), x=b"") as served:
        allowed = policy(fetches=1, seconds=1)
        with closing(MediaLoader(allowed, resolve=Names())) as loader:
            for path in ("a", "b", "c", "x"):
                with pytest.raises(InvalidRequestError):
                    await loader.load(sources(served.url(path)))
            assert len(await loader.load(sources(served.url("d")))) == 1


SECRET = "s3cr3t"


async def test_nothing_that_is_secret_is_said(caplog: pytest.LogCaptureFixture) -> None:
    # MEDIA-29
    caplog.set_level(logging.INFO)
    said: list[str] = []
    answers = {
        "ok": ok(PNG),
        "no": ok(b"", status="404 Not Found"),
        "text": ok(f"{SECRET} {SECRET}".encode()),
        "to": redirect(f"http://10.0.0.1/?key={SECRET}"),
        "hang": hang,
        "broken": b"HTTP/1.1 200 OK\r\n" + SECRET.encode() + b"\r\n\r\n",
    }
    async with origin(**answers) as served:
        urls = [served.url(f"{path}?key={SECRET}") for path in answers]
        urls += [
            f"http://user:{SECRET}@pictures.example/",
            f"http://127.0.0.2:{served.port}/?key={SECRET}",
            f"http://[::1/?key={SECRET}",
            f"data:image/png;base64,{SECRET}!",
            f"data:,{SECRET}",
            f"file:///{SECRET}",
            f"/etc/{SECRET}",
        ]
        for url in urls:
            allowed = policy(seconds=1)
            [error] = await asyncio.gather(load(sources(url), allowed), return_exceptions=True)
            if isinstance(error, InvalidRequestError):
                said.append(f"{error.message} {error.param} {error.__cause__}")
                assert error.__suppress_context__
        unresolved = MediaLoader(policy(), resolve=unknown)
        with closing(unresolved), pytest.raises(InvalidRequestError) as caught:
            await unresolved.load(sources(f"http://{SECRET}.example/"))
        said.append(caught.value.message)
        port = str(served.port)
    assert len(said) == len(urls)
    for text in (*said, caplog.text):
        for secret in (SECRET, "127.0.0", "10.0.0.1", port, "PNG\r"):
            assert secret not in text
    assert SECRET not in repr(sources(f"http://a/{SECRET}"))
