"""Items of llama.cpp while they are kept, and when they are not: memory, threads, the log."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from enginebay import PlainText, SizedCache
from enginebay.testing import check_backend
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.media import MediaStore
from tests.backends.llamacpp import asked, load
from tests.backends.mmproj_models import PAIRS, write_pair
from tests.backends.mtmd_reference import picture
from tests.effort import some
from tests.run import Run


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LlamaCppEngine]:
    engine = load(write_pair("qwen2vl", tmp_path))
    yield engine
    engine.close()


def store(engine: LlamaCppEngine) -> MediaStore:
    assert engine._media is not None
    return engine._media


def test_what_is_evicted_is_made_again(
    engine: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = store(engine)
    monkeypatch.setattr(kept, "_encoded", SizedCache(0))
    monkeypatch.setattr(kept, "_prepared", SizedCache(0))
    first = asked(engine, ["a", picture(1), "b"], "first")
    run = Run(engine, first).finish()
    for number in range(2, 6):
        run.add(asked(engine, ["a", picture(number), "b"], str(number)))
    run.finish()
    run.add(replace(first, request_id="again", cache_salt="other"))
    run.finish()
    assert not run.errors
    assert run.token_ids("again") == run.token_ids("first")


def test_from_many_threads_beside_the_engine(engine: LlamaCppEngine) -> None:
    pictures = [picture(number) for number in range(24)]
    alone = [asked(engine, ["a", each, "b"], str(n)) for n, each in enumerate(pictures)]
    run = Run(engine)
    with ThreadPoolExecutor(4) as threads:
        waiting = threads.map(
            lambda n: asked(engine, ["a", picture(n, 97, 65), "b"], f"other {n}"), range(24)
        )
        for item in alone:
            run.add(item)
        run.finish()
        for item in waiting:
            run.add(item)
        run.finish()
    assert not run.errors
    assert [asked(engine, ["a", each, "b"], str(n)) for n, each in enumerate(pictures)] == alone


def test_nothing_of_a_prompt_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    # MEDIA-47
    caplog.set_level(logging.DEBUG)
    engine = load(write_pair("gemma3", tmp_path))
    item = asked(engine, ["my secret ", PlainText("is here"), picture(1)])
    Run(engine, item).finish()
    engine.close()
    written = caplog.text + "".join(capfd.readouterr())
    assert "load_hparams" in written
    for text in ("secret", "is here", "add_text", "start_of_image"):
        assert text not in written


@pytest.mark.parametrize("kind", some(PAIRS, ["llava", "gemma3"]))
async def test_keeps_the_promises_of_a_backend(tmp_path: Path, kind: str) -> None:
    path = write_pair(kind, tmp_path)
    await check_backend(lambda: load(path))


@pytest.mark.thorough
def test_memory_stays_within_the_caches(engine: LlamaCppEngine) -> None:
    # MEDIA-39 MM-12
    kept = store(engine)
    kept._encoded._limit = kept._prepared._limit = 4 << 20
    process = psutil.Process()
    run = Run(engine)
    after: dict[int, int] = {}
    for number in range(500):
        run.add(asked(engine, ["a", picture(number, 320, 256), "b"], str(number)))
        run.finish()
        after[number] = process.memory_info().rss
    assert not run.errors
    assert after[499] < 1.1 * after[49]
