"""Pictures and sound on the hf backend, against transformers' own processors and `generate`."""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from PIL import Image
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForMultimodalLM
from transformers.utils import is_torchvision_available

from enginebay import InvalidRequestError, Media, MediaLimits, PlainText, decode_sound
from enginebay.testing import check_backend
from enginebay_checkpoint.media_tokens import MediaTokenizer
from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_hf.engine import HFEngine
from enginebay_hf.media import processor
from enginebay_hf.native.runner import NativeRunner
from enginebay_hf.packed.runner import PackedRunner
from tests.backends import media_models
from tests.backends.conftest import assert_empty
from tests.backends.decoding_aside import goes_on, undecoded
from tests.backends.media_models import FAMILIES, make_media_model, picture, sound
from tests.backends.tiny import Run, load, request
from tests.effort import some

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

QUICK = ("llava", "gemma3", "qwen2_5_vl", "qwen2_audio")
SEES = {"gemma3": "item", "gemma4": "item in windows", "paligemma": "prompt"}
NATIVE = {"qwen3_5"}
WHOLE = {"paligemma"}


def count_encodings(engine: HFEngine, counts: list[int]) -> None:
    """Note from now on how many items each call of a tower has."""
    towers = engine._runner.media._towers
    encode = towers.encode

    def counted(kind: str, items: Any, tokens: int) -> Any:
        counts.append(len(items))
        return encode(kind, items, tokens)

    towers.encode = counted


class Model:
    """A folder, its engine, and the same in transformers."""

    def __init__(self, folder: Path, family: str, **options: Any) -> None:
        self.folder = make_media_model(folder, family)
        self.family = family
        self.kind = "audio" if "audio" in family else "image"
        self.engine = load(folder, batch_tokens=24, prefill_tokens=24, **options)
        self.encodings: list[int] = []
        count_encodings(self.engine, self.encodings)
        self.reference = AutoModelForMultimodalLM.from_pretrained(folder).eval()

    def item(self, seed: int) -> Media:
        return picture(seed, 40 + 8 * (seed % 3), 40) if self.kind == "image" else sound(seed)

    def pieces(self, *parts: str | int) -> list[str | Media]:
        """Texts, and items by their seeds, with what the template writes around them."""
        around = ("<start_of_image>", "<end_of_image>") if "qwen" in self.family else ("", "")
        pieces: list[str | Media] = []
        for part in parts:
            if isinstance(part, int):
                pieces += [around[0], self.item(part), around[1]]
            else:
                pieces.append(part)
        return pieces

    def request(self, pieces: Sequence[str | Media], id: str = "r", **more: Any) -> Any:
        more = {"max_tokens": 10, **more}
        prompt = self.engine.tokenize_media(pieces, add_special_tokens=True)
        made = request(list(prompt.token_ids), id=id, **more)
        return replace(made, media=prompt.spans)

    def greedy(self, pieces: Sequence[str | Media], tokens: int = 10) -> list[int]:
        """What transformers says to a prompt, placeholders left out as here."""
        return self.generated(self.inputs(pieces), tokens)

    def generated(self, inputs: Any, tokens: int = 10) -> list[int]:
        """What transformers says to what its processor made."""
        config = self.reference.config
        never = [getattr(config, f"{kind}_token_id", None) for kind in ("image", "audio", "video")]
        base = self.reference.base_model
        if hasattr(base, "rope_deltas"):
            base.rope_deltas = None
        output = self.reference.generate(
            **inputs,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=2,
            eos_token_id=None,
            suppress_tokens=[token for token in never if token is not None],
        )
        return output[0, inputs["input_ids"].shape[1] :].tolist()

    def inputs(self, pieces: Sequence[str | Media]) -> Any:
        processor = self.engine._media_tokenizer._prepare.__self__._processor  # as it was loaded
        placeholder = self.engine.info.placeholders[self.kind]
        items = [piece for piece in pieces if isinstance(piece, Media)]
        text = "".join(placeholder if isinstance(p, Media) else p for p in pieces)
        arguments: dict[str, Any] = {}
        if items and self.kind == "image":
            arguments["images"] = [Image.open(io.BytesIO(item.data)) for item in items]
        elif items:
            arguments["audio"] = [decode_sound(item, 16_000) for item in items]
        if not items:
            ids = self.engine.tokenize(text, add_special_tokens=True)
            ids = torch.tensor([ids])
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        made = processor(text=[text], return_tensors="pt", **arguments)
        if self.family in WHOLE:  # its processor adds words, which here the template would
            ids = self.engine.tokenize_media(pieces, add_special_tokens=True).token_ids
            made["input_ids"] = torch.tensor([ids])
            made["attention_mask"] = torch.ones_like(made["input_ids"])
            made["token_type_ids"] = torch.zeros_like(made["input_ids"])
            del made["labels"]
        return made


