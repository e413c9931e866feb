"""Layers in few operations: the tokens of the model's own code, or that code itself."""

import logging
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay.engine.batching.runner import Chunk
from enginebay_hf.packed.attention import attending_layers
from enginebay_hf.packed.decoder import is_known
from enginebay_hf.packed.fused import FusedLinear, Part, fuse
from enginebay_hf.packed.prepack import prepack
from enginebay_hf.packed.switching import switch
from tests.backends.test_hf_packed import (
    GQA,
    MOE,
    NEW_TOKENS,
    WIDE,
    Stream,
    build,
    drive,
    probed,
    prompts,
    runner_of,
)
from tests.backends.tiny import Run, greedy_reference, load, make_model, request

KNOWN: list[tuple[str, dict[str, Any]]] = [
    ("llama", {**GQA, "num_hidden_layers": 3}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("mistral", {**GQA, "sliding_window": 8}),
    ("mixtral", {"sliding_window": None, **MOE, **GQA}),
    ("qwen2", {**GQA, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3", WIDE),
    ("qwen3_moe", {**WIDE, **MOE}),
    ("seed_oss", WIDE),
    ("gemma", WIDE),
    ("gemma2", {**WIDE, "sliding_window": 8, "attn_logit_softcapping": 2.0}),
    ("gemma2", {**WIDE, "sliding_window": 8, "final_logit_softcapping": 2.0}),
    ("gemma3_text", {**WIDE, "sliding_window": 8, "num_hidden_layers": 7}),
]


@pytest.mark.parametrize("prepacked", [False, True], ids=["fused", "fused and prepacked"])
@pytest.mark.parametrize(
    ("family", "changes"), KNOWN, ids=[f"{i}-{name}" for i, (name, _) in enumerate(KNOWN)]
)
def test_tokens_are_those_of_generate(
    family: str, changes: dict[str, Any], prepacked: bool, tmp_path: Path
) -> None:
    model = build(tmp_path, family, changes)
    seed = KNOWN.index((family, changes)) + 50
    streams = [
        Stream(prompt, greedy_reference(model, prompt, NEW_TOKENS)) for prompt in prompts(seed)
    ]
    assert is_known(model)
    assert fuse(model) >= model.config.num_hidden_layers
    assert fuse(model) == 0
    for stream in streams:  # the model's own code
        expected = stream.whole[len(stream.prompt) :]
        assert greedy_reference(model, stream.prompt, NEW_TOKENS) == expected
    if prepacked:
        prepack(model)
    runner = runner_of(model)
    assert runner._model._decoder
    drive(runner, streams, seed)


def test_in_float32_logits_are_those_of_the_models_own_code(tmp_path: Path) -> None:
    model = build(tmp_path, "qwen3", WIDE)
    own = runner_of(deepcopy(model))
    own._model._decoder = None
    decoded = runner_of(model)
    chunks = [Chunk(0, 0, [5, 6, 7, 8], logits=4), Chunk(1, 0, [9], logits=1)]
    assert decoded._model._decoder
    torch.testing.assert_close(decoded.run(chunks), own.run(chunks), atol=1e-5, rtol=1e-5)


class Scaled(torch.nn.Module):
    """A layer with the parts of another, which makes something else of them."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        for name, child in layer.named_children():
            self.add_module(name, child)
        self._layer = (layer,)

    def forward(self, hidden: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        output: torch.Tensor = self._layer[0](hidden, **kwargs)
        return output * 1.5


@pytest.mark.parametrize("unlike", ["computes something else", "has another part"])
def test_a_model_that_is_not_what_it_seems_keeps_its_own_code(
    unlike: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(tmp_path, "llama", GQA)
    if unlike == "has another part":
        model.model.layers[1].add_module("gate", torch.nn.Identity())
    else:
        model.model.layers[0] = Scaled(model.model.layers[0])
    streams = [Stream(prompt, greedy_reference(model, prompt, NEW_TOKENS)) for prompt in prompts(3)]
    with caplog.at_level(logging.DEBUG):
        runner = runner_of(model)
    assert runner._model._decoder is None
    reason = "other parts: gate" if "part" in unlike else "standard deviations off"
    assert "LlamaForCausalLM: its layers run by transformers' own code, because " in caplog.text
    assert reason in caplog.text
    drive(runner, streams, seed=3)


def test_layers_of_models_that_are_not_known_are_left_alone(tmp_path: Path) -> None:
    model = build(tmp_path, "olmo2", GQA)
    assert not is_known(model)
    assert probed(model).decoder is None


def test_only_plain_layers_of_one_kind_are_joined(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", GQA)
    first, second = model.model.layers
    first.self_attn.v_proj.bias = torch.nn.Parameter(
        torch.zeros(first.self_attn.v_proj.out_features)
    )
    second.mlp.up_proj.weight = second.mlp.gate_proj.weight
    ids = torch.arange(5, 25)[None]
    before = model(ids).logits
    assert fuse(model) == 2
    assert isinstance(second.self_attn.q_proj, Part)
    assert isinstance(first.mlp.fused_gate_up, FusedLinear)
    assert type(first.self_attn.q_proj) is type(second.mlp.up_proj) is torch.nn.Linear
    torch.testing.assert_close(model(ids).logits, before)
    switch(model)
    assert [*attending_layers(model)] == [0, 1]


def test_a_part_has_the_shape_of_its_layer_and_computes_alone(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", GQA)
    key = deepcopy(model.model.layers[0].self_attn.k_proj)
    fuse(model)
    part = model.model.layers[0].self_attn.k_proj
    hidden = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(part(hidden), key(hidden))
    other = hidden + 1
    torch.testing.assert_close(part(other), key(other))
    assert (part.in_features, part.out_features) == (key.in_features, key.out_features)
    torch.testing.assert_close(part.weight, key.weight)


def test_an_engine_answers_alike_with_joined_layers_and_without(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "qwen2", **GQA)
    texts = {}
    asked = [random.Random(i).choices(range(4, 320), k=5 + 9 * i) for i in range(4)]
    for fused in (True, False):
        run = Run(load(folder, fuse_projections=fused))
        for number, prompt in enumerate(asked):
            run.add(request(prompt, id=str(number), max_tokens=NEW_TOKENS))
        run.finish()
        texts[fused] = [run.token_ids(str(number)) for number in range(len(asked))]
    assert texts[True] == texts[False]
