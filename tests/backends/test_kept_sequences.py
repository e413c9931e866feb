"""KV that leaves an engine's memory and comes back: in the same engine, and in the next (ENG-8, 9).

Every answer is the one of an engine that computes all of it.
"""

import logging
import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from enginebay import BackendSettings, FreeMemory, GenerationRequest, KvStoreSettings, Lora
from enginebay.engine.batching.engine import BatchingEngine
from enginebay.engine.batching.kv_saver import KvSaver
from enginebay_hf import choose
from enginebay_hf.choose_paged import paged_runner
from enginebay_hf.estimate import estimated as estimated_hf
from enginebay_hf.loading import load_engine as load_hf
from enginebay_hf.options import HFOptions
from enginebay_llamacpp.estimate import estimated as estimated_llamacpp
from enginebay_llamacpp.loading import load_engine as load_llamacpp
from enginebay_llamacpp.options import LlamaCppOptions
from tests.backends.gguf_models import (
    write_adapter,
    write_llama,
    write_recurrent,
    write_sliding,
    write_two_ranges,
)
from tests.backends.paged import Captured, varlen_attn
from tests.backends.tiny import make_model
from tests.run import Run, request

LENGTH = 100
LLAMACPP = {
    "unified": ("llama", {"kv_unified": True}),
    "separate": ("llama", {"kv_unified": False}),
    "quantized": ("llama", {"cache_type_k": "q8_0"}),
    "no flash attention": ("llama", {"flash_attention": "off"}),
    "sliding": ("sliding", {}),
    "sliding, not whole": ("sliding", {"swa_full": False}),
    "recurrent": ("recurrent", {}),
}
HF = {"packed": "llama", "paged": "llama", "sliding layers": "gemma3_text"}

