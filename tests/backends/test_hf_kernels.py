"""Rows that decode together attend by batched products, with the tokens of `generate`."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from enginebay.engine.batching.runner import Chunk
from enginebay_hf.packed import kernels
from enginebay_hf.packed.attention import layer_shapes
from enginebay_hf.packed.kernels import Kind
from enginebay_hf.packed.runner import PackedRunner
from enginebay_hf.sampling_runner import Vocabulary
from tests.backends.test_hf_packed import GQA, WIDE, build, probed
from tests.backends.tiny import greedy_reference

SLOTS, CAPACITY, NEW_TOKENS = 29, 90, 12


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows attend by products in each call from now on."""
    rows: list[int] = []
    multiply = kernels._multiply

    def watching(query: Tensor, *rest: Any) -> None:
        rows.append(len(query))
        multiply(query, *rest)

    monkeypatch.setattr(kernels, "_multiply", watching)
    return rows


@pytest.mark.parametrize(
    ("family", "changes", "in_one_layer"),
    [
        ("llama", GQA, [16, 8]),
        ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4}, [16, 8]),
        ("mistral", {**GQA, "sliding_window": 8}, [16, 8]),
        ("qwen3", WIDE, [16, 8]),
        ("gemma2", {**WIDE, "sliding_window": 8, "attn_logit_softcapping": 2.0}, []),
    ],
)
def test_tokens_of_many_rows_are_those_of_generate(
    family: str,
    changes: dict[str, Any],
    in_one_layer: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("enginebay_hf.packed.runner.products_pay", lambda: True)
    monkeypatch.setattr(kernels, "_rows_together", lambda keys: 8)
    model = build(tmp_path, family, changes)
    choose = random.Random(1)
    prompts = [choose.choices(range(4, 320), k=choose.randint(1, 75)) for _ in range(SLOTS)]
    expected = [greedy_reference(model, prompt, NEW_TOKENS) for prompt in prompts]
    verdict = probed(model)
    layers = layer_shapes(model)
    runner = PackedRunner(
        model,
        layers,
        Vocabulary(str, size=0),
        slots=SLOTS,
        capacity=CAPACITY,
        decoder=verdict.decoder,
    )
    assert not runner._by_products  # in float32
    runner._by_products = True
    for slot, prompt in enumerate(prompts):
        if prompt[:-1]:
            runner.run([Chunk(slot, 0, prompt[:-1], logits=0)])
    seen = watched(monkeypatch)
    last = [prompt[-1] for prompt in prompts]
    for step in range(NEW_TOKENS):
        chunks = [
            Chunk(slot, len(prompts[slot]) - 1 + step, [last[slot]], logits=1)
            for slot in choose.sample(range(SLOTS), SLOTS)
        ]
        greedy = runner.run(chunks).argmax(-1).tolist()
        for chunk, token in zip(chunks, greedy, strict=True):
            last[chunk.slot] = token
            assert token == expected[chunk.slot][step]
    assert seen == in_one_layer * len(layers) * NEW_TOKENS


@pytest.mark.parametrize(("queries", "size"), [(1, 16), (3, 64), (4, 128), (8, 80)])
def test_in_bfloat16_rows_are_those_of_eager_attention(
    queries: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_rows_together", lambda keys: 4)
    generator = torch.Generator().manual_seed(2)
    memory = torch.randn(2, 40, 2, 100, size, generator=generator).bfloat16()
    keys, values = memory[:, 3:34, :, 32:96]
    query = torch.randn(31, 2, queries, size, generator=generator).bfloat16()
    mask = torch.zeros(31, 1, 1, 64)
    for row in range(31):
        mask[row, ..., 2 * row + 1 :] = -math.inf
    rows = kernels.attend_rows(query, keys, values, mask, Kind())
    scores = query @ keys.transpose(2, 3)
    weights = (scores.float() * size**-0.5 + mask).softmax(-1)
    torch.testing.assert_close(rows, weights.bfloat16() @ values, atol=0.02, rtol=0.02)
    of_one = kernels.attend_rows(query, keys, values, mask, Kind(scale=3.0))[0]
    assert of_one.equal(values[0, :, :1].expand(-1, queries, -1))


@pytest.mark.parametrize(
    ("rows", "positions", "blocks"),
    [
        (7, 128, []),
        (8, 128, [8]),
        (31, 128, [16, 8]),
        (64, 128, [16, 16, 16, 16]),
        (3, 224, []),
        (7, 320, [4]),
        (1, 1024, [1]),
        (3, 8192, [2, 1]),
    ],
)
def test_products_are_of_few_sizes_and_never_small(
    rows: int, positions: int, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    query = torch.zeros(rows, 4, 3, 64).bfloat16()
    keys = torch.zeros(1, 4, positions, 64).bfloat16().expand(rows, -1, -1, -1)
    mask = torch.zeros(rows, 1, 1, positions)
    result = kernels.attend_rows(query, keys.contiguous(), keys.contiguous(), mask, Kind())
    assert not result.any()
    assert seen == blocks


def test_it_is_used_only_where_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert kernels.products_pay()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert not kernels.products_pay()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch, "bmm", lambda a, b, out=None: torch.matmul(a, b, out=out).neg_())
    assert not kernels.products_pay()
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    assert not kernels.products_pay()


@given(st.integers(1, 1 << 20))
def test_lengths_are_few_and_not_much_more(positions: int) -> None:
    length = kernels.length(positions)
    assert positions <= length <= max(positions * 1.25, positions + 1)
    assert kernels.length(length) == length


def test_an_octave_has_four_lengths() -> None:
    assert len({kernels.length(positions) for positions in range(1025, 2049)}) == 4
