"""Pictures and sounds as tokens: spans, words around them, what is refused, what is kept."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from enginebay import (
    Chunk,
    InvalidRequestError,
    Media,
    MediaLimits,
    MediaSpan,
    PlainText,
    UnsupportedModalityError,
)
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.media import MediaStore
from enginebay_llamacpp.placeholders import placeholder
from enginebay_llamacpp.runner import LlamaRunner
from enginebay_llamacpp.tokenizer import Tokenizer
from tests.backends.gguf_models import SPECIAL_TOKENS, write_llama
from tests.backends.llamacpp import asked, load
from tests.backends.mmproj_models import PAIRS, write_mlp, write_pair
from tests.backends.mtmd_reference import picture, sound
from tests.run import Run

BOS = SPECIAL_TOKENS.index("<|bos|>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for kind in PAIRS:
        write_pair(kind, folder / kind)
    return folder


@pytest.fixture
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[LlamaCppEngine]:
    engine = load(folder / request.param)
    yield engine
    engine.close()


def of(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("engine", [kind], indirect=True)


def tokens(engine: LlamaCppEngine, *pieces: str | Media, outer: bool = True) -> list[int]:
    return list(engine.tokenize_media(pieces, add_special_tokens=outer).token_ids)


def runner_of(engine: LlamaCppEngine) -> LlamaRunner:
    runner = engine._runner
    assert isinstance(runner, LlamaRunner)
    return runner


def store(engine: LlamaCppEngine) -> MediaStore:
    assert engine._media is not None
    return engine._media


@of("llava tiles")
def test_spans_are_those_of_the_tiles(engine: LlamaCppEngine) -> None:
    # MEDIA-3
    first, second = picture(1), picture(2, 64, 64)
    prompt = engine.tokenize_media(["ab", first, "c", second], add_special_tokens=True)
    assert prompt.spans == (
        MediaSpan(3, 64, first),
        MediaSpan(67, 64, first, 64),
        MediaSpan(131, 64, first, 128),
        MediaSpan(196, 64, second),
    )
    assert [*prompt.token_ids[:3], prompt.token_ids[195]] == tokens(engine, "ab", "c")
    assert len(prompt.token_ids) == 260


@of("qwen2vl")
def test_the_words_around_an_item_are_the_models(engine: LlamaCppEngine) -> None:
    prompt = engine.tokenize_media([picture(1)], add_special_tokens=False)
    [span] = prompt.spans
    before, behind = prompt.token_ids[: span.start], prompt.token_ids[span.end :]
    assert engine.detokenize(before) == "<|vision_start|>"
    assert engine.detokenize(behind) == "<|vision_end|>"
    assert span.tokens == 6 * 4


@of("llava")
def test_special_tokens_around_and_in_text(engine: LlamaCppEngine) -> None:
    # MEDIA-20 MM-6
    text = "<|user|><|eos|>"
    assert tokens(engine, text, picture(1))[:3] == [BOS, 3, 1]
    assert tokens(engine, text, outer=False) == [3, 1]
    assert tokens(engine, picture(1), text)[0] == BOS
    plain = tokens(engine, PlainText(text), picture(1), outer=False)[:-64]
    assert min(plain) > 3
    assert engine.detokenize(plain) == text


@of("llava")
def test_placeholders_are_tokens_that_end_nothing(engine: LlamaCppEngine) -> None:
    prompt = engine.tokenize_media([picture(1)], add_special_tokens=False)
    [token] = set(prompt.token_ids)
    assert token in engine._special_token_ids - engine._eos_token_ids


@of("qwen2a")
def test_long_sound_has_a_tile_for_each_30_seconds(engine: LlamaCppEngine) -> None:
    long = sound(1, 31)
    prompt = engine.tokenize_media([long], add_special_tokens=True)
    assert [(span.tokens, span.first) for span in prompt.spans] == [(750, 0), (750, 750)]


@of("qwen2vl")
def test_max_pixels_makes_a_picture_smaller(engine: LlamaCppEngine) -> None:
    # MEDIA-11
    def count(media: Media) -> int:
        return sum(s.tokens for s in engine.tokenize_media([media], add_special_tokens=True).spans)

    assert engine.info.media_options == {"max_pixels"}
    whole = count(picture(1, 256, 128))
    assert count(picture(1, 256, 128, max_pixels=256 * 128)) == whole == 16 * 8
    assert count(picture(1, 256, 128, max_pixels=256 * 32)) == whole // 4
    assert 0 < count(picture(1, 256, 128, max_pixels=1)) < whole // 4
    for wrong in (0, -1, "big", 1.5):
        with pytest.raises(InvalidRequestError, match="max_pixels") as caught:
            count(with_max_pixels(wrong))
        assert caught.value.param == "media.0"


def with_max_pixels(value: int | float | str) -> Media:
    return Media(
        kind="image", data=picture(1).data, type="image/png", options={"max_pixels": value}
    )


ODD_PICTURES = [(1, 1), (2, 2), (1, 3000), (3000, 1), (1, 16384), (40, 40)]


@pytest.mark.parametrize("engine", ["llava", "llava tiles", "qwen2vl", "gemma3"], indirect=True)
def test_pictures_of_any_shape_are_read(engine: LlamaCppEngine) -> None:
    # MEDIA-16
    run = Run(engine)
    for number, (width, height) in enumerate(ODD_PICTURES):
        item = asked(engine, ["a", picture(1, width, height), "b"], str(number))
        if len(item.prompt_token_ids) < engine.info.context_length:
            run.add(item)
    run.finish()
    assert not run.errors
    assert len(run.deltas) >= 4


def refused(engine: LlamaCppEngine, media: Media, good: Media) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        engine.tokenize_media(["a", good, media], add_special_tokens=True)
    assert caught.value.param == "media.1"
    return caught.value


@of("qwen2a")
def test_sound_that_cannot_be_read(engine: LlamaCppEngine) -> None:
    # MEDIA-19 MEDIA-13
    good = sound(3)
    for seconds in (0.0, 1 / 16000, 2 / 16000, 0.009):
        assert "10 ms" in refused(engine, sound(1, seconds), good).message
    refused(engine, Media(kind="audio", data=sound(1).data[:40], type="audio/wav"), good)
    short = replace(sound(1, 2), limits=MediaLimits(seconds=1))
    assert "too long" in refused(engine, short, good).message
    assert isinstance(refused(engine, picture(1), good), UnsupportedModalityError)
    assert tokens(engine, sound(1, 0.01))


@of("llava")
def test_pictures_that_cannot_be_read(engine: LlamaCppEngine) -> None:
    # MEDIA-13 MEDIA-15
    good = picture(1)
    refused(engine, Media(kind="image", data=b"<svg/>", type="image/svg+xml"), good)
    refused(engine, Media(kind="image", data=good.data[:90], type="image/png"), good)
    small = Media(kind="image", data=good.data, type="image/png", limits=MediaLimits(pixels=9))
    assert small.key == good.key
    refused(engine, replace(picture(2), limits=MediaLimits(pixels=9)), good)
    assert isinstance(refused(engine, sound(1), good), UnsupportedModalityError)
    video = Media(kind="video", data=good.data, type="video/mp4")
    assert isinstance(refused(engine, video, good), UnsupportedModalityError)


@of("gemma3")
def test_a_picture_whose_tokens_do_not_fit_at_once(
    engine: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see each other; llama.cpp would end the process."""
    context = runner_of(engine)._context
    assert context.at_once == 1024
    rows = np.zeros((1025, 64), np.float32)
    with pytest.raises(ValueError, match="1024 are computed at once"):
        context.run_rows(
            rows, np.zeros((1, 1025), np.int32), [0] * 1025, [False] * 1025, causal=False
        )
    monkeypatch.setattr(store(engine), "_longest", 15)
    with pytest.raises(InvalidRequestError, match=r"16 tokens.*room for 15") as caught:
        engine.tokenize_media([picture(1)], add_special_tokens=True)
    assert caught.value.param == "media.0"


