"""LoRA adapters from PEFT folders, against models whose weights were merged by hand."""

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from enginebay import BackendUnavailableError, InvalidRequestError, Lora
from enginebay.engine.batching.runner import Chunk
from enginebay_hf.lora import Adapters
from enginebay_hf.packed.fused import fuse
from enginebay_hf.packed.prepack import prepack
from enginebay_hf.packed.probe import TOKENS, probe
from enginebay_hf.packed.runner import PackedRunner
from enginebay_hf.sampling_runner import Vocabulary
from tests.backends.tiny import Run, greedy_reference, load, make_model, request

NEW_TOKENS = 10
PROMPT = [5, 60, 7, 80, 9, 100, 11]
TARGETS = {
    "llama": ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"],
    "qwen3_moe": ["self_attn.q_proj", "self_attn.o_proj"],
    "gpt2": ["attn.c_attn", "mlp.c_proj"],
}


def load_model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def save_adapter(
    folder: Path, model: PreTrainedModel, targets: list[str], *, seed: int, **config: Any
) -> Path:
    """A random adapter, as PEFT writes it."""
    generator = torch.Generator().manual_seed(seed)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none", **config}
    tensors = {}
    for name, module in model.named_modules():
        if name.endswith(tuple(targets)):
            inside, outside = sizes(module)
            rank = next(
                (r for key, r in config.get("rank_pattern", {}).items() if name.endswith(key)),
                config["r"],
            )
            key = f"base_model.model.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(rank, inside, generator=generator) * 0.3
            tensors[f"{key}.lora_B.weight"] = torch.randn(outside, rank, generator=generator) * 0.3
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def sizes(module: torch.nn.Module) -> tuple[int, int]:
    outside, inside = module.weight.shape
    return (outside, inside) if isinstance(module, Conv1D) else (inside, outside)


def merged(model: PreTrainedModel, folder: Path, scales: dict[str, float]) -> PreTrainedModel:
    """The model with the adapter in its weights; `scales` by the end of a layer's name."""
    from safetensors.torch import load_file

    model = deepcopy(model)
    tensors = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for key, down in tensors.items():
            if ".lora_A." not in key:
                continue
            name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            scale = next(s for end, s in scales.items() if name.endswith(end))
            delta = tensors[key.replace("lora_A", "lora_B")] @ down * scale
            module = model.get_submodule(name)
            module.weight += delta.T if isinstance(module, Conv1D) else delta
    return model


