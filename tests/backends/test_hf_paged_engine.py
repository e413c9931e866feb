"""An engine whose keys and values lie in pages: what loading chooses, and what it answers."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen
from transformers import PreTrainedModel

from enginebay_hf import choose
from enginebay_hf.choose_paged import paged_runner
from enginebay_hf.engine import HFEngine
from enginebay_hf.packed.paged_attention import find_kernels
from enginebay_hf.packed.paged_runner import PagedRunner
from enginebay_hf.packed.runner import PackedRunner
from tests.backends.paged import Captured, nothing, refused, varlen_attn
from tests.backends.tiny import PROMPTS, Run, greedy_reference, load, request


def greedy_engine_is_right(engine: HFEngine, model: PreTrainedModel) -> None:
    """Requests that join and leave, share prefixes and have several choices."""
    long = random.Random(1).choices(range(4, 320), k=40)
    asked = {
        "a": request(PROMPTS[0], id="a", max_tokens=30),
        "b": request(long, id="b", n=3),
        "c": request([*long[:33], 7, 8], id="c"),
        "d": request(PROMPTS[2], id="d", n=2, max_tokens=25),
        "e": request(long[:21], id="e", max_tokens=40),
    }
    run = Run(engine, asked["a"], asked["b"]).steps(5)
    run.add(asked["c"])
    run.add(asked["d"])
    run.steps(9)
    run.add(asked["e"])
    run.finish()
    run.add(request([*long, 9], id="again"))
    run.finish()
    for name, item in asked.items():
        expected = greedy_reference(
            model, list(item.prompt_token_ids), item.sampling.max_tokens or 0
        )
        for index in range(item.n):
            assert run.token_ids(name, index) == expected
    assert run.token_ids("again") == greedy_reference(model, [*long, 9], 12)
    assert sum(delta.cached_tokens for delta in run.deltas["c", 0]) >= 32


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> Captured:
    """Loading finds a kernel and something that captures, for pages of 8 tokens."""
    captured = Captured()
    monkeypatch.setattr(choose, "find_kernels", lambda device, dtype: [varlen_attn])
    monkeypatch.setattr(choose, "CudaCapture", lambda device: captured)
    monkeypatch.setattr(choose, "paged_runner", partial(paged_runner, page_size=8))
    return captured


@pytest.mark.parametrize("cache_tokens", [None, 128])
def test_an_engine_answers_as_generate_does(
    tiny_llama: Path,
    model: PreTrainedModel,
    paged: Captured,
    cache_tokens: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    engine = load(
        tiny_llama,
        max_batch_size=6,
        context_length=128,
        prefill_tokens=16,
        cache_tokens=cache_tokens,
    )
    assert isinstance(engine._runner, PagedRunner)
    assert "decoding with CUDA graphs" in caplog.text
    paged.replays = 0
    greedy_engine_is_right(engine, model)
    assert paged.replays > 10


@pytest.mark.parametrize("wrong", ["raises", "is another", "does not follow"])
def test_decoding_is_not_captured_where_that_fails(
    tiny_llama: Path,
    model: PreTrainedModel,
    paged: Captured,
    wrong: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def capture(forward: Any) -> Any:
        if wrong == "raises":
            raise RuntimeError("operation not permitted when stream is capturing")
        logits = forward()
        return lambda: logits if wrong == "does not follow" else forward() + 1

    caplog.set_level("DEBUG")
    monkeypatch.setattr(choose, "CudaCapture", lambda device: capture)
    engine = load(tiny_llama, max_batch_size=6)
    reason = "not permitted when" if wrong == "raises" else "standard deviations off"
    line = next(r.getMessage() for r in caplog.records if "without CUDA graphs" in r.msg % r.args)
    assert reason in line
    greedy_engine_is_right(engine, model)


def test_an_engine_without_a_kernel_says_why_and_uses_rows(
    tiny_llama: Path,
    model: PreTrainedModel,
    paged: Captured,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setattr(choose, "find_kernels", lambda device, dtype: [nothing, refused])
    engine = load(tiny_llama)
    assert isinstance(engine._runner, PackedRunner)
    assert "because its logits are nan standard deviations off; RuntimeError: old" in caplog.text
    greedy_engine_is_right(engine, model)


def test_too_little_memory_for_pages_leaves_the_model_to_rows(
    tiny_llama: Path,
    model: PreTrainedModel,
    paged: Captured,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    caplog.set_level("DEBUG")
    monkeypatch.setattr("enginebay_hf.choose_paged.PagedRunner", full)
    engine = load(tiny_llama)
    assert isinstance(engine._runner, PackedRunner)
    assert "paged KV cache disabled because CUDA out of memory" in caplog.text
    greedy_engine_is_right(engine, model)


def test_a_kernel_is_called_in_another_way_where_the_first_is_refused(
    tiny_llama: Path, model: PreTrainedModel, paged: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flash_attention_3(
        query: Any,
        key: Any,
        value: Any,
        bounds: Any,
        key_bounds: Any,
        *args: Any,
        scale: Any,
        window_size: Any,
        enable_gqa: Any,
        seqused_k: Any,
        block_table: Any,
    ) -> Any:
        if key_bounds is not None:
            raise RuntimeError("If cu_seqlens_k is passed in, then page table is not supported")
        key_bounds = torch.tensor([0, *seqused_k.cumsum(0).tolist()], dtype=torch.int32)
        return varlen_attn(
            query,
            key,
            value,
            bounds,
            key_bounds,
            *args,
            scale=scale,
            window_size=window_size,
            enable_gqa=enable_gqa,
            seqused_k=seqused_k,
            block_table=block_table,
        )

    monkeypatch.setattr(varlen, "varlen_attn", flash_attention_3)
    cuda = torch.device("cuda")
    monkeypatch.setattr(choose, "find_kernels", lambda *_: find_kernels(cuda, torch.bfloat16))
    engine = load(tiny_llama, max_batch_size=6)
    assert isinstance(engine._runner, PagedRunner)
    greedy_engine_is_right(engine, model)
