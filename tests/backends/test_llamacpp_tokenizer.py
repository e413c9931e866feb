"""Text to tokens and back, against the tokenizer that the GGUF file was made from."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from demo.to_gguf import convert
from enginebay import InvalidRequestError
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.tokenizer import UNBOUNDED, Detokenizer, Tokenizer
from tests.backends.gguf_models import write_llama
from tests.backends.llamacpp import load
from tests.effort import examples
from tests.support import DEMO_MODEL

TEXTS = (
    "Hello world",
    "  two  spaces\n\n\nand newlines \t tabs",
    "It's I'll we've 12345 3.14 x=y+1; {\"a\": [1,2]}",
    "héllo ünïcode 日本語 😀 \u200d \x00",
    "<|im_start|>user\nhi<|im_end|>\n<think>x</think><tool_call>{}</tool_call>",
    "",
    " ",
    "\n\n",
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppEngine]:
    target = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    convert(DEMO_MODEL, target, "f16")
    engine = load(target, context_length=256)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def original() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(DEMO_MODEL)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_the_original(
    engine: LlamaCppEngine, original: PreTrainedTokenizerFast, text: str
) -> None:
    token_ids = engine.tokenize(text, add_special_tokens=False)
    assert token_ids == original.encode(text, add_special_tokens=False)
    assert engine.detokenize(token_ids) == text


def test_special_tokens_are_added_when_asked(tmp_path: Path) -> None:
    engine = load(write_llama(tmp_path / "model.gguf"))
    assert engine.tokenize("<|user|>the", add_special_tokens=False) == [3, 261]
    assert engine.tokenize("<|user|>the", add_special_tokens=True) == [0, 3, 261]
    assert engine.detokenize([0, 3, 261, 1]) == "<|bos|><|user|>the<|eos|>"
    engine.close()


def test_half_a_surrogate_pair_is_the_clients_fault(engine: LlamaCppEngine) -> None:
    with pytest.raises(InvalidRequestError, match="Unicode"):
        engine.tokenize("a \ud83d", add_special_tokens=False)


def test_unknown_ids_are_refused(engine: LlamaCppEngine) -> None:
    for token_id in (-1, engine.info.vocab_size):
        with pytest.raises(InvalidRequestError):
            engine.detokenize([token_id])


def test_no_token_stands_for_more_characters_than_the_longest(engine: LlamaCppEngine) -> None:
    longest = max(len(engine.detokenize([i])) for i in range(engine.info.vocab_size))
    assert longest <= engine.info.longest_token < 100


def test_the_longest_token_is_unknown_where_bytes_may_vanish(tmp_path: Path) -> None:
    engine = load(write_llama(tmp_path / "model.gguf", without_byte=ord("z")))
    assert engine.tokenize("zzz", add_special_tokens=False) == []
    assert engine.info.longest_token == UNBOUNDED
    engine.close()


def read(path: Path) -> Tokenizer:
    """A file's tokenizer alone."""
    return Tokenizer(Model(path, LlamaCppOptions(), lambda *_: None, gpu=False))


@pytest.fixture(params=["bytes", "sentencepiece", "without z"])
def tokenizer(tmp_path: Path, request: pytest.FixtureRequest) -> Tokenizer:
    kinds: dict[str, dict[str, Any]] = {
        "bytes": {},
        "sentencepiece": {"words": "sentencepiece"},
        "without z": {"without_byte": ord("z")},
    }
    path = write_llama(tmp_path / "model.gguf", **kinds[request.param])
    return read(path)


PARTS = (
    "the",
    " the",
    "a the",
    '{"the": "',
    "\n",
    "",
    "é",
    "</s>",
    "<|eos|>",
    "<unk> \x02",
    "\x02",
)


@pytest.mark.parametrize("text", PARTS)
def test_a_part_of_a_text_is_spelled_out(tokenizer: Tokenizer, text: str) -> None:
    """Without a space in front, and without special tokens."""
    vocabulary = tokenizer.vocabulary
    token_ids = vocabulary.encode(text)
    assert b"".join(vocabulary.tokens[token] for token in token_ids) == text.encode()
    assert not {*token_ids} & vocabulary.special_token_ids


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    folder = tmp_path_factory.mktemp("models")
    return [
        read(write_llama(folder / "bytes.gguf")),
        read(write_llama(folder / "sentencepiece.gguf", words="sentencepiece")),
    ]


@examples(300)
@given(st.text(" \n\x02the▁<|>") | st.text(st.characters(exclude_categories=["Cs"])))
def test_any_part_of_a_text_is_spelled_out(tokenizers: list[Tokenizer], text: str) -> None:
    for tokenizer in tokenizers:
        token_ids = tokenizer.encode_part(text)
        assert tokenizer.decode(token_ids) == text
        assert not {*token_ids} & tokenizer.special_token_ids


def test_special_tokens_of_a_vocabulary(tmp_path: Path) -> None:
    vocabulary = read(write_llama(tmp_path / "model.gguf", words="sentencepiece")).vocabulary
    assert vocabulary.special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert vocabulary.end_token_ids == {2}


def test_tokens_that_llama_cpp_takes_for_words_are_special(tmp_path: Path) -> None:
    """Those of gpt-oss, https://developers.openai.com/cookbook/articles/openai-harmony."""
    names = ["<|start|>", "<|return|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"]
    path = write_llama(tmp_path / "model.gguf", special_tokens=names)
    assert read(path).special_token_ids == {0, 1, 2, 3, 4, 5}


def test_many_threads_tokenize_at_once(engine: LlamaCppEngine) -> None:
    text = " ".join(TEXTS) * 50
    expected = engine.tokenize(text, add_special_tokens=False)
    found: list[list[int]] = []

    def tokenize() -> None:
        for _ in range(5):
            found.append(engine.tokenize(text, add_special_tokens=False))

    threads = [threading.Thread(target=tokenize) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20


# The text of a growing completion.

PIECES = tuple(bytes((value,)) for value in range(256))


@given(st.text())
def test_text_comes_out_whole_and_at_once(text: str) -> None:
    detokenizer = Detokenizer(PIECES)
    parts = [detokenizer.feed(value) for value in text.encode()]
    assert "".join(parts) == text
    assert len([part for part in parts if part]) == len(text)
    assert detokenizer.finish() == ""


@examples(300)
@given(st.binary())
def test_bytes_that_are_no_text_never_hold_it_up(data: bytes) -> None:
    detokenizer = Detokenizer(PIECES)
    text = "".join(detokenizer.feed(value) for value in data)
    pending = data.decode(errors="replace").removeprefix(text)
    assert len(pending) <= 3  # a character's first bytes, each of which may turn out to be wrong
    assert detokenizer.finish() == pending
    assert detokenizer.feed(ord("a")) == "a"