@pytest.fixture(params=list(TARGETS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def targets(family: str) -> list[str]:
    return TARGETS[family]


@pytest.fixture
def model(family: str, tmp_path: Path) -> PreTrainedModel:
    changes = {"head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1}
    return load_model(
        make_model(tmp_path / family, family, **(changes if family == "qwen3_moe" else {}))
    )


def runner_of(model: PreTrainedModel, adapters: Adapters | None = None) -> PackedRunner:
    verdict = probe(model, random.Random(4).choices(range(4, 320), k=TOKENS))
    assert verdict.layers
    return PackedRunner(
        model,
        verdict.layers,
        Vocabulary(str, size=0),
        slots=4,
        capacity=64,
        adapters=adapters,
        decoder=verdict.decoder,
    )


def greedy(runner: PackedRunner, names: list[str | None]) -> list[list[int]]:
    """The tokens of one prompt under each adapter, all in the same passes."""
    known = [list(PROMPT) for _ in names]
    held = [0] * len(names)
    while len(known[0]) < len(PROMPT) + NEW_TOKENS:
        chunks = [
            Chunk(slot, held[slot], known[slot][held[slot] :], 1, adapter)
            for slot, adapter in enumerate(names)
        ]
        tokens = runner.run(chunks).argmax(-1).tolist()
        for slot, token in enumerate(tokens):
            held[slot] = len(known[slot])
            known[slot].append(token)
    runner.clear()
    return [tokens[len(PROMPT) :] for tokens in known]


@pytest.mark.parametrize("prepacked", [False, True], ids=["plain", "fused and prepacked"])
def test_each_token_has_its_own_adapter(
    model: PreTrainedModel, targets: list[str], tmp_path: Path, prepacked: bool
) -> None:
    one = save_adapter(tmp_path / "one", model, targets, seed=1)
    two = save_adapter(tmp_path / "two", model, targets[:1], seed=2, r=9, use_rslora=True)
    expected = {
        None: model,
        "one": merged(model, one, {"": 6 / 4}),
        "two": merged(model, two, {"": 6 / 3}),
    }
    tokens = {name: greedy_reference(m, PROMPT, NEW_TOKENS) for name, m in expected.items()}
    assert len({tuple(t) for t in tokens.values()}) == 3
    if prepacked:
        fuse(model)
        prepack(model)
    adapters = Adapters(model)
    runner = runner_of(model, adapters)
    adapters.load("one", [Lora(str(one))])
    assert greedy(runner, ["one", None]) == [tokens["one"], tokens[None]]
    adapters.load("two", [Lora(str(two))])
    assert adapters.names == ("one", "two")
    names = ["two", None, "one", "two"]
    assert greedy(runner, names) == [tokens[name] for name in names]
    assert greedy(runner, ["two", "two"]) == [tokens["two"]] * 2
    adapters.load("one", [Lora(str(two))])
    assert greedy(runner, ["one", None]) == [tokens["two"], tokens[None]]
    adapters.unload("one")
    assert adapters.names == ("two",)
    assert greedy(runner, ["two", None]) == [tokens["two"], tokens[None]]
    with pytest.raises(KeyError, match="one"):
        runner.run([Chunk(0, 0, PROMPT, 1, "one")])


@pytest.fixture
def llama(tiny_llama: Path) -> PreTrainedModel:
    return load_model(tiny_llama)


def test_patterns_give_layers_their_own_rank_and_scale(
    llama: PreTrainedModel, tmp_path: Path
) -> None:
    folder = save_adapter(
        tmp_path / "a",
        llama,
        TARGETS["llama"],
        seed=1,
        rank_pattern={"q_proj": 2},
        alpha_pattern={"layers.1.mlp.down_proj": 16, "q_proj": 3},
    )
    expected = merged(llama, folder, {"layers.1.mlp.down_proj": 16 / 4, "q_proj": 3 / 2, "": 6 / 4})
    tokens = greedy_reference(expected, PROMPT, NEW_TOKENS)
    adapters = Adapters(llama)
    adapters.load("a", [Lora(str(folder))])
    assert greedy(runner_of(llama, adapters), ["a"]) == [tokens]


def test_rows_of_a_batch_have_adapters_too(llama: PreTrainedModel, tmp_path: Path) -> None:
    folder = save_adapter(tmp_path / "a", llama, TARGETS["llama"], seed=1)
    ids = torch.tensor([PROMPT, PROMPT[::-1]])
    plain = llama(ids).logits
    expected = merged(llama, folder, {"": 6 / 4})(ids).logits
    adapters = Adapters(llama)
    adapters.load("a", [Lora(str(folder))])
    with torch.inference_mode():
        with adapters.applied(["a"]):
            close(llama(ids).logits, expected)
        with adapters.applied([None] * len(PROMPT) + ["a"] * len(PROMPT)):
            close(llama(ids).logits, torch.stack((plain[0], expected[1])))
        close(llama(ids).logits, plain)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_without_adapters_none_can_be_asked_for(llama: PreTrainedModel) -> None:
    with pytest.raises(KeyError):
        runner_of(llama).run([Chunk(0, 0, PROMPT, 1, "a")])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"lora_bias": True}, "lora_bias"),
        ({"bias": "all"}, "bias: all"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa"),
        ({"peft_type": "IA3"}, "IA3"),
    ],
)
def test_what_is_not_supported_is_said(
    llama: PreTrainedModel, tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    folder = save_adapter(tmp_path / "a", llama, TARGETS["llama"], seed=1, **config)
    assert reason in refusal(llama, folder)


def test_an_adapter_must_fit_the_model(llama: PreTrainedModel, tmp_path: Path) -> None:
    good = save_adapter(tmp_path / "a", llama, TARGETS["llama"], seed=1)
    q_proj = "base_model.model.model.layers.0.self_attn.q_proj"
    down, up = torch.ones(4, 32), torch.ones(32, 4)

    def refused(**tensors: torch.Tensor) -> str:
        tensors = {key.replace("__", "."): tensor for key, tensor in tensors.items()}
        save_file(tensors, good / "adapter_model.safetensors")
        return refusal(llama, good)

    assert "32 to 32" in refused(
        **{f"{q_proj}.lora_A.weight": torch.ones(4, 31), f"{q_proj}.lora_B.weight": up}
    )
    assert "no lora_B" in refused(**{f"{q_proj}.lora_A.weight": down})
    assert "layers.9" in refused(
        **{
            f"{q_proj.replace('.0.', '.9.')}.lora_A.weight": down,
            f"{q_proj.replace('.0.', '.9.')}.lora_B.weight": up,
        }
    )
    assert "output layer" in refused(
        **{
            "base_model.model.lm_head.lora_A.weight": down,
            "base_model.model.lm_head.lora_B.weight": torch.ones(320, 4),
        }
    )
    assert "lora_magnitude" in refused(**{f"{q_proj}.lora_magnitude_vector.weight": down})
    assert "no weights" in refused()
    (good / "adapter_model.safetensors").write_bytes(b"nonsense")
    assert "cannot be read" in refusal(llama, good)
    (good / "adapter_config.json").unlink()
    assert "adapter_config.json" in refusal(llama, good)


def refusal(model: PreTrainedModel, folder: Path) -> str:
    adapters = Adapters(model)
    layers = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(BackendUnavailableError) as caught:
        adapters.load("mine", [Lora(str(folder))])
    assert "'mine'" in caught.value.message
    assert str(folder) in caught.value.message
    assert adapters.names == ()
    assert {name: type(module) for name, module in model.named_modules()} == layers
    return caught.value.message


@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_requests_choose_adapters(tmp_path: Path, batching: str) -> None:
    folder = make_model(tmp_path / "llama")
    model = load_model(folder)
    adapters = {
        name: save_adapter(tmp_path / name, model, TARGETS["llama"], seed=seed)
        for seed, name in enumerate(("one", "two"))
    }
    paths = {name: str(path) for name, path in adapters.items()}
    engine = load(folder, batching=batching, adapters=paths)
    assert engine.info.adapters == ("one", "two")
    run = Run(
        engine,
        *(request(PROMPT, id=str(name), adapter=name) for name in (None, "one", "two")),
    )
    run.finish()
    assert run.token_ids("None") == greedy_reference(model, PROMPT, 12)
    for name, path in adapters.items():
        reference = merged(model, path, {"": 6 / 4})
        assert run.token_ids(name) == greedy_reference(reference, PROMPT, 12)


@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_an_engine_loads_and_unloads_them_while_it_runs(tmp_path: Path, batching: str) -> None:
    folder = make_model(tmp_path / "llama")
    model = load_model(folder)
    one, two = (
        Lora(str(save_adapter(tmp_path / name, model, TARGETS["llama"], seed=seed)), 0.5)
        for seed, name in enumerate(("one", "two"))
    )
    weaker = merged(model, Path(one.path), {"": 3 / 4})
    expected = {
        "None": greedy_reference(model, PROMPT, 12),
        "one": greedy_reference(weaker, PROMPT, 12),
        "both": greedy_reference(merged(weaker, Path(two.path), {"": 3 / 4}), PROMPT, 12),
    }
    engine = load(folder, batching=batching)
    run = Run(engine, request(PROMPT, id="early")).steps(3)
    engine.load_adapter("one", [one])
    engine.load_adapter("both", [one, two])
    assert engine.info.adapters == ("one", "both")
    for name in (None, "one", "both"):
        run.add(request(PROMPT, id=str(name), adapter=name))
    run.finish()
    assert run.token_ids("early") == expected["None"]
    assert {name: run.token_ids(name) for name in expected} == expected
    Path(two.path, "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(
        InvalidRequestError, match=r"'bad' \(.*two\): its peft_type is 'IA3'"
    ) as bad:
        engine.load_adapter("bad", [one, two])
    assert bad.value.param == "loras"
    engine.unload_adapter("one")
    engine.unload_adapter("one")
    assert engine.info.adapters == ("both",)
    engine.unload_adapter("both")
    late = Run(engine, request(PROMPT, id="None")).finish()
    assert late.token_ids("None") == expected["None"]
    with pytest.raises(InvalidRequestError, match="no adapter 'both'"):
        engine.add_request(request(PROMPT, adapter="both"))
    engine.close()


def test_the_last_one_leaves_the_model_as_it_was(llama: PreTrainedModel, tmp_path: Path) -> None:
    layers = {name: type(module) for name, module in llama.named_modules()}
    adapters = Adapters(llama)
    for name in ("one", "two"):
        folder = save_adapter(tmp_path / name, llama, TARGETS["llama"], seed=1)
        adapters.load(name, [Lora(str(folder))])
    adapters.unload("one")
    assert {name: type(module) for name, module in llama.named_modules()} != layers
    adapters.unload("two")
    assert {name: type(module) for name, module in llama.named_modules()} == layers
