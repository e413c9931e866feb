"""Packed forward passes: whatever is run together, each sequence gets the tokens of `generate`."""

import random
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from enginebay.engine.batching.runner import Chunk
from enginebay_hf.packed.attention import NAME, layer_shapes
from enginebay_hf.packed.prepack import prepack
from enginebay_hf.packed.probe import TOKENS, Verdict, probe
from enginebay_hf.packed.runner import PackedRunner
from enginebay_hf.sampling_runner import Vocabulary
from tests.backends.tiny import greedy_reference, make_model, request

GQA = {"num_attention_heads": 4, "num_key_value_heads": 2}
WIDE = {"head_dim": 16, **GQA}
MOE = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
GEMMA3N = {
    "sliding_window": 8,
    "num_hidden_layers": 3,
    "intermediate_size": [48] * 3,
    "activation_sparsity_pattern": [0.0] * 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "vocab_size_per_layer_input": 320,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "laurel_rank": 4,
}
GEMMA4 = {
    "sliding_window": 8,
    "num_hidden_layers": 3,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "vocab_size_per_layer_input": 320,
    "hidden_size_per_layer_input": 8,
}

PACKED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {**GQA, "num_hidden_layers": 3}),
    ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4, "attention_bias": True}),
    ("mistral", GQA),
    ("mixtral", {"sliding_window": None, **MOE, **GQA}),
    ("qwen2", GQA),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3", WIDE),
    ("qwen3_moe", {**WIDE, **MOE}),
    ("gemma", WIDE),
    ("gemma2", {**WIDE, "sliding_window": 8, "attn_logit_softcapping": 2.0}),
    ("gemma3_text", WIDE),
    ("gemma3n_text", {**WIDE, **GEMMA3N}),
    ("gemma4_text", {**WIDE, **GEMMA4}),
    ("phi", GQA),
    ("phi3", {"sliding_window": None, **GQA}),
    ("gpt_oss", {**WIDE, **MOE, "sliding_window": 8}),
    ("gpt2", {}),
    ("gpt_neox", {}),
    ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    ("olmo", GQA),
    ("olmo2", GQA),
    ("olmo3", {"sliding_window": 8, "num_hidden_layers": 4}),
    ("olmoe", MOE),
    ("stablelm", GQA),
    ("nemotron", GQA),
    ("starcoder2", {"sliding_window": 8, **GQA}),
    ("granite", GQA),
    ("granitemoe", MOE),
    ("cohere", GQA),
    ("cohere2", {"sliding_window": 8, "num_hidden_layers": 4}),
    ("glm4", WIDE),
    ("smollm3", GQA),
    ("exaone4", {"sliding_window": 8, "num_hidden_layers": 4}),
    ("ernie4_5", GQA),
    ("minimax_m2", {**WIDE, **MOE}),
    ("seed_oss", WIDE),
    ("hunyuan_v1_dense", WIDE),
    ("deepseek_v3", MLA),
    ("apertus", GQA),
    ("arcee", GQA),
    ("helium", {"head_dim": 8, **GQA}),
    ("biogpt", {}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("bloom", {}),  # alibi
    ("lfm2", {}),  # convolutions between attention layers
    ("qwen3_next", {}),  # recurrent and attention layers
    ("mamba2", {}),
    ("falcon", {}),  # attention code of its own
    ("diffllama", GQA),  # uses the attention function in a way of its own
]
NEW_TOKENS = 14


def build(folder: Path, family: str, changes: dict[str, Any]) -> PreTrainedModel:
    # One small vocabulary for all: make_model gives each configuration other weights.
    path = make_model(folder / family, family, **changes)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def probed(model: PreTrainedModel) -> Verdict:
    return probe(model, random.Random(4).choices(range(4, 320), k=TOKENS))


def runner_of(model: PreTrainedModel, capacity: int = 128) -> PackedRunner:
    """With the decoder where there is one. A model that was probed before is known to be exact."""
    decoder = None
    if model.config._attn_implementation != NAME:
        verdict = probed(model)
        assert verdict.exact, verdict.reason
        decoder = verdict.decoder
    layers, vocabulary = layer_shapes(model), Vocabulary(str, size=model.config.vocab_size)
    return PackedRunner(model, layers, vocabulary, slots=5, capacity=capacity, decoder=decoder)


