"""Pictures and sounds on llama.cpp, against mtmd's own helper: alone, in a batch, cached."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from enginebay import Chunk, GenerationRequest, Media, MemoryFullError
from enginebay import Rows as Logits
from enginebay_llamacpp import media
from enginebay_llamacpp.batch import Batch, RowBatch
from enginebay_llamacpp.context import Context, NoRoomError
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.projector import Projector, Rows, Tile
from enginebay_llamacpp.runner import LlamaRunner
from tests.backends import llamacpp
from tests.backends.decoding_aside import goes_on, undecoded
from tests.backends.gguf_models import SPECIAL_TOKENS, write_adapter
from tests.backends.llamacpp import load, request
from tests.backends.mmproj_models import PAIRS, write_pair
from tests.backends.mtmd_reference import EXACT, Reference, picture, sound
from tests.drafting import drafts_pay
from tests.effort import some
from tests.run import Run

TOKENS = 8
EOS = SPECIAL_TOKENS.index("<|eos|>")
TOLERANCE = 0.001


class Pair:
    """A model with its mmproj, and what mtmd's helper says of prompts."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path = write_pair(kind, folder)
        self.kind = kind
        self._reference = Reference(self.path, folder / "mmproj.gguf")
        self._known: dict[Any, tuple[list[int], list[float]]] = {}

    def item(self, seed: int) -> Media:
        return sound(seed) if self.kind == "qwen2a" else picture(seed)

    def expected(self, pieces: Sequence[str | Media]) -> tuple[list[int], list[float]]:
        key = tuple(p.key if isinstance(p, Media) else p for p in pieces)
        if key not in self._known:
            self._known[key] = self._reference.answer(pieces, TOKENS)
        return self._known[key]

    def prompts(self) -> list[list[str | Media]]:
        first, second = self.item(1), self.item(2)
        between: list[list[str | Media]] = [
            ["What is ", first, "? the answer"],
            ["Say hello to the others."],
            ["Look: ", first, " and then ", second, "?"],
            [second, "What is it?"],
        ]
        return between[:3] if self.kind == "qwen2a" else between


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp("pair") / request.param)


def loaded(pair: Pair, **options: Any) -> LlamaCppEngine:
    return load(pair.path, **{"max_batch_size": 4, **EXACT, **options})


def asked(
    engine: LlamaCppEngine, pieces: Sequence[str | Media], id: str = "r", **more: Any
) -> GenerationRequest:
    return llamacpp.asked(engine, pieces, id, **{"max_tokens": TOKENS, "logprobs": 0, **more})


def check(pair: Pair, run: Run, pieces: Sequence[str | Media], id: str, index: int = 0) -> None:
    assert not run.errors
    tokens, logprobs = pair.expected(pieces)
    entries = [e for d in run.deltas[id, index] for e in d.logprobs or ()]
    assert run.token_ids(id, index) == tokens
    assert [e.logprob for e in entries] == pytest.approx(logprobs, abs=TOLERANCE)


BATCHES = {
    "unified": {"kv_unified": True},
    "separate": {"kv_unified": False},
    "small chunks": {"kv_unified": True, "batch_tokens": 16, "prefill_tokens": 8},
    "no cuts": {"kv_unified": True, "swa_full": False},
    "threads": {"kv_unified": True, "threads": 2},
}


@pytest.mark.parametrize("batch", some(BATCHES, ["unified", "separate", "small chunks"]))
def test_in_a_batch_as_alone_through_mtmd(pair: Pair, batch: str) -> None:
    # MEDIA-35 MEDIA-5 MEDIA-7 MM-11
    run = Run(engine := loaded(pair, **BATCHES[batch]))
    for number, pieces in enumerate(pair.prompts()):
        run.add(asked(engine, pieces, str(number)))
        run.steps(3)
    run.finish()
    for number, pieces in enumerate(pair.prompts()):
        check(pair, run, pieces, str(number))
    for number, pieces in enumerate(pair.prompts()):  # and from what is cached of them
        run.add(asked(engine, pieces, f"again {number}", n=2))
    run.finish()
    for number, pieces in enumerate(pair.prompts()):
        for index in range(2):
            check(pair, run, pieces, f"again {number}", index)
    engine.close()


def encodings(engine: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch) -> list[Tile]:
    """The tiles that are encoded from now on."""
    seen = []
    encode = Projector.encode

    def counted(projector: Projector, tile: Tile) -> Rows:
        seen.append(tile)
        return encode(projector, tile)

    monkeypatch.setattr(Projector, "encode", counted)
    return seen


