"""The hf engine's passes on a CUDA device: over pages, with CUDA graphs, or a fallback.

Which of them a machine can do is found by probes. Where it cannot, a test says why it is skipped.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from enginebay.engine.batching.runner import Chunk
from enginebay_hf import choose
from enginebay_hf.engine import HFEngine
from enginebay_hf.packed.paged_attention import NotPagedError
from enginebay_hf.packed.paged_runner import PagedRunner
from enginebay_hf.packed.probe import tolerance
from enginebay_hf.packed.runner import PackedRunner
from tests.backends.tiny import Run, load, make_model, make_tokenizer, request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.hf,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = "cuda"
DTYPE = torch.bfloat16
GQA = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128, "head_dim": 32}
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", GQA),
    ("llama", {**GQA, "num_key_value_heads": 4, "head_dim": 64}),
    ("mistral", {**GQA, "sliding_window": 100}),
    ("qwen3", {**GQA, "head_dim": 128}),
    ("gemma3_text", {**GQA, "sliding_window": 300, "num_hidden_layers": 6}),
]
LONG = random.Random(3).choices(range(4, 320), k=900)


def load_on_gpu(folder: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> HFEngine:
    caplog.set_level("INFO")
    caplog.clear()
    return load(folder, **{"device": DEVICE, "dtype": "bfloat16", **options})


def how(caplog: pytest.LogCaptureFixture) -> str:
    """What loading has said of the model's passes."""
    lines = [record.getMessage() for record in caplog.records]
    return "; ".join(line.partition(": ")[2] for line in lines if " pass" in line or "page" in line)