class Stream:
    """One sequence in a slot: what it has, what the runner holds of it, what must come out."""

    def __init__(self, prompt: list[int], expected: list[int]) -> None:
        self.slot = -1
        self.held = 0
        self.prompt = prompt
        self.whole = prompt + expected
        self.known = len(prompt)
        self.guesses: list[int] = []

    @property
    def finished(self) -> bool:
        return self.known == len(self.whole)

    def chunk(self, choose: random.Random) -> Chunk:
        pending = self.known - self.held
        size = min(pending, choose.choice([1, 3, 8, 20, 33]))
        self.guesses = []
        if pending == 1 and self.known + 2 < len(self.whole) and choose.random() < 0.3:
            right = self.whole[self.known]
            wrong = (self.whole[self.known + 1] + 1) % 320
            self.guesses = [right, wrong]
        ids = self.whole[self.held : self.held + size] + self.guesses
        logits = 1 + len(self.guesses) if size == pending else 0
        return Chunk(self.slot, self.held, ids, logits)

    def take(self, runner: PackedRunner, chunk: Chunk, tokens: list[int]) -> None:
        self.held += len(chunk.token_ids)
        if self.guesses:
            assert tokens[0] == self.guesses[0]
            tokens = tokens[:2]
            self.held -= 1  # the wrong guess
            runner.cut(self.slot, self.held)
        for token in tokens:
            assert token == self.whole[self.known]
            self.known += 1


def drive(runner: PackedRunner, waiting: list[Stream], seed: int) -> None:
    """Run streams that join, leave, share prefixes, are cut back and verify guesses."""
    choose = random.Random(seed)
    running: list[Stream] = []
    free = list(range(runner.memory.slots))
    while waiting or running:
        if waiting and free and choose.random() < 0.6:
            stream = waiting.pop(0)
            stream.slot = free.pop(choose.randrange(len(free)))
            for other in running:
                shared = shared_prefix(stream.prompt[:-1], other.whole[: other.held])
                if shared > stream.held:
                    runner.cut(stream.slot, 0)
                    runner.copy(other.slot, stream.slot, shared)
                    stream.held = shared
            running.append(stream)
        if not running:
            continue
        if choose.random() < 0.1:
            stream = choose.choice(running)
            stream.held = choose.randrange(stream.held + 1)
            runner.cut(stream.slot, stream.held)
        step = choose.sample(running, choose.randint(1, len(running)))
        chunks = [stream.chunk(choose) for stream in step]
        logits = runner.run(chunks)
        assert len(logits) == sum(chunk.logits for chunk in chunks)
        greedy = logits.argmax(-1).tolist()
        for stream, chunk in zip(step, chunks, strict=True):
            stream.take(runner, chunk, [greedy.pop(0) for _ in range(chunk.logits)])
        for stream in [stream for stream in running if stream.finished]:
            running.remove(stream)
            free.append(stream.slot)
            runner.cut(stream.slot, 0)


def shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a[: len(b)]))


def prompts(seed: int) -> list[list[int]]:
    choose = random.Random(seed)
    of = [choose.choices(range(4, 320), k=k) for k in (3, 31, 60, 12)]
    return [*of, of[2], of[2][:33] + of[3]]


@pytest.mark.parametrize(
    ("family", "changes"), PACKED, ids=[f"{i}-{name}" for i, (name, _) in enumerate(PACKED)]
)
def test_tokens_are_those_of_generate(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = build(tmp_path, family, changes)
    seed = PACKED.index((family, changes))
    streams = [
        Stream(prompt, greedy_reference(model, prompt, NEW_TOKENS)) for prompt in prompts(seed)
    ]
    drive(runner_of(model), streams, seed)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "gpt_oss", "deepseek_v3", "olmoe"])
def test_prepacked_weights_change_no_token(name: str, tmp_path: Path) -> None:
    changes = {**dict(PACKED)[name], "tie_word_embeddings": name == "llama"}
    model = build(tmp_path, name, changes)
    streams = [Stream(prompt, greedy_reference(model, prompt, NEW_TOKENS)) for prompt in prompts(7)]
    if not prepack(model):
        pytest.skip("oneDNN's operations are not there")
    drive(runner_of(model), streams, seed=7)


