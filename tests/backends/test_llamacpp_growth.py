"""A KV cache that is small at first: what it grows to, and that nobody notices.  REAL-1 REAL-2"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebay import FreeMemory
from enginebay_llamacpp import growing
from enginebay_llamacpp.cache import CachePlan, CacheSize, cache_plan
from enginebay_llamacpp.context import Context
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.memory import layout
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.runner import LlamaRunner
from enginebay_llamacpp.shape import ModelShape
from tests.backends.gguf_models import (
    write_hybrid,
    write_llama,
    write_recurrent,
    write_sliding,
    write_two_ranges,
)
from tests.backends.llamacpp import load, request
from tests.backends.mtmd_reference import EXACT
from tests.run import Run

LONG = {"llama.context_length": 32768}
ROOMY = FreeMemory(64 << 30)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("growth") / "model.gguf", context=32768)


def plan(path: Path, free: FreeMemory = ROOMY, *, gpu: bool = False, **more: Any) -> CachePlan:
    options = LlamaCppOptions(**more)
    shape = ModelShape.of(path, options.override_kv)
    return cache_plan(shape, options, layout(shape, options, 0), free, gpu=gpu)


def cache_of(engine: LlamaCppEngine) -> CacheSize:
    assert isinstance(engine._runner, LlamaRunner)
    return engine._runner._context.size


def prompt(seed: int, tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(5, 200, tokens).tolist()


# What the cache may become.


def test_one_conversation_may_be_as_long_as_the_model_allows(path: Path) -> None:
    """All of them together have cells for a few, and the first ones are enough for a short chat."""
    chosen = plan(path)
    assert chosen.context_length == 32768
    assert chosen.tokens == 16 * 4096
    assert chosen.first().tokens == 4096
    asked = plan(path, context_length=8192)
    assert (asked.context_length, asked.tokens) == (8192, 16 * 4096)
    total = plan(path, context_length=8192, cache_tokens=10000)
    assert (total.context_length, total.tokens) == (8192, 10240)


def test_little_memory_lowers_how_many_may_be_long(path: Path) -> None:
    """The context that was asked for stays possible."""
    free = FreeMemory(int(2 * 9000 * plan(path).token_bytes))
    assert plan(path, free).tokens == 9216
    assert plan(path, free, context_length=32768).tokens == 32768
    assert plan(path, FreeMemory(0)).context_length == 256


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([0] * 16, (False, 4096)),
        ([200] * 16, (False, 4096)),
        ([300] * 16, (False, 8192)),
        ([300] + [0] * 15, (True, 4096)),
        ([5000] + [200] * 15, (True, 8192)),
        ([5000] * 13, (True, 65536)),
        ([32768, 32768], (True, 65536)),
    ],
)
def test_separate_caches_while_they_cost_little(
    path: Path, lengths: Sequence[int], expected: tuple[bool, int]
) -> None:
    chosen = plan(path).size_for([*lengths, *[0] * (16 - len(lengths))])
    assert (chosen.unified, chosen.tokens) == expected
    assert chosen.holds(lengths)


def test_who_does_not_grow(path: Path, tmp_path: Path) -> None:
    """A GPU, a layout that was asked for, and factors that would change with the size."""
    for fixed in (
        plan(path, gpu=True),
        plan(path, kv_unified=True),
        plan(path, kv_unified=False),
        plan(write_two_ranges(tmp_path / "ranges.gguf", 300)),
    ):
        assert fixed.first() == fixed.largest()
    assert plan(path, kv_unified=False).tokens == 16 * 32768
    assert plan(path, max_batch_size=1).first().unified
    assert plan(write_sliding(tmp_path / "sliding.gguf")).first().unified
    assert plan(write_hybrid(tmp_path / "hybrid.gguf")).first().unified


def test_the_plan_is_said_before_memory_is_taken(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    load(path).close()
    lines = [record.getMessage() for record in caplog.records]
    said = next(i for i, line in enumerate(lines) if "cache_tokens changes this" in line)
    made = next(i for i, line in enumerate(lines) if "KV buffer size" in line)
    assert said < made
    assert "2 conversations of 32,768 tokens at once, or 16 of 4,096" in lines[said]
    assert "KV cache of 65,536 tokens (16 MiB), which starts with 1 MiB" in lines[said]
    everyone = plan(path, kv_unified=False).describe()
    assert "16 conversations of 32,768 tokens at once" in everyone
    assert "524,288 tokens (128 MiB)" in everyone
    little = plan(path, FreeMemory(8 << 20)).describe()
    assert little.endswith("free memory limits this, unless cache_tokens is set")
    assert (
        "cache_tokens changes this" in plan(path, FreeMemory(8 << 20), cache_tokens=512).describe()
    )


# Growing.


@pytest.mark.parametrize("moved", [True, False])
def test_what_left_a_window_is_there_when_a_sequence_is_truncated(
    tmp_path: Path, moved: bool
) -> None:
    """Whatever was written since: cells outside of a window look free to llama.cpp."""
    options = LlamaCppOptions(threads=1, **EXACT)
    model = Model(write_sliding(tmp_path / "m.gguf"), options, lambda *_: None, gpu=False)

    def made(tokens: int) -> Context:
        return Context(model, options, CacheSize(unified=True, slots=3, tokens=tokens), gpu=False)

    def read(context: Context, slot: int, start: int, tokens: Sequence[int]) -> Any:
        places = range(start, start + len(tokens))
        outputs = [False] * (len(tokens) - 1) + [True]
        return context.run(tokens, places, [slot] * len(tokens), outputs).copy()

    text = prompt(0, 120)
    fresh = made(1024)
    read(fresh, 0, 0, text[:60])
    expected = read(fresh, 0, 60, [7, 8, 9])
    context = made(1024)
    read(context, 1, 0, prompt(1, 30))
    read(context, 0, 0, text)
    if moved:
        old, context = context, made(2048)
        context.take(old, [120, 30, 0])
        old.close()
    else:
        context.remove(1)
    read(context, 2, 0, prompt(2, 100))
    context.remove(0, 60)
    assert read(context, 0, 60, [7, 8, 9]) == pytest.approx(expected, abs=1e-3)
    fresh.close()
    context.close()


@pytest.mark.parametrize(
    "write", [write_llama, write_sliding, write_hybrid, write_recurrent], ids=lambda w: w.__name__
)
def test_a_larger_context_gives_the_same_logits_bit_by_bit(write: Any, tmp_path: Path) -> None:
    model = Model(write(tmp_path / "m.gguf"), LlamaCppOptions(), lambda *_: None, gpu=False)
    held = [0, 40, 7, 90]
    layouts = [(True, True)]
    if write is write_llama:
        layouts += [(False, False), (False, True), (True, False)]
    for before, after in layouts:
        old, new = (
            Context(
                model,
                LlamaCppOptions(threads=1),
                CacheSize(unified=unified, slots=4, tokens=tokens),
                gpu=False,
            )
            for unified, tokens in ((before, 1024), (after, 4096))
        )
        for slot, count in enumerate(held):
            if count:
                places = [slot] * count
                old.run(prompt(slot, count), range(count), places, [False] * count)
        new.take(old, held)
        for step in range(3):
            chunk = ([9, 8, 7], [count + step for count in held[1:]], [1, 2, 3], [True] * 3)
            assert np.array_equal(old.run(*chunk), new.run(*chunk))
        old.close()
        new.close()


@pytest.mark.parametrize(
    "write", [write_llama, write_sliding, write_hybrid], ids=lambda w: w.__name__
)
def test_the_text_is_that_of_a_cache_that_is_large_from_the_start(
    write: Any, tmp_path: Path
) -> None:
    """Long and short requests at once; the cache grows while they run, and more than once."""
    file = write(tmp_path / "m.gguf")
    long = {f"{ModelShape.of(file).kind}.context_length": 32768}
    requests = [
        request(prompt(i, tokens), id=str(i), max_tokens=40, logprobs=0)
        for i, tokens in enumerate((20, 240, 30, 700, 5, 2600, 60, 1500))
    ]
    texts = []
    for unified in (None, True):
        engine = load(file, kv_unified=unified, override_kv=long, **EXACT)
        first = cache_of(engine)
        run = Run(engine, *requests[:3]).steps(10)
        for item in requests[3:]:
            run.add(item)
        run.finish()
        assert not run.errors
        assert (cache_of(engine).tokens > first.tokens) is (unified is None)
        texts.append([run.token_ids(item.request_id) for item in requests])
        engine.close()
    assert texts[0] == texts[1]


def test_a_prefix_is_reused_and_copied_after_growing(path: Path) -> None:
    engine = load(path, **EXACT)
    start = prompt(0, 600)
    alone = {}
    for i in range(3):
        fresh = load(path, **EXACT)
        alone[str(i)] = Run(fresh, request([*start, i + 5], id=str(i))).finish().token_ids(str(i))
        fresh.close()
    run = Run(engine, request(start, id="first")).finish()
    assert cache_of(engine).unified
    for i in range(3):
        run.add(request([*start, i + 5], id=str(i)))
    run.finish()
    for i in range(3):
        assert run.token_ids(str(i)) == alone[str(i)]
        assert run.deltas[str(i), 0][0].cached_tokens >= 500
    engine.close()


def test_without_memory_a_long_request_fails_and_a_short_one_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "free_ram", lambda: 0)
    engine = load(path, **EXACT)
    short = request(prompt(1, 30), id="short", max_tokens=60)
    expected = Run(engine, short).finish().token_ids("short")
    run = Run(engine, short).steps(5)
    run.add(request(prompt(2, 900), id="long"))
    run.finish()
    assert set(run.errors) == {"long"}
    assert "not enough memory" in run.errors["long"].message
    assert run.token_ids("short") == expected
    assert len(Run(engine, request(prompt(3, 20))).finish().token_ids()) == 12
    engine.close()
