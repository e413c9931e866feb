"""Keys and values in pages: the code that runs on GPUs, with kernels in plain torch."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen
from transformers import PreTrainedModel

from enginebay import Lora
from enginebay.engine.batching.runner import Chunk, MemoryFullError
from enginebay_hf.lora import Adapters
from enginebay_hf.packed.attention import NAME, layer_shapes
from enginebay_hf.packed.graphs import CudaCapture
from enginebay_hf.packed.paged_attention import NotPagedError, find_kernels
from enginebay_hf.packed.paged_probe import capture_decoding, probe_paged
from enginebay_hf.packed.paged_runner import PagedRunner
from enginebay_hf.packed.probe import TOKENS, Verdict
from enginebay_hf.packed.runner import PackedRunner
from enginebay_hf.sampling_runner import Vocabulary
from tests.backends.paged import Captured, nothing, varlen_attn
from tests.backends.test_hf_lora import save_adapter
from tests.backends.test_hf_packed import (
    GEMMA4,
    GQA,
    MLA,
    MOE,
    NEW_TOKENS,
    WIDE,
    Stream,
    build,
    drive,
    probed,
    prompts,
)
from tests.backends.tiny import greedy_reference

TEXT = random.Random(4).choices(range(4, 320), k=TOKENS)
PAGED: list[tuple[str, dict[str, Any]]] = [
    ("llama", GQA),
    ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4, "attention_bias": True}),
    ("mistral", GQA),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3_moe", {**WIDE, **MOE}),
    ("gemma3_text", WIDE),
    ("gemma4_text", {**WIDE, **GEMMA4}),
    ("gpt2", {}),
    ("olmo3", {"sliding_window": 8, "num_hidden_layers": 4}),
    ("cohere2", {"sliding_window": 8, "num_hidden_layers": 4}),
    ("glm4", WIDE),
]
NOT_PAGED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma2", {**WIDE, "sliding_window": 8, "attn_logit_softcapping": 2.0}, "soft caps"),
    ("gpt_oss", {**WIDE, **MOE, "sliding_window": 8}, "sinks"),
    ("deepseek_v3", MLA, "differ in size"),
]


def probed_paged(model: PreTrainedModel, kernel: Any = varlen_attn, page_size: int = 32) -> Verdict:
    return probe_paged(model, TEXT, kernel, context_length=256, page_size=page_size)


def runner_of(
    model: PreTrainedModel,
    *,
    captured: Captured | None = None,
    slots: int = 5,
    page_size: int = 4,
    pages: int = 200,
    adapters: Adapters | None = None,
) -> PagedRunner:
    if model.config._attn_implementation != NAME:
        verdict = probed_paged(model)
        assert verdict.exact, verdict.reason
    runner = PagedRunner(
        model,
        layer_shapes(model),
        Vocabulary(str, size=0),
        varlen_attn,
        slots=slots,
        capacity=128,
        pages=pages,
        page_size=page_size,
        adapters=adapters,
    )
    if captured:
        assert not capture_decoding(runner, captured, TEXT, rows=slots, dtype=torch.float32)
    return runner


@pytest.mark.parametrize(
    ("family", "changes"), PAGED, ids=[f"{i}-{name}" for i, (name, _) in enumerate(PAGED)]
)
def test_tokens_are_those_of_generate(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = build(tmp_path, family, changes)
    expected = [greedy_reference(model, prompt, NEW_TOKENS) for prompt in prompts(7)]
    for captured in (None, Captured()):
        streams = [Stream(*pair) for pair in zip(prompts(7), expected, strict=True)]
        runner = runner_of(model, captured=captured)
        whole = runner._pages._tables.free
        drive(runner, streams, seed=7)
        assert runner._pages._tables.free == whole
        assert captured is None or captured.replays > 20


@pytest.mark.parametrize("page_size", [16, 32, 256])
@pytest.mark.parametrize("context_length", [64, 256])
def test_models_are_probed_over_the_end_of_a_page(
    llama: PreTrainedModel, page_size: int, context_length: int
) -> None:
    pages = set()

    def noting(*args: Any, **kwargs: Any) -> Any:
        pages.add(kwargs["block_table"].shape[1])
        return varlen_attn(*args, **kwargs)

    llama.set_attn_implementation("sdpa")
    verdict = probe_paged(llama, TEXT, noting, context_length=context_length, page_size=page_size)
    assert verdict.exact, verdict.reason
    assert (max(pages) > 1) == (page_size < context_length)
    assert llama.config._attn_implementation == NAME


@pytest.mark.parametrize(("family", "changes", "reason"), NOT_PAGED)
def test_models_that_the_kernel_cannot_do_are_packed_in_rows(
    family: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    model = build(tmp_path, family, changes)
    verdict = probed_paged(model)
    assert not verdict.exact
    assert reason in verdict.reason
    assert probed(model).exact


def wrong_window(*args: Any, window_size: tuple[int, int], **kwargs: Any) -> Any:
    left, right = window_size
    return varlen_attn(*args, window_size=(left + 1 if left >= 0 else left, right), **kwargs)


def wrong_page(*args: Any, block_table: torch.Tensor, **kwargs: Any) -> Any:
    return varlen_attn(
        *args, block_table=block_table[:, :1].repeat(1, block_table.shape[1]), **kwargs
    )


@pytest.mark.parametrize("kernel", [wrong_window, wrong_page, nothing])
def test_kernels_that_are_wrong_are_found_out(kernel: Any, tmp_path: Path) -> None:
    model = build(tmp_path, "gemma3_text", WIDE)
    verdict = probed_paged(model, kernel)
    assert not verdict.exact
    assert "standard deviations" in verdict.reason
    assert model.config._attn_implementation == "sdpa"


def test_the_kernel_of_torch_is_refused_where_it_does_not_run(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", GQA)
    verdict = probed_paged(model, varlen.varlen_attn)
    assert not verdict.exact
    assert "_flash_attention_forward" in verdict.reason
    assert probed(model).exact


def test_kernels_are_for_cuda_and_half_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda:0")
    assert find_kernels(cuda, torch.bfloat16)[0] is varlen.varlen_attn
    with pytest.raises(NotPagedError, match="float32"):
        find_kernels(cuda, torch.float32)
    with pytest.raises(NotPagedError, match="device cpu"):
        find_kernels(torch.device("cpu"), torch.bfloat16)

    def older(query: Any, key: Any, value: Any, *, scale: Any = None, window_size: Any = None):
        raise AssertionError

    monkeypatch.setattr(varlen, "varlen_attn", older)
    with pytest.raises(NotPagedError, match="has no block_table, enable_gqa, seqused_k"):
        find_kernels(cuda, torch.bfloat16)


def test_a_copy_takes_a_page_only_when_one_of_both_writes(llama: PreTrainedModel) -> None:
    runner = runner_of(llama, page_size=4, pages=20)
    tables, free = runner._pages._tables, 19
    runner.run([Chunk(0, 0, [5, 6, 7, 8, 9, 10], logits=1)])
    assert tables.free == free - 2
    runner.copy(0, 1, 6)
    runner.copy(0, 2, 4)
    assert tables.free == free - 2
    runner.run([Chunk(1, 6, [11], logits=1)])  # leaves the half-full page to slot 0
    assert tables.free == free - 3
    runner.run([Chunk(0, 6, [12], logits=1), Chunk(2, 4, [13], logits=1)])
    assert tables.free == free - 4
    runner.cut(0, 0)
    assert tables.free == free - 3
    runner.cut(1, 0)
    runner.cut(2, 0)
    assert tables.free == free


def test_full_memory_is_said_before_anything_changes(llama: PreTrainedModel) -> None:
    runner = runner_of(llama, page_size=4, pages=4, slots=2)
    first = runner.run([Chunk(0, 0, [5, 6, 7, 8, 9], logits=1)])
    runner.copy(0, 1, 5)
    with pytest.raises(MemoryFullError):
        runner.run([Chunk(0, 5, [10], logits=1), Chunk(1, 5, [11, 12, 13, 14], logits=1)])
    with pytest.raises(ValueError, match="do not fit"):
        runner.run([Chunk(0, 5, [5] * 128)])
    runner.cut(0, 4)
    torch.testing.assert_close(runner.run([Chunk(0, 4, [9], logits=1)]), first)
    runner.cut(1, 4)
    torch.testing.assert_close(runner.run([Chunk(1, 4, [9], logits=1)]), first)


def test_what_went_wrong_in_a_page_is_gone_when_it_is_used_again(llama: PreTrainedModel) -> None:
    runner = runner_of(llama, page_size=16, pages=8)
    clean = runner.run([Chunk(1, 0, [5, 6], logits=1)])
    runner.clear()
    head = llama.get_input_embeddings().weight
    good = head[9].clone()
    with torch.no_grad():
        head[9] = torch.nan
        runner.run([Chunk(0, 0, [5])])
        assert runner.run([Chunk(0, 1, [9] * 100, logits=1)]).isnan().all()
        head[9] = good
    runner.cut(0, 1)
    torch.testing.assert_close(runner.run([Chunk(0, 1, [6], logits=1)]), clean)
    torch.testing.assert_close(runner.run([Chunk(1, 0, [5, 6], logits=1)]), clean)


def test_captured_logits_outlive_the_next_pass(llama: PreTrainedModel) -> None:
    captured = Captured()
    runner = runner_of(llama, captured=captured)
    runner.run([Chunk(0, 0, [5, 6]), Chunk(1, 0, [7, 8, 9])])
    captured.replays = 0
    first = runner.run([Chunk(0, 2, [10], 1), Chunk(1, 3, [11], 1)])
    kept = first.clone()
    second = runner.run([Chunk(1, 4, [12]), Chunk(0, 3, [13], 1)])
    assert captured.replays == 2
    assert (first.shape, second.shape) == ((2, 320), (1, 320))
    assert torch.equal(first, kept)
    assert not torch.equal(first[0], second[0])


def test_short_chunks_are_decoded_with_the_others(llama: PreTrainedModel) -> None:
    captured = Captured()
    runner, plain = runner_of(llama, captured=captured), runner_of(llama)
    captured.replays = 0
    prompts = [[5, 6, *range(40, 60)], [7, 8, 9, *range(60, 80)]]
    steps = [
        [Chunk(0, 0, prompts[0]), Chunk(1, 0, prompts[1])],
        [Chunk(0, 22, [10], 1), Chunk(1, 23, [11, 12, 13], 1)],  # forced tokens
        [Chunk(1, 26, [14, 15, 16], 3), Chunk(0, 23, [17, 18])],  # a draft, and no logits
        [Chunk(0, 25, [19], 1), Chunk(1, 29, [20], 1)],
    ]
    for step in steps:
        torch.testing.assert_close(runner.run(step), plain.run(step), atol=1e-4, rtol=1e-4)
    assert captured.replays == 3


def test_adapters_are_applied_though_decoding_is_captured(tmp_path: Path) -> None:
    plain, adapted = (build(tmp_path / name, "llama", GQA) for name in ("plain", "adapted"))
    folder = save_adapter(tmp_path / "one", adapted, ["q_proj", "down_proj"], seed=1)
    adapters = Adapters(adapted)
    adapters.load("one", [Lora(str(folder))])
    captured = Captured()
    runner = runner_of(adapted, captured=captured, adapters=adapters)
    reference = PackedRunner(
        plain, layer_shapes_of(plain), Vocabulary(str, size=0), slots=5, capacity=64
    )
    captured.replays = 0
    chunks = [Chunk(0, 0, [5, 6, 7], 1, "one"), Chunk(1, 0, [5, 6, 7], 1)]
    before = runner.run(chunks)
    assert not torch.allclose(before[0], before[1], atol=0.1)
    mixed = runner.run([Chunk(0, 3, [8], 1, "one"), Chunk(1, 3, [8], 1)])
    assert captured.replays == 0
    runner.cut(1, 3)
    alone = runner.run([Chunk(1, 3, [8], 1)])
    assert captured.replays == 1
    torch.testing.assert_close(alone[0], mixed[1], atol=1e-4, rtol=1e-4)
    reference.run([Chunk(0, 0, [5, 6, 7], 1)])
    torch.testing.assert_close(
        reference.run([Chunk(0, 3, [8], 1)])[0], alone[0], atol=1e-4, rtol=1e-4
    )


def layer_shapes_of(model: PreTrainedModel) -> Any:
    assert probed(model).exact
    return layer_shapes(model)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is for machines without one")
def test_nothing_is_captured_without_a_device(llama: PreTrainedModel) -> None:
    runner = runner_of(llama)
    capture = CudaCapture.__new__(CudaCapture)
    capture._device, capture._pool = torch.device("cuda"), None
    reason = capture_decoding(runner, capture, TEXT, rows=4, dtype=torch.float32)
    assert reason
    assert runner.run([Chunk(0, 0, [5], logits=1)]).shape == (1, 320)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    return build(tmp_path_factory.mktemp("paged"), "llama", GQA)
