"""Pictures on the backend exllamav2: the library's towers on a CPU, against transformers.

Rows of the acceptance lists: MEDIA-11, 20, 46, TAB-30.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from enginebay import (
    InvalidRequestError,
    Media,
    PlainText,
)
from tests.backends.decoding_aside import goes_on, undecoded
from tests.backends.exllamav2_asking import Model, ask, check_logprobs, prompt
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.backends.exllamav2_seeing import FAMILIES, make_seeing_model, picture, word_id
from tests.backends.test_exllamav2_engine import assert_empty
from tests.effort import some
from tests.run import Run, request

QUICK = ("pixtral", "qwen2_vl", "gemma3")


@pytest.fixture(scope="module", params=some(FAMILIES, QUICK))
def model(
    request: pytest.FixtureRequest,
    load_exllamav2: LoadExLlamaV2,
    tmp_path_factory: pytest.TempPathFactory,
) -> Model:
    return Model(tmp_path_factory.mktemp(request.param), request.param, load_exllamav2)


@pytest.fixture(scope="module")
def qwen(load_exllamav2: LoadExLlamaV2, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Its positions have axes, so it shows what others do, too."""
    return Model(tmp_path_factory.mktemp("qwen"), "qwen2_vl", load_exllamav2)


# What the model sees is what transformers says it sees.


def test_rows_are_those_of_transformers(model: Model) -> None:
    pictures = model.engine._model.pictures
    for media in (picture(1), picture(2, 96, 40)):
        made = pictures.embedding(media)
        family, (columns, lines) = pictures.family, pictures.prepare(media).grid
        rows = made.embeddings[family.own : made.length - family.own].float()
        if family.line_end:
            rows = rows.view(lines, columns + 1, -1)[:, :columns].flatten(0, 1)
        base = model.reference.model.base_model
        with torch.no_grad():
            theirs = base.get_image_features(**model.reference.pixels(media)).pooler_output
        theirs = torch.cat(list(theirs)) if isinstance(theirs, list | tuple) else theirs
        theirs = theirs.flatten(0, -2)
        assert (rows - theirs).abs().max() < 0.03 * theirs.std()


def test_logprobs_are_those_of_transformers_in_company_and_cached(model: Model) -> None:
    engine = model.engine
    asked = [
        ask(engine, ["see ", picture(1), " and ", picture(2, 64, 32), " ?"], id="two", logprobs=3),
        ask(engine, [picture(3), "what?"], id="first", logprobs=3),
        ask(engine, ["the quick brown fox"], id="text", logprobs=3),
        ask(engine, ["see ", picture(1), " and ", picture(1)], id="twice", logprobs=3),
    ]
    for _ in range(2):  # alone, so to say, and from the cache
        run = Run(engine)
        for each in asked:
            run.add(each)
            run.steps(2)
        run.finish()
        assert not run.errors
        for each in asked:
            check_logprobs(model, run, each)
    assert_empty(engine)


def test_a_picture_matters(qwen: Model) -> None:
    first, second = (
        Run(qwen.engine, ask(qwen.engine, ["see ", picture(n)], max_tokens=6)).finish()
        for n in (1, 2)
    )
    assert first.token_ids() != second.token_ids()


