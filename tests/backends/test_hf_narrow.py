"""Weights in 16 bits, computed in float32, and the measurement that chooses this (REAL-3)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf import loading, number_format
from enginebay_hf.estimate import ModelShape
from enginebay_hf.number_format import NumberFormat, choose_format, known_costs, record_costs
from enginebay_hf.options import HFOptions
from enginebay_hf.packed.fused import fuse
from enginebay_hf.packed.narrow import NarrowEmbedding, NarrowLinear, narrow, widen_for_many
from enginebay_hf.packed.products import cpu_costs, measured_costs
from tests.backends.test_hf_decoder import KNOWN
from tests.backends.test_hf_packed import build
from tests.backends.tiny import Run, load, make_model, request

AVX2 = {"narrow": 1.0, "float32": 1.5}
AVX512_BF16 = {"narrow": 3.0, "float32": 2.0, "bfloat16": 1.0}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep costs in a file of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "enginebay" / "products.json"


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("computed", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 40])
def test_products_of_any_number_of_rows(
    stored: torch.dtype, computed: torch.dtype, rows: int
) -> None:
    torch.manual_seed(rows)
    linear = nn.Linear(96, 700)
    weight = linear.weight.detach().to(stored)
    hidden = (torch.randn(1, rows, 96) * 1e5).to(computed)  # beyond the range of float16
    product = NarrowLinear(linear, weight)(hidden)
    expected = nn.functional.linear(hidden.float(), weight.float(), linear.bias)
    assert product.dtype == computed
    assert product.shape == (1, rows, 700)
    rough = rows and (computed == torch.bfloat16 or (stored == torch.bfloat16 and rows <= 3))
    error = (product.float() - expected).abs().max() / expected.std() if rows else 0.0
    assert error < (0.05 if rough else 2e-3)


def test_products_of_nothing_and_of_no_number() -> None:
    linear = nn.Linear(8, 5, bias=False)
    layer = NarrowLinear(linear, linear.weight.detach().half())
    assert layer(torch.zeros(2, 8)).eq(0).all()
    assert layer(torch.full((1, 8), torch.nan)).isnan().all()
    torch.testing.assert_close(layer.weight, linear.weight, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "changes"), KNOWN, ids=[f"{i}-{name}" for i, (name, _) in enumerate(KNOWN)]
)
def test_logits_are_close_to_the_float32_models(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = build(tmp_path, family, changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())  # so that both have the same numbers
    texts = [torch.arange(4, 4 + tokens)[None] for tokens in (2, 40)]
    expected = [model(ids).logits for ids in texts]
    model.half()
    fuse(model)
    assert narrow(model)
    assert model.dtype == torch.float32
    assert isinstance(model.get_input_embeddings(), NarrowEmbedding)
    with torch.inference_mode():
        for ids, logits in zip(texts, expected, strict=True):
            distance = (model(ids).logits - logits).abs().max() / logits.std()
            assert distance < 0.02


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", {"tie_word_embeddings": True}).to(torch.bfloat16)
    narrow(model)
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    assert embedding._narrow is output._narrow
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_numbers_too_large_for_float16_become_float32(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", {"tie_word_embeddings": False}).to(torch.bfloat16)
    with torch.no_grad():
        model.get_output_embeddings().weight[3, 4] = 7e4
    expected = model.get_output_embeddings().weight.float().clone()
    narrow(model)
    output = model.get_output_embeddings()
    assert isinstance(output, nn.Linear)
    torch.testing.assert_close(output.weight, expected, atol=0, rtol=0)
    with torch.inference_mode():
        assert model(torch.arange(9)[None]).logits.isfinite().all()


def test_an_embedding_of_another_kind_becomes_float32(tmp_path: Path) -> None:
    """OPT's positions are an embedding that adds an offset to its ids."""
    model = build(tmp_path, "opt", {})
    expected = model.half().float()(torch.arange(9)[None]).logits
    model.half()
    narrow(model)
    positions = model.get_submodule("model.decoder.embed_positions")
    assert not isinstance(positions, NarrowEmbedding)
    with torch.inference_mode():
        logits = model(torch.arange(9)[None]).logits
    torch.testing.assert_close(logits, expected, atol=0.02, rtol=0.02)