def test_the_plain_weights_are_freed_and_logits_are_close(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", {"tie_word_embeddings": True}).to(torch.bfloat16)
    ids = torch.arange(30)[None]
    before = model(ids).logits
    plain = model.get_submodule("model.layers.0.mlp.up_proj").weight
    if not prepack(model):
        pytest.skip("oneDNN's operations are not there")
    assert prepack(model) == 0
    assert [name for name, _ in model.named_parameters() if "proj" in name] == []
    output = model.get_output_embeddings()
    assert torch.equal(output.weight, model.get_input_embeddings().weight)
    torch.testing.assert_close(model(ids).logits, before, atol=0.02, rtol=0.02)
    assert torch.equal(model.get_submodule("model.layers.0.mlp.up_proj").weight, plain)


@pytest.mark.parametrize(("family", "changes"), REFUSED, ids=[name for name, _ in REFUSED])
def test_other_models_are_refused_and_left_as_they_were(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = build(tmp_path, family, changes)
    before = model.config._attn_implementation
    tokens = greedy_reference(model, [5, 6, 7], 4)
    verdict = probed(model)
    assert not verdict.exact
    assert verdict.reason
    assert model.config._attn_implementation == before
    assert greedy_reference(model, [5, 6, 7], 4) == tokens


def test_a_model_with_one_layer_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", {})
    attention = model.model.layers[1].self_attn
    attention.config = deepcopy(attention.config)  # keeps its own attention, whatever is asked
    tokens = greedy_reference(model, [5, 6, 7, 8, 9], 4)
    verdict = probed(model)
    assert verdict.distance
    assert "standard deviations" in verdict.reason
    assert model.config._attn_implementation == "sdpa"
    assert greedy_reference(model, [5, 6, 7, 8, 9], 4) == tokens


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    return build(tmp_path_factory.mktemp("packed"), "llama", GQA)


def test_a_pass_may_want_no_logits(llama: PreTrainedModel) -> None:
    runner = runner_of(llama)
    assert runner.run([Chunk(0, 0, [5, 6, 7]), Chunk(3, 0, [8])]).shape == (0, 320)


def test_rows_come_in_the_order_of_the_chunks(llama: PreTrainedModel) -> None:
    runner = runner_of(llama)
    long = list(range(20, 50))
    alone = [
        runner.run([Chunk(0, 0, long, logits=2)]),
        runner.run([Chunk(1, 0, [7], logits=1)]),
        runner.run([Chunk(2, 0, [9], logits=1)]),
    ]
    runner.clear()
    together = runner.run(
        [Chunk(2, 0, long, logits=2), Chunk(4, 0, [7], logits=1), Chunk(3, 0, [9], logits=1)]
    )
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)


def test_a_slot_must_hold_what_is_put_into_it(llama: PreTrainedModel) -> None:
    runner = runner_of(llama, capacity=8)
    with pytest.raises(ValueError, match="do not fit"):
        runner.run([Chunk(0, 0, [5] * 9, logits=1)])


def test_what_went_wrong_in_a_slot_is_gone_when_it_is_cleared(llama: PreTrainedModel) -> None:
    runner = runner_of(llama, capacity=40)
    clean = runner.run([Chunk(1, 0, [5, 6], logits=1)])
    head = llama.get_input_embeddings().weight
    good = head[9].clone()
    with torch.no_grad():
        head[9] = torch.nan
        assert runner.run([Chunk(0, 0, [9] * 30, logits=1)]).isnan().all()
        assert runner.run([Chunk(1, 0, [9] * 30, logits=1)]).isnan().all()
        head[9] = good
    runner.cut(1, 0)
    torch.testing.assert_close(runner.run([Chunk(1, 0, [5, 6], logits=1)]), clean)
    runner.clear()
    torch.testing.assert_close(runner.run([Chunk(0, 0, [5, 6], logits=1)]), clean)


def test_sampling_is_by_row_and_takes_note(llama: PreTrainedModel) -> None:
    runner = runner_of(llama)
    logits = runner.run([Chunk(0, 0, [5, 6, 7], logits=1), Chunk(1, 0, [8, 9], logits=1)])
    greedy = runner.sampler(request([8, 9], logprobs=1), 0)
    choices = [
        runner.sampler(request([5, 6, 7], temperature=3.0, seed=4), index) for index in range(3)
    ]
    sampled = runner.sample(logits, [1, 0, 0, 0], [greedy, *choices], [None] * 4)
    assert sampled[0].token_id == logits[1].argmax().item()
    logprob = sampled[0].logprob
    assert logprob
    assert logprob.logprob == pytest.approx(logits[1].log_softmax(-1).max().item())
    assert len({sample.token_id for sample in sampled[1:]}) > 1
    assert [choice.tokens for choice in choices] == [1, 1, 1]
    again = [
        runner.sampler(request([5, 6, 7], temperature=3.0, seed=4), index) for index in range(3)
    ]
    assert runner.sample(logits[:1], [0, 0, 0], again, [None] * 3) == sampled[1:]


class QuantizedTensor(torch.Tensor):
    """Stands for the weights of a quantizer that leaves the layers as they are (torchao)."""


def test_quantized_weights_are_left_alone(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", {})
    layer = model.get_submodule("model.layers.0.mlp.up_proj")
    quantized = torch.nn.Parameter(layer.weight.data.as_subclass(QuantizedTensor))
    assert type(quantized) is QuantizedTensor
    layer.weight = quantized
    prepack(model)
    assert model.get_submodule("model.layers.0.mlp.up_proj") is layer