@pytest.fixture(scope="module", params=some(FAMILIES, QUICK))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    if request.param == "mistral3" and not is_torchvision_available():
        pytest.skip("torchvision makes its processor")
    return Model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("llava"), "llava")


def test_what_a_model_takes(model: Model) -> None:
    info = model.engine.info
    assert info.modalities - {"video"} == {model.kind}
    assert info.placeholders.keys() == info.modalities
    runner = model.engine._runner
    assert isinstance(runner, NativeRunner if model.family in NATIVE else PackedRunner)
    assert runner.media
    assert runner.media.sees == {kind: SEES.get(model.family, "past") for kind in info.modalities}


def test_prompts_are_those_of_transformers(model: Model) -> None:
    if model.family in WHOLE:
        pytest.skip("its processor adds words, which here the template would")
    pieces = model.pieces("the quick ", 1, " fox\n", 2, 3, " lazy dog")
    prompt = model.engine.tokenize_media(pieces, add_special_tokens=False)
    assert list(prompt.token_ids) == model.inputs(pieces)["input_ids"][0].tolist()
    items = [piece for piece in pieces if isinstance(piece, Media)]
    assert list(dict.fromkeys(span.media.key for span in prompt.spans)) == [m.key for m in items]
    row_id = next(iter(model.engine._runner.media._towers.row_ids.values()))
    inside = {place for span in prompt.spans for place in range(span.start, span.end)}
    assert inside == {i for i, token in enumerate(prompt.token_ids) if token == row_id}
    ends = [0, *(span.end for span in prompt.spans)]
    assert all(end <= span.start for end, span in zip(ends, prompt.spans, strict=False))


def test_greedy_text_is_that_of_generate(model: Model) -> None:
    # MEDIA-33, MEDIA-5, MEDIA-7: alone, beside others, cached, in several choices.
    prompts = {
        "one": model.pieces("what do you see, ", 1, "? the quick brown"),
        "two": model.pieces("over ", 1, " and ", 2, " the lazy dog"),
        "text": ["what do you hear, and what do you see?"],
        "again": model.pieces("what do you see, ", 1, "? another dog"),
    }
    if model.family in WHOLE:
        with pytest.raises(InvalidRequestError, match="media only: image"):
            Run(model.engine, model.request(prompts.pop("text")))
    wanted = {id: model.greedy(pieces) for id, pieces in prompts.items()}
    run = Run(model.engine)
    for id, pieces in prompts.items():
        run.add(model.request(pieces, id=id))
        run.steps(2)
    run.finish()
    assert {id: run.token_ids(id) for id in prompts} == wanted
    for id, pieces in prompts.items():
        alone = Run(model.engine, model.request(pieces, id=id, n=2)).finish()
        assert [alone.token_ids(id, index) for index in range(2)] == [wanted[id]] * 2
    assert_empty(model.engine)


def test_what_was_seen_is_cached(model: Model) -> None:
    # MEDIA-7
    if model.family in NATIVE | WHOLE:
        pytest.skip("it reuses no prefixes")
    runner = model.engine._runner
    runner.media.clear()
    model.encodings.clear()
    first = model.pieces("you see ", 5, " the quick")
    Run(model.engine, model.request(first, id="a")).finish()
    assert model.encodings == [1]
    run = Run(model.engine, model.request([*first, " brown fox"], id="b")).finish()
    delta = run.deltas["b", 0][0]
    span = model.request(first).media[-1]
    assert delta.cached_tokens >= span.end
    assert model.encodings == [1]
    assert run.token_ids("b") == model.greedy([*first, " brown fox"])
    other = model.pieces("you see ", 8, " the quick")
    run = Run(model.engine, model.request(other, id="c")).finish()
    start = model.request(other).media[0].start
    assert run.deltas["c", 0][0].cached_tokens <= start
    assert model.encodings == [1, 1]
    assert run.token_ids("c") == model.greedy(other)


@pytest.mark.thorough
async def test_keeps_the_promises_of_the_contract(model: Model) -> None:
    if model.family in WHOLE:
        pytest.skip("it answers no texts alone")
    await check_backend(lambda: load(model.folder), prompt="see the quick brown fox")


