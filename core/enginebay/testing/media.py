"""Promise 11: media in prompts."""

import asyncio
import io
import math
import struct
import wave
from collections.abc import Sequence
from dataclasses import replace

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.media import Media, MediaPrompt, Modality, PlainText
from enginebay.contract.types import GenerationRequest
from enginebay.media.pictures import decode_picture
from enginebay.media.sound import decode_sound
from enginebay.media.video import decode_video
from enginebay.testing.probe import GREEDY, Probe, expect

MEDIA = "\ufffc"
"""Unicode's object replacement character: the token of an item to a scripted engine."""

_SIDE = 96
_RATE = 16_000


async def check_media(probe: Probe) -> None:
    """Promise 11, for pictures and sounds."""
    if probe.info.chats:
        return
    for kind in ("image", "audio"):
        if kind in probe.info.modalities:
            first, second = sample(kind, 1), sample(kind, 2)
            await _check_spans(probe, first, second)
            await _check_garbage(probe, kind)
            await _check_answers(probe, first, second)


def sample(kind: Modality, number: int) -> Media:
    """A picture of a coloured square, or a second of a tone; another one for another number."""
    if kind == "image":
        return Media(kind="image", data=_picture(number), type="image/png")
    return Media(kind="audio", data=_tone(220 * number), type="audio/wav")


async def _check_spans(probe: Probe, first: Media, second: Media) -> None:
    prompt = await _tokenized(probe, ["One: ", first, " Two: ", second, " Which?"])
    end = 0
    for span in prompt.spans:
        expect(span.tokens > 0, 11, f"a span of {span.tokens} tokens")
        expect(
            span.start >= end, 11, f"a span starts at {span.start}, the one before ends at {end}"
        )
        end = span.end
    expect(end <= len(prompt.token_ids), 11, "a span ends behind the prompt")
    keys = list(dict.fromkeys(span.media.key for span in prompt.spans))
    expect(keys == [first.key, second.key], 11, "the spans are not those of the items, in order")
    again = await _tokenized(probe, ["One: ", first, " Two: ", second, " Which?"])
    expect(again == prompt, 11, "the same prompt has other tokens or spans the second time")
    placeholder = probe.info.placeholders.get(first.kind)
    if placeholder:
        plain = await _tokenized(probe, ["One: ", PlainText(placeholder), " Which?"])
        expect(not plain.spans, 11, f"{placeholder!r} as plain text stands for an item")


async def _check_garbage(probe: Probe, kind: Modality) -> None:
    garbage = Media(kind=kind, data=b"garbage", type="application/octet-stream")
    neighbour = await _request(probe, ["Look: ", sample(kind, 1), " What is it?"])
    try:
        await _tokenized(probe, ["One: ", sample(kind, 1), garbage])
    except InvalidRequestError as error:
        expect(error.param == "media.1", 11, f"bad media have the param {error.param!r}")
    else:
        expect(False, 11, "bytes that are no media were accepted")
    await probe.run(neighbour)


async def _check_answers(probe: Probe, first: Media, second: Media) -> None:
    """An item alone, in two choices, again, and beside another: the same answer."""
    pieces: list[str | Media] = ["Look: ", first, " What is it?"]
    request = await _request(probe, pieces)
    [alone] = await probe.run(request)
    for choice in await probe.run(replace(_named(request, "n"), n=2)):
        expect(choice.said == alone.said, 11, "two choices say other things than one alone")
    other = await _request(probe, ["Look: ", second, " What is it?"])
    [answer] = await probe.run(other)
    start = other.media[0].start
    cached = sum(delta.cached_tokens for delta in answer.deltas)
    expect(cached <= start, 11, f"{cached} tokens are cached of another item's prompt, not {start}")
    [again] = await probe.run(_named(request, "again"))
    expect(again.said == alone.said, 11, "a prompt with an item says other things the second time")
    [one], [two] = await asyncio.gather(
        probe.run(_named(request, "beside")), probe.run(_named(other, "beside"))
    )
    same = (one.said, two.said) == (alone.said, answer.said)
    expect(same, 11, "prompts with different items say other things together than alone")


def _named(request: GenerationRequest, suffix: str) -> GenerationRequest:
    return replace(request, request_id=f"{request.request_id}-{suffix}")


async def _tokenized(probe: Probe, pieces: Sequence[str | Media]) -> MediaPrompt:
    return await probe.backend.tokenize_media(pieces, add_special_tokens=True)


async def _request(probe: Probe, pieces: Sequence[str | Media]) -> GenerationRequest:
    prompt = await _tokenized(probe, pieces)
    request = await probe.request(GREEDY)
    return replace(request, prompt_token_ids=prompt.token_ids, media=prompt.spans)


def tokens_of(media: Media, number: int) -> int:
    """How many tokens a scripted engine gives an item, whose `number` in the prompt this is.

    It is decoded, so that one that cannot be read is an `InvalidRequestError`.
    """
    pixels = 0
    try:
        if media.kind == "image":
            width, height = decode_picture(media).size
            pixels = min(width * height, int(media.options.get("max_pixels", width * height)))
        elif media.kind == "audio":
            decode_sound(media, 16_000)
        else:
            decode_video(media, fps=1, frames=8)
    except InvalidRequestError as error:
        error.param = f"media.{number}"
        raise
    return 4 + pixels // 65_536


def _picture(number: int) -> bytes:
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (_SIDE, _SIDE), "white")
    colour = ("red", "blue", "green")[number % 3]
    ImageDraw.Draw(picture).rectangle((24, 24, 72, 72), fill=colour)
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()


def _tone(hertz: float) -> bytes:
    steps = (2 * math.pi * hertz * at / _RATE for at in range(_RATE))
    samples = b"".join(struct.pack("<h", int(12_000 * math.sin(step))) for step in steps)
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_RATE)
        file.writeframes(samples)
    return written.getvalue()
