"""How large the cache becomes, on GPUs that are told of."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from enginebay import BackendUnavailableError
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.options import ExLlamaV2Options

pytestmark = pytest.mark.usefixtures("exllamav2_on_cpu")

MIB = 2**20
# Llama 3.1 8B, of 16 GiB in float16.
MODEL = SimpleNamespace(
    num_hidden_layers=32,
    num_key_value_heads=8,
    head_dim=128,
    rope=SimpleNamespace(context_length=131072),
)
WEIGHTS = 16 * 1024 * MIB


def tokens(monkeypatch: pytest.MonkeyPatch, free_gib: list[float], **options: Any) -> int:
    """Tokens of the cache beside the weights on GPUs with so much free memory."""
    from enginebay_exllamav2.memory import cache_bytes_per_token, cache_tokens
    from enginebay_exllamav2.weights import free_memory

    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free_gib))
    free = [int(gib * 1024 * MIB) for gib in free_gib]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free[index], free[index]))
    given = ExLlamaV2Options.model_validate(options)
    model = SimpleNamespace(**vars(MODEL))
    if given.context_length:
        model.rope = SimpleNamespace(context_length=given.context_length)
    return cache_tokens(
        ExLlamaV2Checkpoint(Path("/models/llama")),
        given,
        model,
        weights=WEIGHTS,
        token_bytes=cache_bytes_per_token(model, given.cache_type),
        free=free_memory(given),
    )


@pytest.mark.parametrize(
    ("cache_type", "kib"), [("f16", 128), ("q8", 68 + 4), ("q6", 52 + 4), ("q4", 36 + 4)]
)
def test_what_a_token_takes(cache_type: Any, kib: int) -> None:
    """Two numbers a head's dimension and layer; quantized ones have a layer in float16 beside."""
    from enginebay_exllamav2.memory import cache_bytes_per_token

    assert cache_bytes_per_token(MODEL, cache_type) == kib * 1024


@pytest.mark.parametrize(
    ("free_gib", "options", "expected"),
    [
        ([141], {}, 131072),  # one whole context is more than 16 of 4096 tokens
        ([141], {"context_length": 8192}, 16 * 4096),
        ([141], {"context_length": 8192, "max_batch_size": 1}, 8192),
        ([141], {"context_length": 2048}, 16 * 2048),
        ([141], {"context_length": 1000, "max_batch_size": 1}, 1024),
        ([24], {}, 45824),  # 24 * 0.9 - 16 GiB, of 128 KiB each
        ([12, 12], {}, 45824),
        ([24, 24], {"gpu_split": [20]}, 45824),
        ([24], {"cache_type": "q8"}, 81408),
        ([24], {"context_length": 8192}, 45824),
        ([24], {"cache_tokens": 100000}, 100096),  # who asks for it gets to try
        ([24], {"paged": False, "context_length": 8192}, 8192),
        ([24], {"context_length": 8192, "max_batch_size": 1, "prompt_lookup": 4}, 8448),
        ([], {"context_length": 8192}, 16 * 4096),
    ],
)
def test_how_much_is_chosen(
    free_gib: list[float],
    options: dict[str, Any],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tokens(monkeypatch, free_gib, **options) == expected


def test_a_context_that_was_asked_for_and_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BackendUnavailableError, match=r"45824 tokens .* of 65536 need 65536; "):
        tokens(monkeypatch, [24], context_length=65536)


def test_no_room_for_any_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailableError, match=r"0 tokens .* of any length need 256; "):
        tokens(monkeypatch, [17])


def test_weights_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailableError, match=r"need 16\.0 GiB, but only 12\.0"):
        tokens(monkeypatch, [12])