def test_preempted_prompts_go_on(tmp_path: Path) -> None:
    # MEDIA-37
    model = Model(tmp_path, "llava", context_length=96, cache_tokens=112)
    prompts = {str(seed): model.pieces("see ", seed, " the quick", seed + 1) for seed in range(3)}
    requests = [model.request(p, id=id, max_tokens=40) for id, p in prompts.items()]
    run = Run(model.engine, *requests).finish()
    assert not run.errors
    assert model.engine._scheduler.stats.preempted
    assert {id: run.token_ids(id) for id in prompts} == {
        id: model.greedy(pieces, 40) for id, pieces in prompts.items()
    }


def test_decoding_goes_on_while_items_are_encoded(llava: Model) -> None:
    # MEDIA-37
    runner = llava.engine._runner
    runner.media.clear()
    run = Run(llava.engine, llava.request(["the quick brown"], id="text")).steps(1)
    many = llava.pieces(*range(20, 26), " what do you see?")
    run.add(llava.request(many, id="many"))
    for _ in range(4):
        before, encodings = len(run.token_ids("text")), len(llava.encodings)
        run.steps(1)
        assert len(run.token_ids("text")) == before + 1
        assert len(llava.encodings) <= encodings + 1
    assert run.finish().token_ids("many") == llava.greedy(many)


