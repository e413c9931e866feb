"""The runner alone: chunks, copies and cuts of the KV cache, refusals that would end llama.cpp."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from enginebay.engine.batching.numpy_runner import Rows
from enginebay.engine.batching.runner import Chunk, MemoryFullError
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.runner import LlamaRunner
from tests.backends.gguf_models import (
    VOCAB_SIZE,
    write_adapter,
    write_llama,
    write_recurrent,
    write_sliding,
)
from tests.backends.llamacpp import load

TOKENS = [5, 60, 7, 8, 9, 101, 102, 103, 104, 12, 13, 14]
LAYOUTS = {
    "unified": {"kv_unified": True},
    "separate": {"kv_unified": False},
    "small batches": {"kv_unified": True, "batch_tokens": 4, "max_batch_size": 2},
}


def runner_of(engine: LlamaCppEngine) -> LlamaRunner:
    runner = engine._runner
    assert isinstance(runner, LlamaRunner)
    return runner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_llama(folder / "llama.gguf")
    write_sliding(folder / "sliding.gguf")
    write_recurrent(folder / "recurrent.gguf")
    write_adapter(folder / "lora.gguf")
    return folder


@pytest.fixture(params=LAYOUTS)
def runner(folder: Path, request: pytest.FixtureRequest) -> Iterator[LlamaRunner]:
    options = {"max_batch_size": 4, "context_length": 64, **LAYOUTS[request.param]}
    engine = load(folder / "llama.gguf", **options)
    yield runner_of(engine)
    engine.close()


def wanted(logits: Rows) -> NDArray[np.float32]:
    """Copies of the rows, chunk by chunk."""
    return np.array(list(logits), np.float32).reshape(-1, VOCAB_SIZE)


def run(runner: LlamaRunner, *chunks: Chunk) -> NDArray[np.float32]:
    return wanted(runner.run(chunks))


def prompt(slot: int, tokens: list[int], start: int = 0, logits: int = 1) -> Chunk:
    return Chunk(slot, start, tokens, logits)


def close(first: NDArray[np.float32], second: NDArray[np.float32]) -> bool:
    return bool(np.abs(first - second).max() < 0.05)


def fresh(runner: LlamaRunner, tokens: list[int]) -> NDArray[np.float32]:
    """Logits after each of `tokens`, computed on an empty cache, which is left empty."""
    runner.clear()
    rows = run(runner, prompt(0, tokens, logits=len(tokens)))
    runner.clear()
    return rows


def test_chunks_give_what_the_whole_prompt_gives(runner: LlamaRunner) -> None:
    expected = fresh(runner, TOKENS)
    assert run(runner, prompt(1, TOKENS[:5], logits=0)).shape == (0, VOCAB_SIZE)
    rows = run(runner, prompt(1, TOKENS[5:], 5, logits=3))
    assert close(rows, expected[-3:])


def test_rows_come_in_the_order_of_the_chunks(runner: LlamaRunner) -> None:
    last = runner.memory.slots - 1
    expected = [fresh(runner, tokens)[-2:] for tokens in (TOKENS, TOKENS[3:], TOKENS[6:])]
    rows = run(
        runner,
        prompt(last, TOKENS, logits=2),
        prompt(0, TOKENS[3:], logits=1),
        prompt(1, TOKENS[6:], logits=2),
    )
    assert rows.shape == (5, VOCAB_SIZE)
    assert close(rows, np.concatenate([expected[0], expected[1][1:], expected[2]]))


@pytest.mark.parametrize("tokens", [4, len(TOKENS)])
def test_a_copy_goes_on_like_its_source(runner: LlamaRunner, tokens: int) -> None:
    expected = fresh(runner, [*TOKENS[:tokens], 33])
    run(runner, prompt(0, TOKENS))
    runner.copy(0, 2, tokens)
    rows = run(runner, prompt(2, [33], tokens), prompt(0, [44], len(TOKENS)))
    assert close(rows[0], expected[-1])


def test_a_cut_slot_forgets_its_end(runner: LlamaRunner) -> None:
    expected = fresh(runner, [*TOKENS[:5], 33, 34])
    run(runner, prompt(0, TOKENS))
    runner.cut(0, 5)
    assert close(run(runner, prompt(0, [33, 34], 5, logits=2)), expected[-2:])
    runner.cut(0, 0)
    assert close(run(runner, prompt(0, TOKENS[:5])), expected[4])


def test_a_copy_is_independent_of_its_source(runner: LlamaRunner) -> None:
    expected = fresh(runner, [*TOKENS, 33])
    run(runner, prompt(0, TOKENS))
    runner.copy(0, 1, len(TOKENS))
    runner.cut(0, 0)
    run(runner, prompt(0, [90, 91, 92]))
    assert close(run(runner, prompt(1, [33], len(TOKENS)))[0], expected[-1])


def test_more_tokens_and_rows_than_a_batch_holds(folder: Path) -> None:
    large, small = (
        load(folder / "llama.gguf", kv_unified=True, max_batch_size=2, batch_tokens=size)
        for size in (512, 4)
    )
    tokens = [(7 * i) % VOCAB_SIZE for i in range(60)]
    expected = run(runner_of(large), prompt(0, tokens, logits=60))
    found = run(runner_of(small), prompt(0, tokens, logits=60))
    assert found.shape == expected.shape == (60, VOCAB_SIZE)
    assert close(found, expected)
    for engine in (large, small):
        engine.close()


@pytest.mark.parametrize("batch_tokens", [512, 64])
def test_a_full_cache_says_so_and_stays_as_it_was(folder: Path, batch_tokens: int) -> None:
    engine = load(
        folder / "llama.gguf",
        kv_unified=True,
        max_batch_size=2,
        context_length=256,
        cache_tokens=256,
        batch_tokens=batch_tokens,
    )
    runner = runner_of(engine)
    expected = fresh(runner, [*TOKENS, 33])
    run(runner, prompt(0, TOKENS))
    with pytest.raises(MemoryFullError):
        runner.run([prompt(1, [9] * 250)])
    assert close(run(runner, prompt(0, [33], len(TOKENS))), expected[-1:])
    run(runner, prompt(1, [9] * 200))
    engine.close()


def test_what_would_end_the_process_is_refused(runner: LlamaRunner) -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        runner.run([prompt(0, [VOCAB_SIZE])])
    with pytest.raises(ValueError, match="does not continue"):
        runner.run([prompt(0, [5], start=3)])
    runner.clear()
    assert run(runner, prompt(0, [5])).shape == (1, VOCAB_SIZE)


@pytest.mark.parametrize("unified", [True, False])
def test_recurrent_memory_is_copied_whole_and_not_cut(folder: Path, unified: bool) -> None:
    engine = load(folder / "recurrent.gguf", kv_unified=unified, max_batch_size=4)
    runner = runner_of(engine)
    assert not runner.memory.cuts
    expected = fresh(runner, [*TOKENS, 33])
    run(runner, prompt(0, TOKENS))
    runner.copy(0, 3, len(TOKENS))
    rows = run(runner, prompt(3, [33], len(TOKENS)), prompt(0, [44], len(TOKENS)))
    assert close(rows[0], expected[-1])
    with pytest.raises(RuntimeError, match="cannot remove"):
        runner.cut(3, 4)
    runner.cut(3, 0)
    assert close(run(runner, prompt(3, TOKENS)), expected[-2:-1])
    engine.close()


def test_sliding_windows_are_kept_whole_unless_told_otherwise(folder: Path) -> None:
    engine = load(folder / "sliding.gguf", kv_unified=True, max_batch_size=2)
    runner = runner_of(engine)
    assert runner.memory.cuts
    tokens = [(7 * i) % VOCAB_SIZE for i in range(40)]
    expected = fresh(runner, [*tokens[:20], 33])
    run(runner, prompt(0, tokens))
    runner.cut(0, 20)
    assert close(run(runner, prompt(0, [33], 20)), expected[-1:])
    engine.close()
    engine = load(folder / "sliding.gguf", kv_unified=True, max_batch_size=2, swa_full=False)
    runner = runner_of(engine)
    assert not runner.memory.cuts
    run(runner, prompt(0, tokens[:20]))
    assert close(run(runner, prompt(0, [33], 20)), expected[-1:])
    engine.close()


def test_one_adapter_a_run(folder: Path) -> None:
    engine = load(folder / "llama.gguf", adapters={"lora": "lora.gguf"}, max_batch_size=2)
    runner = runner_of(engine)
    assert runner.memory.one_adapter
    plain = fresh(runner, TOKENS)
    adapted = run(runner, Chunk(0, 0, TOKENS, len(TOKENS), "lora"))
    assert not close(adapted, plain)
    assert close(fresh(runner, TOKENS), plain)
    with pytest.raises(ValueError, match="one adapter"):
        runner.run([Chunk(0, 0, [5], 1, "lora"), Chunk(1, 0, [5], 1)])
    engine.close()
