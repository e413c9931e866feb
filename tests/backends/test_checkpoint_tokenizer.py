"""Tokenizers: the longest token, text and back, threads."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from enginebay import InvalidRequestError
from enginebay_checkpoint.longest_token import UNBOUNDED, longest_token
from enginebay_checkpoint.tokenizer import Tokenizer
from tests.backends.tiny import VOCAB_SIZE, Run, edit, load, make_tokenizer, request
from tests.effort import examples

# The longest token.


def pipeline_of(tokenizer: RustTokenizer) -> dict[str, Any]:
    return json.loads(tokenizer.to_str())


@examples(200)
@given(st.text() | st.text(st.characters(categories=["Mn", "Lo", "Zs"])))
def test_longest_token_bounds_any_text(text: str) -> None:
    for normalizer, pre_tokenizer in (
        (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
        (normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=True)),
        (normalizers.NFKC(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    ):
        tokenizer = make_tokenizer().backend_tokenizer
        tokenizer.normalizer = normalizer or normalizers.Sequence([])
        tokenizer.pre_tokenizer = pre_tokenizer
        longest = longest_token(tokenizer.get_vocab(), pipeline_of(tokenizer))
        assert longest < UNBOUNDED
        assert len(text) <= longest * len(tokenizer.encode(text).ids)


def test_composition_makes_one_token_of_four_characters() -> None:
    composed, decomposed = "\u1f82", "\u03b1\u0313\u0300\u0345"
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ((spelled, _),) = bytewise.pre_tokenize_str(composed)
    first, second, third = spelled
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {token: id for id, token in enumerate([*alphabet, first + second, spelled])}
    merges = [(first, second), (first + second, third)]
    tokenizer = RustTokenizer(models.BPE(vocabulary, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = bytewise
    assert len(tokenizer.encode(decomposed).ids) == 1
    assert len(decomposed) <= longest_token(vocabulary, pipeline_of(tokenizer)) < UNBOUNDED


def unknown_fusing() -> RustTokenizer:
    return RustTokenizer(models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=True))


def whitespace_splitting() -> RustTokenizer:
    tokenizer = RustTokenizer(models.BPE({"a": 0}, [], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def stripping() -> RustTokenizer:
    tokenizer = RustTokenizer(models.BPE({"a": 0}, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    return tokenizer


def folding() -> RustTokenizer:
    tokenizer = RustTokenizer(models.BPE({"a": 0}, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace("   ", " ")
    return tokenizer


@pytest.mark.parametrize("make", [unknown_fusing, whitespace_splitting, stripping, folding])
def test_no_bound_where_text_may_vanish(make: Callable[[], RustTokenizer]) -> None:
    tokenizer = make()
    assert longest_token(tokenizer.get_vocab(), pipeline_of(tokenizer)) == UNBOUNDED


def test_longest_token_of_a_sentencepiece_like_vocabulary() -> None:
    vocabulary = {"▁": 0, "a": 1, "▁a": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    tokenizer = RustTokenizer(models.BPE(vocabulary, [("▁", "a")], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert longest_token(vocabulary, pipeline_of(tokenizer)) == len("<0x00>")


# Tokens and text.


def test_tokenizer_of_an_engine(tiny_llama: Path) -> None:
    engine = load(tiny_llama)
    text = "the <tool_call> fox , don't .<|eos|>"
    token_ids = engine.tokenize(text, add_special_tokens=False)
    assert {3, 1} <= set(token_ids)
    assert engine.detokenize(token_ids) == text
    assert engine.detokenize([]) == ""
    for unknown in (-1, VOCAB_SIZE, 2**40):
        with pytest.raises(InvalidRequestError, match="tokens has the token id"):
            engine.detokenize([5, unknown])


def test_truncation_and_padding_of_a_tokenizer_file_are_off(folder: Path) -> None:
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    edit(folder / "tokenizer.json", truncation=truncation)
    tokenizer = Tokenizer(AutoTokenizer.from_pretrained(folder))
    assert tokenizer._backend.truncation is None, "would change while other threads encode"
    assert len(tokenizer.encode("x y z " * 20, add_special_tokens=True)) > 60


def test_tokenizing_on_many_threads_beside_steps(tiny_llama: Path) -> None:
    engine = load(tiny_llama)
    text = "the quick brown fox " * 50
    expected = engine.tokenize(text, add_special_tokens=True)
    results: list[bool] = []

    def work() -> None:
        for _ in range(20):
            token_ids = engine.tokenize(text, add_special_tokens=True)
            results.append(token_ids == expected and engine.detokenize(token_ids) == text)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    Run(engine, request([5, 6, 7], max_tokens=50)).finish()
    for thread in threads:
        thread.join()
    assert results == [True] * 80