def test_no_step_decodes_a_picture(qwen: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-9: a decoded picture may be forgotten before it is encoded."""
    from enginebay_exllamav2.vision import pictures

    seeing = ask(qwen.engine, ["see ", picture(91), " and ", picture(92)], max_tokens=6)
    expected = Run(qwen.engine, seeing).finish().token_ids()
    known = qwen.engine._model.pictures
    for cache in (known._decoded, known._rows, known._in_use):
        cache.clear()
    text = ask(qwen.engine, ["the quick"], id="text", max_tokens=40)
    with undecoded(monkeypatch, pictures) as decodes:
        run = Run(qwen.engine, text).steps(3)
        run.add(seeing)
        goes_on(run, "text")
        decodes.set()
        run.finish()
    assert not run.errors
    assert run.token_ids() == expected


# Prompts.


def test_spans_count_rows_and_nothing_else(model: Model) -> None:
    engine, media = model.engine, picture(1)
    made = prompt(engine, "a ", media, " b ", picture(2), " c")
    row = engine._media.row_ids["image"]
    rows = [place for place, token in enumerate(made.token_ids) if token == row]
    assert rows == [place for span in made.spans for place in range(span.start, span.end)]
    assert all(token < engine.info.vocab_size for token in made.token_ids)
    text = engine.detokenize(made.token_ids)
    assert text.count(engine._model.pictures.prepare(media).text) == 2
    counts = [span.first for span in made.spans if span.media.key == media.key]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert prompt(engine, "a ", media, " b ", picture(2), " c") == made


def test_mistral_has_a_token_between_lines_and_one_at_the_end(
    load_exllamav2: LoadExLlamaV2, tmp_path: Path
) -> None:
    make_seeing_model(tmp_path, "pixtral")
    made = prompt(load_exllamav2(tmp_path, context_length=512), picture(1, 16, 32))
    row, line, end = (word_id(word) for word in ("[IMG]", "[IMG_BREAK]", "[IMG_END]"))
    lines = [row, row, line] * 3 + [row, row, end]
    assert list(made.token_ids) == lines
    assert [(span.start, span.tokens, span.first) for span in made.spans] == [
        (0, 2, 0),
        (3, 2, 2),
        (6, 2, 4),
        (9, 2, 6),
    ]


def test_what_a_text_spells_is_no_picture(model: Model) -> None:  # MEDIA-20, MEDIA-46
    engine, family = model.engine, model.engine._model.pictures.family
    words = {family.row, family.placeholder, "<$EMB_1000000000$>", "<$EMB_1000000001$>"}
    for word in sorted(words):
        for text in (word, PlainText(word)):
            made = prompt(engine, "see ", text, " and ", picture(1), text)
            assert {span.media.key for span in made.spans} == {picture(1).key}
            clean = prompt(engine, "see  and ", picture(1))
            assert sum(s.tokens for s in made.spans) == sum(s.tokens for s in clean.spans)
    asked = replace(request([engine._media.row_ids["image"]] * 40 + [1_000]), media=())
    with pytest.raises(InvalidRequestError):
        engine.add_request(asked)
    neighbour = ask(engine, ["see ", picture(1)], id="neighbour", max_tokens=8)
    alone = Run(engine, neighbour).finish().token_ids("neighbour")
    spelled = request([engine._media.row_ids["image"]] * 40, id="spelled", max_tokens=8)
    both = Run(engine, spelled, neighbour).finish()
    assert not both.errors
    assert both.token_ids("neighbour") == alone
    biased = replace(neighbour.sampling, logit_bias={engine._media.row_ids["image"]: 100.0})
    said = Run(engine, replace(neighbour, sampling=biased)).finish().token_ids("neighbour")
    assert engine._media.row_ids["image"] not in said


def test_bad_pictures_are_named(qwen: Model) -> None:
    engine = qwen.engine
    garbage = Media(kind="image", data=b"\x89PNG\r\n\x1a\n cut", type="image/png")
    sound = Media(kind="audio", data=b"RIFF", type="audio/wav")
    for bad, message in (
        (garbage, "picture"),
        (sound, "takes no audio"),
        (picture(1, 4096, 16), "one side may be at most 200"),
    ):
        with pytest.raises(InvalidRequestError, match=message) as caught:
            prompt(engine, "a", picture(1), bad)
        assert caught.value.param == "media.1"


@pytest.mark.parametrize("size", [(8, 8), (8, 80), (72, 8), (2048, 2048), (17, 33)])
def test_any_shape_is_scaled_to_what_the_tower_takes(model: Model, size: tuple[int, int]) -> None:
    engine = model.engine
    media = picture(4, *size)
    run = Run(engine, ask(engine, ["see ", media], max_tokens=1)).finish()
    assert not run.errors
    picture_shown = engine._model.pictures.prepare(media)
    assert engine._model.pictures.embedding(media).length == engine._model.pictures.family.length(
        *picture_shown.grid
    )


def test_max_pixels(model: Model) -> None:  # MEDIA-11
    media = picture(1, 64, 64)
    small = Media(kind="image", data=media.data, type=media.type, options={"max_pixels": 1024})
    whole, less = (
        sum(span.tokens for span in prompt(model.engine, each).spans) for each in (media, small)
    )
    takes = "max_pixels" in model.engine.info.media_options
    assert takes == (less < whole) == (model.family != "gemma3")


# Which models take pictures.


def test_a_model_that_sees_says_so(model: Model) -> None:  # TAB-30
    info = model.engine.info
    assert info.modalities == {"image"}
    assert info.placeholders["image"] in model.engine.info.chat_template


def text_only(engine: Any) -> bool:
    with pytest.raises(InvalidRequestError, match="text only"):
        prompt(engine, "a", picture(1))
    return not (engine.info.modalities or engine.info.placeholders or engine.info.media_options)


def test_vision_can_be_off(qwen: Model, caplog: pytest.LogCaptureFixture) -> None:  # TAB-30
    assert text_only(qwen.load(vision=False))
    assert not caplog.records


def test_a_draft_model_excludes_pictures(qwen: Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert text_only(qwen.load(draft_model=str(qwen.folder), draft_tokens=2))
    assert "unset draft_model" in caplog.text


def test_a_folder_without_the_weights_of_its_tower_serves_text(
    load_exllamav2: LoadExLlamaV2, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_seeing_model(tmp_path, "gemma3")
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    save_file({n: t for n, t in weights.items() if not n.startswith("vision_tower")}, file)
    with caplog.at_level(logging.WARNING):
        engine = load_exllamav2(tmp_path, context_length=512)
    assert text_only(engine)
    assert "no weights of the vision tower" in caplog.text
    assert not Run(engine, request([5, 6, 7])).finish().errors


def test_a_tower_with_another_activation_is_not_used(
    load_exllamav2: LoadExLlamaV2, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_seeing_model(tmp_path, "pixtral")
    file = tmp_path / "config.json"
    content = file.read_text().replace('"hidden_act": "silu"', '"hidden_act": "gelu"')
    file.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert text_only(load_exllamav2(tmp_path, context_length=512))
    assert "its vision tower has gelu, exllamav2's silu" in caplog.text
