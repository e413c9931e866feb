"""Media in each way that a model of the hf backend may run, and what loading makes of folders."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForMultimodalLM
from transformers.utils import is_torchvision_available

from enginebay import BackendUnavailableError, Chunk, Media, MediaSpan, RunnerMemory
from enginebay_hf import choose
from enginebay_hf.choose_paged import paged_runner
from enginebay_hf.media import probe
from enginebay_hf.media.inputs import MediaInputs, Sees
from enginebay_hf.media.processor import Processor
from enginebay_hf.native.runner import NativeRunner
from enginebay_hf.packed.paged_runner import PagedRunner
from enginebay_hf.packed.runner import PackedRunner
from tests.backends.media_models import make_media_model, picture, sound, video
from tests.backends.paged import Captured, varlen_attn
from tests.backends.test_hf_lora import merged, save_adapter
from tests.backends.test_hf_media import Model
from tests.backends.tiny import Run, load, request
from tests.effort import some


def answers_as_generate(model: Model) -> None:
    """Prompts with items beside others, in several choices and seen before."""
    prompts = {
        "one": model.pieces("what do you see, ", 1, "? the quick brown"),
        "two": model.pieces("over ", 2, " and ", 1, " the lazy dog"),
        "text": ["what do you hear, and what do you see?"],
        "next": model.pieces("what do you see, ", 1, "? the quick brown fox"),
    }
    run = Run(model.engine)
    for id, pieces in prompts.items():
        run.add(model.request(pieces, id=id, n=2))
        run.steps(3)
    run.finish()
    for id, pieces in prompts.items():
        expected = model.greedy(pieces)
        assert [run.token_ids(id, index) for index in range(2)] == [expected] * 2, id


class _NothingMade(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten.lift_fresh.default, "a tensor of Python's numbers"
        return func(*args, **(kwargs or {}))


class StrictlyCaptured(Captured):
    """Refuses passes that make a tensor of Python's numbers, which CUDA does not capture."""

    def __call__(self, forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
        with _NothingMade():
            forward()
        return super().__call__(forward)


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> Captured:
    captured = StrictlyCaptured()
    monkeypatch.setattr(choose, "find_kernels", lambda device, dtype: [varlen_attn])
    monkeypatch.setattr(choose, "CudaCapture", lambda device: captured)
    monkeypatch.setattr(choose, "paged_runner", partial(paged_runner, page_size=8))
    return captured


@pytest.mark.parametrize("family", some(["llava", "qwen2_5_vl", "qwen3_vl"], ["qwen2_5_vl"]))
def test_over_pages(family: str, tmp_path: Path, paged: Captured) -> None:
    model = Model(tmp_path, family)
    assert isinstance(model.engine._runner, PagedRunner)
    before = paged.replays
    answers_as_generate(model)
    Run(model.engine, request([5, 6, 7])).finish()
    assert paged.replays > before  # where there is text alone


def test_items_that_see_all_of_themselves_are_not_over_pages(
    tmp_path: Path, paged: Captured
) -> None:
    model = Model(tmp_path, "gemma3")
    assert isinstance(model.engine._runner, PackedRunner)
    answers_as_generate(model)


@pytest.mark.parametrize(
    "family", some(["llava", "gemma3", "qwen2_5_vl", "qwen2_audio"], ["gemma3", "qwen2_5_vl"])
)
def test_with_transformers_own_cache(family: str, tmp_path: Path) -> None:
    # MEDIA-34
    model = Model(tmp_path, family, batching="padded")
    assert isinstance(model.engine._runner, NativeRunner)
    answers_as_generate(model)


@pytest.mark.usefixtures("paged")
@pytest.mark.parametrize(
    ("family", "options", "runner"),
    [
        ("qwen2_5_vl", {}, PagedRunner),
        ("gemma3", {}, PackedRunner),
        ("qwen2_5_vl", {"batching": "padded"}, NativeRunner),
    ],
)
def test_after_a_failure_nothing_is_kept_of_items(
    family: str, options: dict[str, Any], runner: type, tmp_path: Path
) -> None:
    model = Model(tmp_path, family, **options)
    assert isinstance(model.engine._runner, runner)
    pieces = model.pieces("what do you see, ", 1, "? the quick")
    for encodings in ([1], [1, 1]):
        run = Run(model.engine, model.request(pieces)).finish()
        assert run.token_ids() == model.greedy(pieces)
        assert model.encodings == encodings
        assert model.engine._runner.encoded(model.item(1))
        model.engine._scheduler.start_over([])
        assert not model.engine._runner.encoded(model.item(1))


def test_adapters_apply_beside_items(tmp_path: Path) -> None:
    # MEDIA-9
    model = Model(tmp_path / "model", "llava")
    targets = ["language_model.layers.1.self_attn.q_proj", "language_model.layers.2.mlp.up_proj"]
    folder = save_adapter(tmp_path / "lora", model.reference, targets, seed=1)
    adapted = Model(tmp_path / "other", "llava", adapters={"other": str(folder)})
    pieces = model.pieces("what do you see, ", 1, "? the quick brown")
    run = Run(adapted.engine, adapted.request(pieces, id="plain"))
    run.add(adapted.request(pieces, id="other", adapter="other"))
    run.finish()
    assert run.token_ids("plain") == model.greedy(pieces)
    model.reference = merged(model.reference, folder, {"": 1.5})
    assert run.token_ids("other") == model.greedy(pieces) != run.token_ids("plain")
    assert adapted.encodings == [1]


def test_adapters_of_towers_are_refused(tmp_path: Path) -> None:
    folder = make_media_model(tmp_path / "model", "llava")
    reference = AutoModelForMultimodalLM.from_pretrained(folder)
    targets = ["vision_tower.encoder.layers.0.self_attn.q_proj"]
    adapter = save_adapter(tmp_path / "lora", reference, targets, seed=1)
    with pytest.raises(BackendUnavailableError, match=r"vision_tower.*not in the language model"):
        load(folder, adapters={"eyes": str(adapter)})


def test_a_processor_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # MEDIA-34
    folder = make_media_model(tmp_path, "llava")
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "NoProcessor"}))
    with caplog.at_level(logging.WARNING):
        engine = load(folder)
    assert not engine.info.modalities
    assert "text only, because its processor cannot be made" in caplog.text
    assert len(Run(engine, request([5, 6, 7])).finish().token_ids()) == 12