def paged_engine(folder: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> HFEngine:
    engine = load_on_gpu(folder, caplog, **options)
    if not isinstance(engine._runner, PagedRunner):
        pytest.skip(how(caplog))
    return engine


def rows_engine(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> HFEngine:
    def none(device: torch.device, dtype: torch.dtype) -> Any:
        raise NotPagedError("the test says so")

    with monkeypatch.context() as patch:
        patch.setattr(choose, "find_kernels", none)
        engine = load_on_gpu(folder, caplog, **options)
    assert isinstance(engine._runner, PackedRunner)
    return engine


@pytest.fixture(params=FAMILIES, ids=[f"{i}-{name}" for i, (name, _) in enumerate(FAMILIES)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, changes = request.param
    return make_model(tmp_path, family, **{"max_position_embeddings": 1024, **changes})


def reference(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval().to(DEVICE)


@torch.inference_mode()
def plain(model: PreTrainedModel, text: list[int]) -> Tensor:
    return model(torch.tensor([text], device=DEVICE), use_cache=False).logits[0].float()


def in_chunks(runner: Any) -> Tensor:
    """All logits of the long text, prefilled beside others and decoded, from a copied slot."""
    runner.run([Chunk(0, 0, LONG[:300]), Chunk(1, 0, LONG[50:90], 1)])
    logits = [runner.run([Chunk(1, 40, [7], 1), Chunk(0, 300, LONG[300:500], 200)])[1:]]
    runner.copy(0, 2, 400)
    runner.cut(0, 0)
    runner.run([Chunk(2, 400, LONG[400:500], 1)])
    for at in range(500, 520):
        logits.append(runner.run([Chunk(1, at - 459, [8], 1), Chunk(2, at, [LONG[at]], 1)])[1:])
    logits.append(runner.run([Chunk(2, 520, LONG[520:], len(LONG) - 520)]))
    runner.clear()
    return torch.cat(logits)


def assert_alike(actual: Tensor, expected: Tensor, exact: Tensor) -> None:
    """Logits as near to each other as rounding lets them be, and no clear choice another."""
    distance = (actual - expected).abs().max() / expected.std()
    assert distance < tolerance(DTYPE)
    rounding = max((actual - exact).abs().max(), (expected - exact).abs().max())
    best = exact.topk(2).values
    clear = best[:, 0] - best[:, 1] > 2 * rounding
    assert clear.any()
    assert torch.equal(actual.argmax(-1)[clear], expected.argmax(-1)[clear])


def test_loading_says_how_passes_run(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = load_on_gpu(folder, caplog)
    assert isinstance(engine._runner, PagedRunner | PackedRunner)
    assert engine._runner._model.device.type == DEVICE
    said = how(caplog)
    print(said)
    if isinstance(engine._runner, PagedRunner):
        assert "packed forward passes over pages" in said
        assert "CUDA graphs" in said
    else:
        assert "paged KV cache disabled because" in said
    run = Run(engine, request(LONG[:400], id="a", n=2), request(LONG[:20], id="b")).finish()
    assert run.token_ids("a", 0) == run.token_ids("a", 1)
    assert len(run.token_ids("b")) == 12


@pytest.mark.parametrize("paged", [True, False], ids=["paged", "rows"])
def test_logits_are_those_of_the_model(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, paged: bool
) -> None:
    engine = paged_engine(folder, caplog) if paged else rows_engine(folder, caplog, monkeypatch)
    exact = plain(reference(folder, torch.float32), LONG)[300:]
    expected = plain(reference(folder, DTYPE), LONG)[300:]
    assert_alike(in_chunks(engine._runner), expected, exact)


def test_graphs_compute_what_plain_passes_do(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = paged_engine(folder, caplog, max_batch_size=20)
    runner = engine._runner
    if "with CUDA graphs" not in how(caplog):
        pytest.skip(how(caplog))
    exact = reference(folder, torch.float32)

    def decode(count: int) -> Tensor:
        texts = [LONG[slot : slot + 250 + slot] for slot in range(count)]
        runner.run([Chunk(slot, 0, text) for slot, text in enumerate(texts)])
        logits = [
            runner.run([Chunk(slot, len(text) + at, [9], 1) for slot, text in enumerate(texts)])
            for at in range(8)
        ]
        runner.clear()
        return torch.cat(logits)

    counts = (1, 2, 3, 8, 15, 20)
    captured = [decode(count) for count in counts]
    runner.drop_captured()
    for count, logits in zip(counts, captured, strict=True):
        wanted = torch.cat(
            [
                plain(exact, LONG[slot : slot + 250 + slot] + [9] * (at + 1))[-1:]
                for at in range(8)
                for slot in range(count)
            ]
        )
        assert_alike(logits, decode(count), wanted)


def test_throughput(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Not a test of speed: it only writes down what it saw."""
    make_tokenizer().save_pretrained(tmp_path)
    config = AutoConfig.for_model("llama", **SIZES)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPE)
    model.save_pretrained(tmp_path)
    weights = sum(parameter.numel() for parameter in model.parameters())
    del model
    options = {"max_batch_size": max(STREAMS), "context_length": 1024}
    engine = load_on_gpu(tmp_path, caplog, **options)
    passes = {how(caplog): throughput(engine)}
    if isinstance(engine._runner, PagedRunner):
        engine._runner.drop_captured()
        passes["packed forward passes over pages, without CUDA graphs"] = throughput(engine)
        engine.close()
        engine = rows_engine(tmp_path, caplog, monkeypatch, **options)
        passes[how(caplog)] = throughput(engine)
    engine.close()
    record_property("parameters", weights)
    record_property("dtype", str(DTYPE).removeprefix("torch."))
    record_property("tokens", {"prompt": PROMPT, "completion": COMPLETION})
    record_property("tokens per second by streams", passes)


SIZES = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
STREAMS = (1, 16, 64)
PROMPT, COMPLETION = 128, 128


def throughput(engine: HFEngine) -> dict[int, float]:
    """Generated tokens a second, prefill included, by how many requests run together."""
    choose_tokens = random.Random(5)
    found = {}
    for streams in (1, *STREAMS):  # the first is to warm up
        prompts = [choose_tokens.choices(range(4, 320), k=PROMPT) for _ in range(streams)]
        run = Run(engine)
        started = time.perf_counter()
        for number, prompt in enumerate(prompts):
            run.add(request(prompt, id=str(number), max_tokens=COMPLETION))
        run.finish()
        seconds = time.perf_counter() - started
        tokens = sum(len(run.token_ids(str(number))) for number in range(streams))
        assert tokens == streams * COMPLETION
        found[streams] = round(tokens / seconds, 1)
    return found