Load = Callable[..., BatchingEngine[Any, Any]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_llama(folder / "llama.gguf")
    write_sliding(folder / "sliding.gguf")
    write_recurrent(folder / "recurrent.gguf")
    write_adapter(folder / "lora.gguf")
    for family in set(HF.values()):
        make_model(folder / family, family)
    return folder


def settings(path: Path, options: Any, kept: KvStoreSettings | None) -> BackendSettings:
    return BackendSettings(
        name="tiny", path=str(path), base=str(path.parent), options=options, kv_store=kept
    )


def load_gguf(path: Path, kept: KvStoreSettings | None, **more: Any) -> BatchingEngine[Any, Any]:
    options = {"threads": 1, "max_batch_size": 2, "context_length": 256, **more}
    engine = load_llamacpp(settings(path, LlamaCppOptions(**options), kept))
    assert isinstance(engine, BatchingEngine)
    return engine


def load_folder(path: Path, kept: KvStoreSettings | None, **more: Any) -> BatchingEngine[Any, Any]:
    options = {"threads": 1, "max_batch_size": 2, "context_length": 256, **more}
    engine = load_hf(settings(path, HFOptions(**options), kept))
    assert isinstance(engine, BatchingEngine)
    return engine


SOME = ("unified", "recurrent", "packed")
"""For laws that hardly depend on the engine."""

MOST = (*SOME, "separate", "sliding, not whole", "paged")


def kinds(usual: Sequence[str]) -> list[Any]:
    """All of them, those that are not `usual` for thorough runs only."""
    others = [name for name in (*LLAMACPP, *HF) if name not in usual]
    return [*usual, *(pytest.param(name, marks=pytest.mark.thorough) for name in others)]


@pytest.fixture(params=kinds(SOME))
def some(models: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(models, request.param, monkeypatch)


@pytest.fixture(params=kinds(MOST))
def load(models: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(models, request.param, monkeypatch)


def loader(models: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Load:
    if kind in LLAMACPP:
        name, options = LLAMACPP[kind]
        return partial(load_gguf, models / f"{name}.gguf", **options)
    if kind == "paged":
        monkeypatch.setattr(choose, "find_kernels", lambda device, dtype: [varlen_attn])
        monkeypatch.setattr(choose, "CudaCapture", lambda device: Captured())
        monkeypatch.setattr(choose, "paged_runner", partial(paged_runner, page_size=8))
    return partial(load_folder, models / HF[kind])


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    return random.Random(seed).choices(range(4, 260), k=length)


def ask(engine: BatchingEngine[Any, Any], item: GenerationRequest) -> tuple[list[int], int]:
    """The answer's tokens, and how many of the prompt's were cached."""
    run = Run(engine, item).finish()
    assert not run.errors
    cached = sum(delta.cached_tokens for delta in run.deltas[item.request_id, 0])
    return run.token_ids(item.request_id), cached


def conversation(engine: BatchingEngine[Any, Any], *, others: int) -> tuple[list[list[int]], int]:
    """Three turns with others in between; the answers, and the cached tokens of the last turn."""
    said, text, cached = [], prompt(1), 0
    for turn in range(3):
        answer, cached = ask(engine, request(text))
        said.append(answer)
        text = [*text, *answer, *prompt(10 + turn, 7)]
        for other in range(others):
            ask(engine, request(prompt(100 + 10 * turn + other)))
    return said, cached


def test_a_conversation_is_the_same_after_it_left_the_memory(load: Load, tmp_path: Path) -> None:
    plain = load(None)
    expected, _ = conversation(plain, others=0)
    plain.close()
    for kept in (
        KvStoreSettings(ram=1 << 30),
        KvStoreSettings(folder=str(tmp_path / "kv"), disk=1 << 30),
    ):
        engine = load(kept)
        said, cached = conversation(engine, others=5)
        assert said == expected
        assert cached >= LENGTH + 2 * (12 + 7) - 1 - 7
        stats = engine.stats()
        assert stats.tokens_restored
        assert stats.sequences_saved
        engine.close()


def test_a_conversation_goes_on_in_another_engine(load: Load, tmp_path: Path) -> None:
    kept = KvStoreSettings(folder=str(tmp_path / "kv"), disk=1 << 30)
    engine = load(kept)
    answer, _ = ask(engine, request(prompt(1)))
    engine.close()
    longer = [*prompt(1), *answer, *prompt(2, 9)]
    plain = load(None)
    expected, _ = ask(plain, request(longer))
    branch = [*prompt(1, 90), *prompt(3, 30)]
    expected_branch, _ = ask(plain, request(branch))
    plain.close()
    engine = load(kept)
    assert ask(engine, request(longer)) == (expected, LENGTH + 11)
    engine.close()
    engine = load(kept)
    said, cached = ask(engine, request(branch))
    assert said == expected_branch
    assert cached == (90 if engine._runner.memory.cuts else 0)
    engine.close()


def test_company_changes_nothing(
    some: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is restored beside running choices is as it is alone."""
    # So small a model may compute a prompt sooner than its file is read.
    monkeypatch.setattr(KvSaver, "took", lambda *_: None)
    kept = KvStoreSettings(folder=str(tmp_path / "kv"), disk=1 << 30)
    engine = some(kept)
    texts = [[*prompt(seed), *ask(engine, request(prompt(seed)))[0], 5, 6] for seed in range(4)]
    engine.close()
    plain = some(None)
    asked = [request(text, id=str(i), max_tokens=20) for i, text in enumerate(texts)]
    expected = [ask(plain, item)[0] for item in asked]
    plain.close()
    engine = some(kept)
    run = Run(engine, request(prompt(50), id="running", max_tokens=60)).steps(6)
    for item in asked:
        run.add(item)
        run.steps(2)
    run.finish()
    assert [run.token_ids(str(seed)) for seed in range(4)] == expected
    assert engine.stats().tokens_restored >= 3 * LENGTH
    engine.close()


LATER = {
    "llamacpp": {
        "another file": {"path": "sliding.gguf"},
        "other number formats": {"cache_type_v": "q8_0"},
        "other positions": {"rope_freq_base": 5000.0},
        "one cache for all": {"kv_unified": False},
        "another value in the file": {
            "override_kv": {"llama.attention.layer_norm_rms_epsilon": 0.1}
        },
    },
    "hf": {
        "another model": {"path": "gemma3_text"},
        "other numbers": {"dtype": "bfloat16"},
        "products in 8 bits": {"quantize": "int8"},
    },
}


@pytest.mark.parametrize(("engine", "what"), [(e, w) for e, ways in LATER.items() for w in ways])
def test_what_another_model_has_saved_is_not_used(
    engine: str, what: str, models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ENG-8: neither of another file, nor with other settings; it is said once."""
    kept = KvStoreSettings(folder=str(tmp_path / "kv"), disk=1 << 30)
    path, load = (
        (models / "llama.gguf", partial(load_gguf, kv_unified=True))
        if engine == "llamacpp"
        else (models / "llama", partial(load_folder, dtype="float32"))
    )
    here = tmp_path / path.name
    here.symlink_to(path)
    first = load(here, kept)
    ask(first, request(prompt(1)))
    first.close()
    changes = dict(LATER[engine][what])
    if other := changes.pop("path", None):
        here.unlink()
        here.symlink_to(models / other)
    caplog.clear()
    second = load(here, kept, **changes)
    assert ask(second, request(prompt(1)))[1] == 0
    ignored = [r.getMessage() for r in caplog.records if "ignored" in r.getMessage()]
    assert len(ignored) == 1
    assert "it is of another" in ignored[0]
    second.close()


def test_rotary_factors_of_long_contexts_are_others(models: Path, tmp_path: Path) -> None:
    """With LongRoPE, keys depend on how long the context may be."""
    kept = KvStoreSettings(folder=str(tmp_path / "kv"), disk=1 << 30)
    path = write_two_ranges(tmp_path / "two.gguf", original=256)
    tokens = []
    for length, cached in ((128, 0), (200, LENGTH - 1), (300, 0), (400, LENGTH - 1)):
        engine = load_gguf(path, kept, kv_unified=False, context_length=length)
        answer, found = ask(engine, request(prompt(1)))
        assert found == cached
        tokens.append(answer)
        engine.close()
    assert tokens[0] == tokens[1]
    assert tokens[2] == tokens[3]
    assert tokens[1] != tokens[2]
    kept = KvStoreSettings(folder=str(tmp_path / "other"), disk=1 << 30)
    for length, cached in ((128, 0), (400, LENGTH - 1)):  # most models have one set for all
        engine = load_gguf(models / "llama.gguf", kept, kv_unified=False, context_length=length)
        assert ask(engine, request(prompt(1)))[1] == cached
        engine.close()


def test_a_file_that_has_changed_since_is_another_model(models: Path, tmp_path: Path) -> None:
    kept = KvStoreSettings(folder=str(tmp_path / "kv"), disk=1 << 30)
    path = write_llama(tmp_path / "llama.gguf")
    for cached in (0, LENGTH - 1):
        engine = load_gguf(path, kept)
        assert ask(engine, request(prompt(1)))[1] == cached
        engine.close()
    os.utime(path, (1, 1))
    engine = load_gguf(path, kept)
    assert ask(engine, request(prompt(1)))[1] == 0
    engine.close()
    write_llama(path, seed=1)
    os.utime(path, (1, 1))
    engine = load_gguf(path, kept)
    assert ask(engine, request(prompt(1)))[1] == 0
    engine.close()


def test_an_adapter_has_its_own(models: Path, tmp_path: Path) -> None:
    kept = KvStoreSettings(folder=str(tmp_path / "kv"), disk=1 << 30)

    def loaded(scale: float) -> BatchingEngine[Any, Any]:
        adapters = {"tuned": {"path": "lora.gguf", "scale": scale}}
        return load_gguf(models / "llama.gguf", kept, adapters=adapters)

    engine = loaded(1.0)
    assert ask(engine, request(prompt(1)))[1] == 0
    said, cached = ask(engine, request(prompt(1), adapter="tuned"))
    assert cached == 0
    engine.close()
    engine = loaded(1.0)
    assert ask(engine, request(prompt(1), adapter="tuned")) == (said, LENGTH - 1)
    engine.close()
    engine = loaded(0.5)
    assert ask(engine, request(prompt(1), adapter="tuned"))[1] == 0
    assert ask(engine, request(prompt(1)))[1] == LENGTH - 1
    engine.close()


def test_what_an_adapter_has_read_is_dropped_when_it_is_gone(models: Path) -> None:
    engine = load_gguf(models / "llama.gguf", KvStoreSettings(ram=1 << 30), kv_unified=False)
    lora = Lora(str(models / "lora.gguf"))
    engine.load_adapter("tuned", [lora])
    for seed in range(2):
        ask(engine, request(prompt(seed), adapter="tuned"))
    engine.unload_adapter("tuned")
    for seed in range(3):
        assert ask(engine, request(prompt(10 + seed)))[1] == 0
    engine.load_adapter("tuned (2)", [lora])
    # What left the memory while it was loaded is found by the same weights, not by the name.
    assert ask(engine, request(prompt(0), adapter="tuned (2)"))[1] == LENGTH - 1
    assert ask(engine, request(prompt(1), adapter="tuned (2)"))[1] == 0
    engine.close()


def test_files_that_were_damaged_are_computed_again(
    some: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KvStoreSettings(folder=str(tmp_path / "kv"), disk=1 << 30)
    engine = some(kept)
    longer = [*prompt(1), *ask(engine, request(prompt(1)))[0], 5]
    engine.close()
    plain = some(None)
    expected, _ = ask(plain, request(longer))
    plain.close()
    (path,) = tmp_path.rglob("*.kv")
    good = path.read_bytes()
    for damaged in (good[:-1], good[: len(good) // 2], good[:40], b"", good[:-50] + bytes(50)):
        path.write_bytes(damaged)
        caplog.clear()
        engine = some(kept)
        assert ask(engine, request(longer)) == (expected, 0)
        said = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(said) == 1
        engine.close()
        for file in tmp_path.rglob("*.kv"):
            file.unlink()
    path.write_bytes(good)
    engine = some(kept)
    assert ask(engine, request(longer)) == (expected, LENGTH + 11)
    engine.close()


@pytest.mark.parametrize("backend", ["llamacpp", "hf"])
def test_the_ram_for_it_is_part_of_the_estimate(backend: str, models: Path) -> None:
    path = models / ("llama.gguf" if backend == "llamacpp" else "llama")
    options = LlamaCppOptions() if backend == "llamacpp" else HFOptions()
    estimated = estimated_llamacpp if backend == "llamacpp" else estimated_hf
    free = FreeMemory(20 << 30)
    without = estimated(settings(path, options, KvStoreSettings(folder="kv", disk=1)), free)
    with_ram = estimated(settings(path, options, KvStoreSettings(ram=3 << 30)), free)
    assert with_ram.total.ram == without.total.ram + (3 << 30)
    assert with_ram.least == without.least
    assert "saved_kv" in [part.name for part in with_ram.parts]