@pytest.mark.skipif(is_torchvision_available(), reason="it is about its absence")
def test_no_video_without_torchvision(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_media_model(tmp_path, "qwen2_5_vl")
    with caplog.at_level(logging.WARNING):
        engine = load(folder)
    [warning] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert engine.info.modalities == {"image"}
    assert "pip install torchvision" in warning
    assert engine.info.media_options == {"min_pixels", "max_pixels"}


@pytest.mark.skipif(not is_torchvision_available(), reason="torchvision makes them")
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_videos(family: str, tmp_path: Path) -> None:
    # MEDIA-4
    model = Model(tmp_path, family)
    assert model.engine.info.modalities == {"image", "video"}
    around = ("<start_of_image>", "<end_of_image>")
    for seed, frames in ((1, 6), (2, 5)):
        item = video(seed, frames)
        pieces = ["what do you see in ", around[0], item, around[1], "? the quick"]
        text = "".join("<video>" if isinstance(p, Media) else p for p in pieces)
        made = model.engine._media_tokenizer._processor.call(item, text)
        del made["text_replacement_offsets"]
        wanted = model.generated(made)
        request = model.request(pieces)
        assert list(request.prompt_token_ids) == made["input_ids"][0].tolist()
        others = model.request(model.pieces("see ", 1, " the quick"), id="other")
        run = Run(model.engine, others, request).finish()
        assert run.token_ids() == wanted
        assert run.token_ids("other") == model.greedy(model.pieces("see ", 1, " the quick"))
    fewer = replace(video(1), options={"num_frames": 2})
    assert model.request([fewer]).media[-1].end < model.request([video(1)]).media[-1].end


def test_options_change_how_many_tokens_a_picture_has(tmp_path: Path) -> None:
    # MEDIA-11
    engine = load(make_media_model(tmp_path, "qwen2_5_vl"))

    def tokens(**options: int) -> int:
        item = picture(1, 96, 64)
        item = type(item)(kind="image", data=item.data, type=item.type, options=options)
        return engine.tokenize_media([item], add_special_tokens=False).spans[0].tokens

    assert tokens() == 96 * 64 // 16**2
    assert tokens(max_pixels=32 * 32) <= 4 < tokens() < tokens(min_pixels=128 * 128)


@pytest.mark.parametrize(
    ("failing", "chosen", "dropped"),
    [
        ({"_paged": {}}, "_paged", set()),
        ({"_paged": {"image"}, "_packed": {"image"}, "_native": {}}, "_native", set()),
        ({"_packed": {"image"}, "_native": {"audio"}}, "_packed", {"image"}),
        ({"_paged": {"image", "audio"}, "_native": {"image"}}, "_native", {"image"}),
        ({"_native": {"image", "audio"}}, None, {"image", "audio"}),
    ],
)
def test_the_runner_that_takes_the_most_kinds_is_chosen(
    failing: dict[str, set[str]],
    chosen: str | None,
    dropped: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for way in ("_paged", "_packed", "_native"):
        monkeypatch.setattr(choose, way, lambda _, way=way: way if way in failing else None)
    monkeypatch.setattr(choose, "implementations", lambda _: {})
    monkeypatch.setattr(
        choose, "try_media", lambda model, runner, *_: dict.fromkeys(failing[runner], "it is off")
    )
    media = Mock(kinds={"image", "audio"})
    assert choose._with_media(Mock(), media) == chosen
    assert not dropped or media.drop.call_args[0][0].keys() == dropped


@pytest.mark.parametrize(
    ("found", "failed", "borders"),
    [
        ({"audio": "past", "image": "past"}, set(), "cut"),
        ({"audio": "past", "image": "item"}, set(), "whole"),
        ({"audio": "past", "image": "item in windows", "video": "past"}, set(), "whole"),
        ({"audio": "item in windows", "image": "item"}, {"audio"}, "whole"),
        ({"image": "prompt"}, set(), "prompt"),
    ],
)
def test_kinds_that_attend_otherwise(
    found: dict[Any, Sees], failed: set[str], borders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = MediaInputs(Mock(row_ids={}), Mock(), cache_bytes=0)
    model = Mock(dtype=torch.float32, modules=list)
    runner = PackedRunner.__new__(PackedRunner)
    runner.media, runner.memory = inputs, RunnerMemory(slots=1, tokens=64)
    monkeypatch.setattr(runner, "clear", Mock())
    monkeypatch.setattr(probe, "_best", lambda model, runner, media, kind, _: (found[kind], 0.0))
    monkeypatch.setattr(probe, "_batches", lambda *_: False)
    media = Mock(kinds=found.keys(), inputs=inputs)
    assert probe.try_media(model, runner, media, {}).keys() == failed
    assert runner.memory.media_spans == borders
    assert inputs.sees == {kind: sees for kind, sees in found.items() if kind not in failed}


def test_tokens_that_see_ahead_are_those_of_their_kind() -> None:
    inputs = MediaInputs(Mock(row_ids={}), Mock(), cache_bytes=0)
    inputs.sees = {"image": "item", "audio": "past"}
    spans = (MediaSpan(1, 3, picture(1)), MediaSpan(5, 3, sound(1)))
    item = replace(request([0] * 9), media=spans)
    assert inputs.reach(Chunk(0, 0, [0] * 7, request=item)) == [0, 3, 3, 3, 4, 5, 6]
    assert inputs.reach(Chunk(0, 4, [0] * 3, request=item)) == ()
    with pytest.raises(ValueError, match="different chunks"):
        inputs.reach(Chunk(0, 2, [0] * 3, request=item))


def test_layouts_of_prompts_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay_hf.media.inputs._PROMPT_BYTES", 20_000)
    towers = Mock(row_ids={"image": 9}, ropes_items=True)
    towers.rope_positions = lambda ids, kinds, grids: torch.zeros(3, len(ids), dtype=torch.long)
    inputs = MediaInputs(towers, Mock(), cache_bytes=0)
    for number in range(8):
        item = replace(request([0] * 100, id=str(number)), media=(MediaSpan(1, 3, picture(1)),))
        assert inputs.positions([Chunk(0, 0, [0] * 100, request=item)]).shape == (3, 100)
    kept = ["0" in inputs._prompts, "2" in inputs._prompts, "7" in inputs._prompts]
    assert kept == [False, True, True]
    assert inputs._prompts.nbytes == 6 * (100 + 3 * 100) * 8


def test_a_kind_that_fails_takes_its_options_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "try_media", lambda *_: {"image": "it is blind"})
    info = load(make_media_model(tmp_path, "qwen2_5_vl")).info
    assert not info.modalities
    assert not info.media_options
    processor = Processor(None, {"image": "<image>", "video": "<video>"})
    processor.options = frozenset({"max_pixels", "fps", "num_frames"})
    processor.forget("video")
    assert processor.options == {"max_pixels"}
