"""The same tokens from the same numbers as llama.cpp's own samplers have.

But for version 1 of mirostat, which is that of the paper here.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demo.to_gguf import convert
from enginebay import Row, RowSampler, SamplingParams
from enginebay.engine.sampler.dry import Dry
from tests.support import DEMO_MODEL

llama: Any = pytest.importorskip("llama_cpp")

SIZE = 400
SEED = 5


class Reference:
    """A chain of llama.cpp's samplers."""

    def __init__(self, *samplers: Any) -> None:
        self._chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for sampler in samplers:
            llama.llama_sampler_chain_add(self._chain, sampler)

    def apply(self, row: Row) -> tuple[int, Any]:
        """The token that it selects, and the probabilities `[vocabulary]` that it drew from."""
        data = (llama.llama_token_data * len(row))()
        for token_id, logit in enumerate(row.tolist()):
            data[token_id] = llama.llama_token_data(token_id, logit, 0.0)
        array = llama.llama_token_data_array(data, len(row), -1, False)
        llama.llama_sampler_apply(self._chain, ctypes.byref(array))
        left = {array.data[i].id: array.data[i].logit for i in range(array.size)}
        weights = np.full(len(row), -np.inf)
        weights[list(left)] = list(left.values())
        weights = np.exp(weights - weights.max())
        token_id = array.data[array.selected].id if array.selected >= 0 else -1
        return token_id, weights / weights.sum()

    def accept(self, token_id: int) -> None:
        llama.llama_sampler_accept(self._chain, token_id)

    def close(self) -> None:
        llama.llama_sampler_free(self._chain)


def row_of(seed: int, spread: float = 3.0) -> Row:
    return (np.random.default_rng(seed).standard_normal(SIZE) * spread).astype(np.float32)


def sampler_of(**params: Any) -> RowSampler:
    return RowSampler(
        SamplingParams(**params), (), 0, end_token_ids=(), vocab_size=SIZE, token_text=str
    )


CHAINS: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({}, lambda: []),
    "temperature": ({"temperature": 0.4}, lambda: [llama.llama_sampler_init_temp(0.4)]),
    "dynamic": (
        {"temperature": 1.2, "dynatemp_range": 0.9, "dynatemp_exponent": 1.7},
        lambda: [llama.llama_sampler_init_temp_ext(1.2, 0.9, 1.7)],
    ),
    "sigma": ({"top_n_sigma": 1.5}, lambda: [llama.llama_sampler_init_top_n_sigma(1.5)]),
    "top_k": (
        {"top_k": 7, "xtc_probability": 1e-9},
        lambda: [llama.llama_sampler_init_top_k(7)],
    ),
    "typical": ({"typical_p": 0.6}, lambda: [llama.llama_sampler_init_typical(0.6, 1)]),
    "top_p": ({"top_p": 0.7, "top_a": 1e-9}, lambda: [llama.llama_sampler_init_top_p(0.7, 1)]),
    "min_p": ({"min_p": 0.2, "top_a": 1e-9}, lambda: [llama.llama_sampler_init_min_p(0.2, 1)]),
    "xtc": (
        {"xtc_probability": 1.0, "xtc_threshold": 0.04},
        lambda: [llama.llama_sampler_init_xtc(1.0, 0.04, 1, SEED)],
    ),
    "last": (
        {"temperature": 3.0, "temperature_last": True, "top_p": 0.8, "min_p": 0.05},
        lambda: [
            llama.llama_sampler_init_top_p(0.8, 1),
            llama.llama_sampler_init_min_p(0.05, 1),
            llama.llama_sampler_init_temp(3.0),
        ],
    ),
    "all": (
        {"top_n_sigma": 2.5, "top_k": 60, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.01},
        lambda: [
            llama.llama_sampler_init_top_n_sigma(2.5),
            llama.llama_sampler_init_top_k(60),
            llama.llama_sampler_init_typical(0.95, 1),
            llama.llama_sampler_init_top_p(0.9, 1),
            llama.llama_sampler_init_min_p(0.01, 1),
        ],
    ),
    "mirostat 2": (
        {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
        lambda: [llama.llama_sampler_init_mirostat_v2(SEED, 3.0, 0.2)],
    ),
    "adaptive": (
        {"adaptive_target": 0.3, "adaptive_decay": 0.8, "min_p": 0.01},
        lambda: [
            llama.llama_sampler_init_min_p(0.01, 1),
            llama.llama_sampler_init_adaptive_p(0.3, 0.8, SEED),
        ],
    ),
    "adaptive, slow": (
        {"adaptive_target": 0.05, "adaptive_decay": 1.0, "temperature": 1.5},
        lambda: [
            llama.llama_sampler_init_temp(1.5),
            llama.llama_sampler_init_adaptive_p(0.05, 1.0, SEED),
        ],
    ),
}
_SELECT = ("mirostat", "adaptive")


@pytest.mark.parametrize("name", CHAINS)
def test_each_token_has_the_share_it_has_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step by step, so that what one token does to the next is compared as well.

    The number drawn is the middle of the token's share by the reference, over tokens in the order
    of their ids: that is in the token's share here only if all before it have the same.
    """
    params, chain = CHAINS[name]
    selects = name.startswith(_SELECT)
    reference = Reference(*chain(), *([] if selects else [llama.llama_sampler_init_dist(SEED)]))
    sampler = sampler_of(**params)
    numbers: list[float] = []
    monkeypatch.setattr(sampler._random, "random", lambda: numbers.pop(0))
    for step in range(150):
        row = row_of(step)
        chosen, shares = reference.apply(row)
        reference.accept(chosen)
        middle = float(shares[:chosen].sum() + shares[chosen] / 2)
        numbers[:] = [0.5, middle] if "xtc_probability" in params else [middle]
        token_id = sampler.sample(row)
        start = shares[:token_id].sum()
        assert start - 1e-4 < middle < start + shares[token_id] + 1e-4, step  # float32 there
        assert not numbers
        sampler.accept(token_id)
    reference.close()


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path: Path = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    convert(DEMO_MODEL, path, "f16")
    params = llama.llama_model_default_params()
    params.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    yield llama.llama_model_get_vocab(model)
    llama.llama_model_free(model)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    tokens=st.lists(st.integers(300, 303), max_size=40),
    allowed=st.integers(1, 4),
    last_n=st.sampled_from([-1, 4, 12]),
)
def test_dry(vocab: Any, tokens: list[int], allowed: int, last_n: int) -> None:
    sampler = llama.llama_sampler_init_dry(
        vocab, 0.5, 1.5, allowed, 4096 if last_n < 0 else last_n, (ctypes.c_char_p * 0)(), 0
    )
    reference = Reference(sampler)
    params = SamplingParams(
        dry_multiplier=0.5,
        dry_base=1.5,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
        dry_sequence_breakers=(),
    )
    dry = Dry(params, tokens[:10], str)
    for token_id in tokens:
        reference.accept(token_id)
    for token_id in tokens[10:]:
        dry.accept(token_id)
    row = np.zeros(SIZE, np.float32)
    _, shares = reference.apply(row)
    found = np.exp(dry.apply(row).astype(np.float64))
    np.testing.assert_allclose(found / found.sum(), shares, rtol=1e-4)
    reference.close()