def test_an_item_is_encoded_once_and_cached(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    # MEDIA-7 MM-10
    run = Run(engine := loaded(pair))
    encoded = encodings(engine, monkeypatch)
    first, other = pair.item(1), pair.item(2)
    for number, pieces in enumerate(
        [["What is ", first, "? It is"], ["What is ", first, "? Or not"], ["What is ", other, "?"]]
    ):
        item = asked(engine, pieces, str(number))
        run.add(item)
        run.finish()
        check(pair, run, pieces, str(number))
        cached = run.deltas[str(number), 0][0].cached_tokens
        assert (cached > item.media[-1].end) is (number == 1)
        assert cached <= item.media[0].start or number == 1
    tiles = len(asked(engine, [first]).media)
    assert len(encoded) == 2 * tiles
    engine.close()


@pytest.mark.parametrize("unified", [True, False])
def test_a_prefix_with_items_is_copied_while_its_slot_goes_on(
    pair: Pair, unified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MEDIA-7 MEDIA-35
    run = Run(engine := loaded(pair, kv_unified=unified, max_batch_size=2))
    copied = []
    copy = LlamaRunner.copy

    def counted(runner: LlamaRunner, source: int, target: int, tokens: int) -> None:
        copied.append(tokens)
        copy(runner, source, target, tokens)

    monkeypatch.setattr(LlamaRunner, "copy", counted)
    first, second = pair.item(1), pair.item(2)
    prompts = [["Look: ", first, " and then ", tail, "?"] for tail in (second, first)]
    item = asked(engine, prompts[0], "0")
    run.add(item)
    run.steps(4 + len(item.media))
    run.add(asked(engine, prompts[1], "1"))
    run.finish()
    tiles = [span.end for span in item.media if span.media == first]
    assert [tokens > tiles[-1] for tokens in copied] == [True]
    for number, pieces in enumerate(prompts):
        check(pair, run, pieces, str(number))
    engine.close()


def test_no_step_decodes_an_item(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-9: what an item was made into may be forgotten before it is encoded."""
    pieces = pair.prompts()[2]
    text = llamacpp.request([5, 6, 7], id="text", max_tokens=40)
    item = asked(loaded(pair), pieces)
    with undecoded(monkeypatch, media) as decodes:
        run = Run(loaded(pair), text).steps(2)  # an engine that has not seen them
        run.add(item)
        run.steps(2)  # one of them reads the words before the item, and nothing else
        goes_on(run, "text")
        decodes.set()
        run.finish()
    assert not run.errors
    assert run.token_ids() == pair.expected(pieces)[0]


def test_a_prompt_may_end_with_an_item(pair: Pair) -> None:
    run = Run(engine := loaded(pair))
    pieces: list[str | Media] = ["What is ", pair.item(1)]
    prompt = engine.tokenize_media(pieces, add_special_tokens=True)
    last = prompt.spans[-1].end
    item = replace(request(prompt.token_ids[:last], id="alone"), media=prompt.spans)
    run.add(item)
    run.finish()
    run.add(request([9, 8, 7], id="text"))
    run.steps(2)
    run.add(replace(item, request_id="beside", n=2))
    run.finish()
    assert not run.errors
    assert run.token_ids("alone") == run.token_ids("beside") == run.token_ids("beside", 1)
    engine.close()


@pytest.mark.parametrize("options", [{"prompt_lookup": 3}, {"draft_model": "draft"}], ids=str)
def test_drafts_do_not_change_what_is_said_of_an_item(pair: Pair, options: dict[str, Any]) -> None:
    # MEDIA-9
    if "draft_model" in options:
        options = {"draft_model": str(pair.path)}
    run = Run(engine := loaded(pair, **options))
    drafts_pay(engine)
    for number, pieces in enumerate(pair.prompts()):
        run.add(asked(engine, pieces, str(number)))
    run.finish()
    for number, pieces in enumerate(pair.prompts()):
        check(pair, run, pieces, str(number))
    stats = engine.stats()
    assert stats.drafted or "draft_model" not in options
    engine.close()


def test_rows_that_do_not_fit_are_taken_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from the middle of a picture, of which llama.cpp only forgets the whole with M-RoPE."""
    # MEDIA-37
    run = Run(engine := loaded(pair, batch_tokens=16, prefill_tokens=16))
    decode, run_chunks = Context._decode, LlamaRunner.run
    full = cycle([True, False, False, True, False, False, False])

    def sometimes(context: Context, batch: Batch | RowBatch) -> None:
        decode(context, batch)
        if isinstance(batch, RowBatch) and next(full):
            raise NoRoomError

    def again(runner: LlamaRunner, chunks: Sequence[Chunk]) -> Logits:
        try:
            return run_chunks(runner, chunks)
        except MemoryFullError:
            return run_chunks(runner, chunks)

    monkeypatch.setattr(Context, "_decode", sometimes)
    monkeypatch.setattr(LlamaRunner, "run", again)
    for number, pieces in enumerate(pair.prompts()):
        run.add(asked(engine, pieces, str(number)))
    run.finish()
    for number, pieces in enumerate(pair.prompts()):
        check(pair, run, pieces, str(number))
    engine.close()


def test_a_lora_beside_items(pair: Pair, tmp_path: Path) -> None:
    # MEDIA-9
    kind = pair.kind if pair.kind in ("qwen2vl", "gemma3") else "llama"
    adapter = str(write_adapter(tmp_path / "lora.gguf", kind=kind))
    run = Run(engine := loaded(pair, adapters={"lora": {"path": adapter, "scale": 20}}))
    pieces = pair.prompts()[0]
    run.add(asked(engine, pieces, "alone", adapter="lora"))
    run.finish()
    for number, each in enumerate(pair.prompts()):
        run.add(asked(engine, each, str(number)))
        run.add(asked(engine, each, f"lora {number}", adapter="lora"))
    run.finish()
    for number, each in enumerate(pair.prompts()):
        check(pair, run, each, str(number))
    assert run.token_ids("lora 0") == run.token_ids("alone") != run.token_ids("0")
    engine.close()