@of("llava")
def test_a_span_that_is_none_fails_its_request_alone(engine: LlamaCppEngine) -> None:
    good = asked(engine, ["a", picture(1), "b"], "good")
    wrong = replace(good.media[0], tokens=63)
    run = Run(
        engine, replace(good, request_id="bad", media=(wrong,), cache_salt="s"), good
    ).finish()
    assert "tokenize_media" in run.errors["bad"].message
    assert list(run.errors) == ["bad"]


@pytest.mark.parametrize("unified", [True, False])
def test_a_slot_that_ends_within_a_picture_is_copied_whole(folder: Path, unified: bool) -> None:
    engine = load(folder / "qwen2vl", kv_unified=unified)
    runner = runner_of(engine)
    item = asked(engine, ["ab", picture(1), "what is it?"])
    [span] = item.media
    begun, length = span.start + 5, len(item.prompt_token_ids)

    def run(slot: int, start: int, end: int) -> np.ndarray:
        chunk = Chunk(slot, start, item.prompt_token_ids[start:end], int(end == length), None, item)
        return np.array(runner.run([chunk]))

    run(0, 0, span.start)
    run(0, span.start, begun)
    runner.copy(0, 1, begun)
    for slot in (0, 1):
        run(slot, begun, span.end)
    assert np.array_equal(run(0, span.end, length), run(1, span.end, length))
    engine.close()


TEMPLATES = {
    "<|vision_start|><|image_pad|><|vision_end|>": "<|vision_start|><|image_pad|><|vision_end|>\n",
    "<|image_pad|><|vision_end|>": "{{ '<|image_pad|><|vision_end|>' }}",
    "<|image_pad|>": "{{ '<|vision_start|>' + '<|image_pad|>' }}",
    "<image>": "{{ '<image>' }}\n",
    "<__media__>": "<image> <__media__>",
    "(<image>./</image>)": "(<image>./</image>)",
    "<|vision_start|>": "{{ '<|vision_start|>' }}",
}


@pytest.mark.parametrize("written", TEMPLATES)
@of("qwen2vl")
def test_what_a_template_writes_for_a_picture(engine: LlamaCppEngine, written: str) -> None:
    pieces = store(engine).projector.examples()["image"]
    tokenizer = engine._tokenizer
    assert isinstance(tokenizer, Tokenizer)
    assert placeholder("image", pieces, tokenizer, ["", TEMPLATES[written]]) == written
    assert placeholder("image", pieces, tokenizer, ["{{ messages }}"]) is None


def test_the_placeholders_of_a_model(tmp_path: Path) -> None:
    write_mlp(tmp_path / "mmproj.gguf")
    engine = load(write_llama(tmp_path / "model.gguf", "{{ '<image>' }}"))
    assert engine.info.placeholders == {"image": "<image>"}
    engine.close()