def test_no_step_decodes_an_item(llava: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-9: what the processor made of items may be forgotten before they are encoded."""
    engine = load(llava.folder, batch_tokens=24, prefill_tokens=24)  # has not seen them
    many = llava.pieces(*range(40, 43), " what do you see?")
    text, asked = llava.request(["the quick"], id="text", max_tokens=40), llava.request(many)
    with undecoded(monkeypatch, processor) as decodes:
        run = Run(engine, text).steps(2)
        run.add(asked)
        goes_on(run, "text")
        decodes.set()
        assert run.finish().token_ids() == llava.greedy(many)
        assert not run.errors
    alone = Run(load(llava.folder, batch_tokens=24), llava.request(many)).finish()
    assert alone.token_ids() == llava.greedy(many)


def test_items_of_one_shape_are_encoded_together(llava: Model) -> None:
    runner = llava.engine._runner
    assert runner.media.batches == {"image"}
    engine = load(llava.folder, batch_tokens=256)
    counts: list[int] = []
    count_encodings(engine, counts)
    pieces = llava.pieces(31, " and ", 32, " and ", 33, " do you see?")
    run = Run(engine, llava.request(pieces)).finish()
    assert counts == [3]
    assert run.token_ids() == llava.greedy(pieces)


def test_placeholders_that_are_no_items_disturb_nobody(llava: Model) -> None:
    # MEDIA-46, MEDIA-20
    row_id = llava.engine._runner.media._towers.row_ids["image"]
    pieces = llava.pieces("see ", 1, " the quick")
    run = Run(llava.engine, llava.request(pieces, id="with"))
    run.add(request([5, row_id, row_id, 6], id="spoof", max_tokens=10, logprobs=5))
    run.add(request([5, 6], id="bias", max_tokens=10, logit_bias={row_id: 100.0}))
    run.finish()
    assert not run.errors
    assert run.token_ids("with") == llava.greedy(pieces)
    assert row_id not in run.token_ids("bias") + run.token_ids("spoof")


@pytest.mark.parametrize("text", ["<image>", "a <image> b", "<start_of_image>", "<bos>"])
def test_what_a_client_writes_is_text(llava: Model, text: str) -> None:
    # MEDIA-20
    pieces = ["see ", llava.item(1), " and ", PlainText(text), " what?"]
    prompt = llava.engine.tokenize_media(pieces, add_special_tokens=False)
    [span] = prompt.spans
    rest = prompt.token_ids[: span.start] + prompt.token_ids[span.end :]
    assert not set(rest) & set(range(24))
    assert llava.engine.detokenize(rest) == f"see  and {text} what?"


def test_a_placeholder_in_a_template_s_text_is_text(llava: Model) -> None:
    pieces = ["see <image>", llava.item(1), "<bos>"]
    prompt = llava.engine.tokenize_media(pieces, add_special_tokens=False)
    assert len(prompt.spans) == 1
    assert prompt.token_ids[-1] == 0


@pytest.mark.parametrize(
    "pieces", [[], [""], ["see"], [PlainText("<eos>")], [PlainText("a <bos> b"), "see"]]
)
def test_special_tokens_stand_around_any_prompt(pieces: list[str]) -> None:
    words = media_models.tokenizer()
    words.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 0), ("<eos>", 1)]
    )
    made = MediaTokenizer(Tokenizer(words), Mock(), {"image": "<image>"})
    bare, around = (
        made.tokenize(pieces, add_special_tokens=outer).token_ids for outer in (False, True)
    )
    assert around == (0, *bare, 1)
    assert not {0, 1}.intersection(bare)


def test_two_items_side_by_side(llava: Model) -> None:
    prompt = llava.engine.tokenize_media([llava.item(1), llava.item(2)], add_special_tokens=False)
    first, second = prompt.spans
    assert (first.end, first.media.key) == (second.start, llava.item(1).key)
    exchanged = Run(llava.engine, llava.request([llava.item(2), llava.item(1)], logprobs=1))
    straight = Run(llava.engine, llava.request([llava.item(1), llava.item(2)], logprobs=1))
    assert exchanged.finish().last().logprobs != straight.finish().last().logprobs  # MEDIA-3


@pytest.mark.parametrize(
    ("media", "says"),
    [
        (Media(kind="image", data=b"nonsense", type="image/png"), "format"),
        (Media(kind="image", data=picture(1).data[:200], type="image/png"), "damaged or cut"),
        (Media(kind="image", data=sound(1).data, type="audio/wav"), "WAV"),
        (picture(1, 8, 1608), "at most 200 times"),
        (picture(1, 1608, 8), "at most 200 times"),
        (sound(1), "takes no audio"),
        (replace(picture(1), options={"quality": 3}), "no option quality"),
        (replace(picture(1), options={"max_pixels": "1"}), "max_pixels must be a number"),
    ],
)
def test_items_that_cannot_be_read(llava: Model, media: Media, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        llava.engine.tokenize_media(["a", picture(1), media], add_special_tokens=False)
    assert caught.value.param == "media.1"


def test_no_processor_gets_more_pixels_than_a_picture_may_have(
    llava: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a square around a picture either, as LLaVA's makes one."""
    processor = llava.engine._media_tokenizer._prepare.__self__
    seen: list[tuple[int, int]] = []
    call = processor._processor.image_processor.preprocess

    def noted(images: Any, **arguments: Any) -> Any:
        seen.extend(image.size for image in images)
        return call(images, **arguments)

    monkeypatch.setattr(processor._processor.image_processor, "preprocess", noted)
    limits = MediaLimits(pixels=160 * 160)
    for width, height in ((160, 160), (320, 80), (40, 640)):
        media = replace(picture(3, width, height), limits=limits)
        llava.engine.tokenize_media([media], add_special_tokens=False)
    assert seen == [(160, 160), (160, 40), (10, 160)]


def test_what_is_kept_stays_within_its_limit(tmp_path: Path) -> None:
    # MEDIA-39
    folder = make_media_model(tmp_path, "llava")
    engine = load(folder, media_cache_mb=0)
    model_media = engine._runner.media
    seen = [picture(seed) for seed in range(4)]
    for each in seen:
        prompt = engine.tokenize_media(["see ", each], add_special_tokens=True)
        item = replace(request(list(prompt.token_ids), max_tokens=2), media=prompt.spans)
        assert not Run(engine, item).finish().errors
    assert [model_media.encoded(each) for each in seen] == [False, False, False, True]


def test_an_item_at_hand_is_not_prepared_again(tmp_path: Path) -> None:
    """However large its tensors are: the last turn's picture, while others have come since."""
    model = Model(tmp_path, "qwen2_5_vl")
    processor = model.engine._media_tokenizer._prepare.__self__
    made: list[Media] = []
    call = processor.call

    def noted(media: Media, text: str) -> Any:
        made.append(media)
        return call(media, text)

    processor.call = noted
    pieces = model.pieces("what do you see, ", 1, "? the quick brown")
    Run(model.engine, model.request(pieces, id="first")).finish()
    assert made == [model.item(1)]
    processor._kept.clear()
    later = [*pieces, " fox ", *model.pieces(2, " the lazy")]
    run = Run(model.engine, model.request(later, id="later")).finish()
    assert made == [model.item(1), model.item(2)]
    assert run.token_ids("later") == model.greedy(later)


def test_a_sound_is_never_cut_in_silence(tmp_path: Path) -> None:
    model = Model(tmp_path, "qwen2_audio")
    assert model.request([sound(1, 2.0)]).media
    with pytest.raises(InvalidRequestError, match="too long: this model hears the first 2 seconds"):
        model.request([sound(1, 2.1)])


def test_many_threads_tokenize_at_once(llava: Model) -> None:
    prompts = [llava.pieces("see ", seed, f" and {seed}") for seed in range(200, 216)]
    expected = [llava.request(pieces).prompt_token_ids for pieces in prompts]
    llava.engine._media_tokenizer._prepare.__self__._outlines.clear()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda p: llava.request(p).prompt_token_ids, prompts)) == expected