def test_a_model_that_is_computed_in_16_bits(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", {}).to(torch.bfloat16)
    expected = model(torch.arange(30)[None]).logits
    assert widen_for_many(model)
    assert model.dtype == torch.bfloat16
    torch.testing.assert_close(model(torch.arange(30)[None]).logits, expected, atol=0.1, rtol=0.1)


# The choice.


@pytest.mark.parametrize(
    ("stored", "costs", "options", "expected"),
    [
        ("bfloat16", AVX2, {}, ("bfloat16", "float32")),
        ("float16", AVX2, {}, ("float16", "float32")),
        ("float32", AVX2, {}, ("float32", "float32")),
        ("bfloat16", AVX512_BF16, {}, ("bfloat16", "bfloat16")),
        ("float16", AVX512_BF16, {}, ("float32", "float32")),
        ("bfloat16", {"narrow": 1.1, "float32": 1.0}, {}, ("bfloat16", "float32")),
        ("bfloat16", {"narrow": 1.2, "float32": 1.0}, {}, ("float32", "float32")),
        ("bfloat16", AVX2, {"prepack": False}, ("float32", "float32")),
        ("bfloat16", AVX2, {"device_map": "auto"}, ("float32", "float32")),
        ("bfloat16", AVX2, {"dtype": "bfloat16"}, ("bfloat16", "bfloat16")),
        ("bfloat16", AVX2, {"dtype": "float32"}, ("float32", "float32")),
    ],
)
def test_the_fastest_format_is_chosen(
    stored: str, costs: Any, options: dict[str, Any], expected: tuple[str, str], tmp_path: Path
) -> None:
    folder = stored_in(tmp_path, stored)
    chosen = choose_format(Checkpoint(folder), HFOptions(**options), "cpu", lambda: costs)
    assert chosen == NumberFormat(*expected)


def test_a_gpu_computes_in_the_format_of_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = Checkpoint(stored_in(tmp_path, "float16"))
    chosen = choose_format(checkpoint, HFOptions(), "cuda", dict)
    assert chosen == NumberFormat("float16", "float16")
    checkpoint.config["quantization_config"] = {}
    assert choose_format(checkpoint, HFOptions(), "cuda", dict) is None


def test_the_measurement_is_made_once(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cpu_costs()
    assert {"narrow", "float32"} <= first.keys()
    assert min(first.values()) > 0
    monkeypatch.setattr("enginebay_hf.packed.products.measured_costs", pytest.fail)
    assert cpu_costs() == first
    assert known_costs() == first
    with monkeypatch.context() as other:
        other.setenv("ATEN_CPU_CAPABILITY", "fewer instructions")
        assert known_costs() != first
        record_costs({"float32": 2.0})
        assert known_costs() == {"float32": 2.0}
    assert cpu_costs() == first
    assert len(json.loads(record.read_text())) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}', b"\xff"])
def test_a_damaged_record_is_measured_anew(record: Path, text: str | bytes) -> None:
    record.parent.mkdir(parents=True)
    record.write_bytes(text.encode() if isinstance(text, str) else text)
    assert cpu_costs()["float32"] > 0
    assert json.loads(record.read_text())


def test_costs_without_a_place_to_write_are_measured_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cpu_costs()["float32"] > 0


def test_the_guess_before_a_measurement(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for hardware, best in ((True, "bfloat16"), (False, "narrow")):
        monkeypatch.setattr(number_format, "cpu_has_bfloat16", lambda has=hardware: has)
        costs = known_costs()
        assert min(costs, key=costs.__getitem__) == best


def test_threads_are_as_before_after_the_measurement() -> None:
    before = torch.get_num_threads()
    measured_costs()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("stored", "asked", "costs", "computed"),
    [
        ("float32", "auto", AVX512_BF16, torch.float32),
        ("bfloat16", "auto", AVX512_BF16, torch.bfloat16),
        ("bfloat16", "auto", AVX2, torch.float32),
        ("float16", "auto", AVX2, torch.float32),
        ("float32", "bfloat16", AVX2, torch.bfloat16),
        ("bfloat16", "float32", AVX512_BF16, torch.float32),
    ],
)
def test_an_engine_in_each_format_answers(
    stored: str,
    asked: Any,
    costs: Any,
    computed: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "cpu_costs", lambda: costs)
    engine = load(stored_in(tmp_path, stored), dtype=asked)
    assert engine._runner._model.dtype == computed
    assert len(Run(engine, request([5, 6, 7])).finish().token_ids()) == 12


def test_the_estimate_counts_weights_in_16_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Path
) -> None:
    record_costs(AVX2)  # type: ignore[arg-type]
    checkpoint = Checkpoint(stored_in(tmp_path, "bfloat16"))
    narrowed = ModelShape.of(checkpoint, HFOptions(), gpu=False)
    whole = ModelShape.of(checkpoint, HFOptions(dtype="float32"), gpu=False)
    assert narrowed.weight_bytes < 0.51 * whole.weight_bytes
    assert narrowed.token_bytes == whole.token_bytes
    assert narrowed.prepacked_bytes(HFOptions()) == 0


def stored_in(folder: Path, dtype: str) -> Path:
    """A tiny model whose checkpoint has this number format."""
    made = make_model(folder / "model", "llama")
    AutoModelForCausalLM.from_pretrained(made, dtype=getattr(torch, dtype)).save_pretrained(made)
    return made
