"""Products in 8 bits: close to the model's own, and no row depends on its company."""

import os
import platform
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

from enginebay import Lora
from enginebay_hf.lora import Adapters
from enginebay_hf.packed.fused import fuse
from enginebay_hf.packed.int8 import Int8Linear, Int8WeightLinear, product_fault, quantize
from enginebay_hf.packed.prepack import prepack
from enginebay_hf.packed.runner import PackedRunner
from tests.backends.test_hf_lora import save_adapter
from tests.backends.test_hf_packed import GQA, NEW_TOKENS, Stream, build, drive, prompts, runner_of
from tests.backends.tiny import Run, greedy_reference, load, make_model, refusal, request
from tests.support import DEMO_MODEL, REPOSITORY

LINEAR = nn.Linear(96, 80)

needs_equal_rows = pytest.mark.skipif(
    bool(product_fault()), reason="without VNNI, few rows are rounded otherwise than many"
)
LAYERS = [pytest.param(Int8WeightLinear, id="weights")]
if not product_fault():  # on x86, without VNNI
    LAYERS.append(pytest.param(Int8Linear, id="weights and inputs"))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_close(
    dtype: torch.dtype, kind: type[Int8Linear] | type[Int8WeightLinear]
) -> None:
    generator = torch.Generator().manual_seed(3)
    linear = deepcopy(LINEAR).to(dtype)
    quantized = kind(linear)
    hidden = torch.randn(1, 40, 96, generator=generator).to(dtype)
    hidden[0, 7] *= 1000  # another row's large numbers coarsen no row but their own
    together = quantized(hidden)
    expected = linear(hidden)
    assert together.dtype == dtype
    apart = (together - expected).abs().amax(-1) / expected.float().std(-1)
    assert apart.max() < 0.1
    for row in range(0, 40, 7):
        alone = quantized(hidden[:, row : row + 1])
        if kind is Int8Linear:
            assert torch.equal(alone, together[:, row : row + 1])
        else:
            spread = expected[:, row].float().std()
            assert (alone - together[:, row : row + 1]).abs().max() < 0.02 * spread
    assert quantized(hidden[:, :0]).shape == (1, 0, 80)
    assert quantized(torch.zeros(2, 96, dtype=dtype)).isfinite().all()
    assert quantized(torch.full((1, 96), torch.nan, dtype=dtype)).isnan().all()
    assert quantized.weight.shape == linear.weight.shape


@needs_equal_rows
@pytest.mark.parametrize("name", ["llama", "qwen3", "olmo2"])
def test_tokens_are_the_same_alone_and_in_company(name: str, tmp_path: Path) -> None:
    changes = {**GQA, "head_dim": 16} if name == "qwen3" else GQA
    model = build(tmp_path, name, changes)
    ids = torch.arange(4, 60)[None]
    before = model(ids).logits.log_softmax(-1)
    if name != "olmo2":
        fuse(model)
    quantize(model)
    prepack(model)
    after = model(ids).logits.log_softmax(-1)
    divergence = (before.exp() * (before - after)).sum(-1).mean()
    assert 0 < divergence < 0.05  # random weights; figures of a trained model: docs/guides/hf.md
    streams = [Stream(prompt, greedy_reference(model, prompt, NEW_TOKENS)) for prompt in prompts(5)]
    drive(runner_of(model), streams, seed=5)


def test_the_output_layer_and_other_weights_stay(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", {"tie_word_embeddings": True})
    assert quantize(model) == 14
    assert isinstance(model.get_output_embeddings(), nn.Linear)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    with pytest.raises(ValueError, match="no plain linear layers"):
        quantize(model)


@torch.inference_mode()
def test_adapters_apply_on_top(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", GQA)
    folder = save_adapter(tmp_path / "one", model, ["self_attn.q_proj", "mlp.down_proj"], seed=1)
    fuse(model)
    quantize(model)
    adapters = Adapters(model)
    plain = model(torch.arange(9)[None]).logits
    adapters.load("one", [Lora(str(folder))])
    torch.testing.assert_close(model(torch.arange(9)[None]).logits, plain)
    with adapters.applied(["one"]):
        adapted = model(torch.arange(9)[None]).logits
    assert not torch.allclose(adapted, plain, atol=0.1)


@needs_equal_rows
def test_an_engine_in_8_bits_answers(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "llama", **GQA)
    alone = Run(load(folder, quantize="int8"), request([5, 6, 7])).finish()
    engine = load(folder, quantize="int8", dtype="float32")
    others = [request([9, 8, 7, 6, 5 + i], id=str(i)) for i in range(3)]
    company = Run(engine, request([5, 6, 7]), *others).finish()
    assert company.token_ids() == alone.token_ids()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_in_8_bits_batches(dtype: str) -> None:
    """A difference in the last bit may round to another code: that is no fault of the batch."""
    engine = load(DEMO_MODEL, quantize="int8", dtype=dtype)
    assert isinstance(engine._runner, PackedRunner)
    engine.close()


def test_embeddings_are_not_in_8_bits() -> None:
    assert "quantize is for text" in refusal(DEMO_MODEL, quantize="int8", embeddings=True)


def test_a_model_without_plain_layers_is_refused(tmp_path: Path) -> None:
    said = refusal(make_model(tmp_path / "model", "gpt2"), quantize="int8")
    assert "quantize: int8 does not work: " in said
    assert "no plain linear layers" in said


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets the instructions of x86")
def test_a_processor_without_vnni_stores_weights_alone_in_8_bits() -> None:
    """REAL-3, REAL-15: torch's sums of 8-bit numbers overflow there."""
    code = (
        "from tests.backends.tiny import Run, load, request; "
        "from tests.support import DEMO_MODEL; "
        "from enginebay_hf.packed.int8 import Int8WeightLinear, product_fault; "
        "engine = load(DEMO_MODEL, quantize='int8'); "
        "layers = engine._runner._model.model.modules(); "
        "kinds = sum(isinstance(layer, Int8WeightLinear) for layer in layers); "
        "answer = Run(engine, request([5, 6, 7])).finish().token_ids(); "
        "print(product_fault(), '|', kinds > 0, len(answer) > 0)"
    )
    without = {"DNNL_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | without,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "torch multiplies 8-bit numbers wrong on this processor" in ran.stdout
    assert "| True True" in ran.stdout
