"""The bytes of the tokens in logprobs are the bytes of the text. REAL-6"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from enginebay import (
    Completion,
    ContentDelta,
    Delta,
    Detokenizer,
    GenerationRequest,
    SamplingParams,
    SpecialTokens,
    TokenLogprob,
    TokensToText,
    Update,
    text_and_bytes,
)
from enginebay.chat.answer.compose_openai import Head, UsageForm
from enginebay.chat.answer.compose_text import Shown, TextComposer
from enginebay.chat.answer.usage import UsageCounter
from enginebay_checkpoint.tokenizer import Tokenizer
from tests.support import DEMO_MODEL, Server

_WORDS = ["Hello", "world", "a", "b", "."]


def byte_level() -> RawTokenizer:
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    [(spaced, _)] = pre_tokenizer.pre_tokenize_str(" é")
    names = [*pre_tokenizers.ByteLevel.alphabet(), *_WORDS[:2], spaced]
    raw = RawTokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    raw.pre_tokenizer, raw.decoder = pre_tokenizer, decoders.ByteLevel()
    return raw


def byte_fallback() -> RawTokenizer:
    """SentencePiece as Llama 2 has it: the first token of a text loses its space."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", *(f"▁{word}" for word in _WORDS), *_WORDS, "é", "▁é"]
    vocabulary = {name: i for i, name in enumerate(names)}
    raw = RawTokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return raw


def word_piece() -> RawTokenizer:
    names = ["[UNK]", *_WORDS, "##s", "##é", "'", "n", "##t", "?"]
    raw = RawTokenizer(models.WordPiece({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return raw


@dataclass(frozen=True)
class Text:
    """How an engine reads its tokens."""

    size: int
    special: int
    token_bytes: Callable[[int], bytes]
    detokenizer: Callable[[], TokensToText]
    decode: Callable[[Sequence[int]], str]


def of_checkpoint(raw: RawTokenizer) -> Text:
    raw.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=raw))
    return Text(
        raw.get_vocab_size(),
        raw.token_to_id("<|end|>"),
        tokenizer.token_bytes,
        lambda: Detokenizer(tokenizer.decode),
        tokenizer.decode,
    )


TEXTS = {make.__name__: of_checkpoint(make()) for make in (byte_level, byte_fallback, word_piece)}


def answer(text: Text, token_ids: Sequence[int], *, skip: bool) -> list[Delta]:
    params = SamplingParams(logprobs=0, skip_special_tokens=skip)
    completion = Completion(
        GenerationRequest(request_id="r", prompt_token_ids=(0,), sampling=params),
        0,
        max_tokens=len(token_ids),
        eos_token_ids=frozenset(),
        detokenizer=text.detokenizer(),
        special_tokens=SpecialTokens({text.special}, lambda i: text.decode([i])),
    )
    deltas = []
    for token_id in token_ids:
        token, own_bytes = text_and_bytes(text.token_bytes(token_id))
        deltas.append(
            completion.append(token_id, TokenLogprob(token_id, token, 0.0, (), None, own_bytes))
        )
    return deltas


def check(text: Text, numbers: Sequence[int], *, skip: bool) -> None:
    token_ids = [number % text.size for number in numbers]
    deltas = answer(text, token_ids, skip=skip)
    said = "".join(delta.text for delta in deltas)
    entries = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert [entry.token_id for entry in entries] == token_ids
    joined = b"".join(entry.added_bytes for entry in entries)
    if "\ufffd" not in said:  # which stands for bytes that are no text, however many
        assert joined == said.encode()
    for entry in entries:
        assert (
            entry.token_id == text.special
            or "\ufffd" in entry.token
            or (entry.token.encode() == entry.added_bytes)
        )
    assert_offsets(deltas, said)


def assert_offsets(deltas: Sequence[Delta], said: str) -> None:
    """In completions each token begins where its first byte does, streamed or not."""
    joined, expected = b"", []
    for entry in (entry for delta in deltas for entry in delta.logprobs or ()):
        begun = joined.decode(errors="replace")
        partial = bool(begun) and joined.decode(errors="ignore") != begun
        expected.append(len(begun) - partial)
        joined += entry.added_bytes
    if "\ufffd" in said:
        return
    streams, collects = composer(), composer()
    streamed, offsets = "", []
    for delta in deltas:
        parts = [ContentDelta(delta.text, delta.logprobs or ())]
        for chunk in streams.chunks(Update(0, parts, tokens=1)):
            streamed += chunk.choices[0].text
            offsets += chunk.choices[0].logprobs["text_offset"]
        collects.add(Update(0, parts, tokens=1))
    assert streamed == said
    assert offsets == expected
    assert collects.whole().choices[0].logprobs["text_offset"] == expected


def composer() -> TextComposer:
    counter = UsageCounter(0.0)
    return TextComposer(
        Head("id", "m", "fp"), 1, 1, counter, usage=UsageForm(), shown=Shown(logprobs=True)
    )


NUMBERS = st.lists(st.integers(0, 400), min_size=1, max_size=12)


@pytest.mark.parametrize("kind", TEXTS)
@given(numbers=NUMBERS, skip=st.booleans())
def test_any_tokens(kind: str, numbers: list[int], skip: bool) -> None:
    check(TEXTS[kind], numbers, skip=skip)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@given(said=st.text(max_size=6), skip=st.booleans())
def test_any_text_byte_by_byte(kind: str, said: str, skip: bool) -> None:
    text = TEXTS[kind]
    by_byte = {text.token_bytes(i): i for i in reversed(range(text.size))}
    token_ids = [by_byte[bytes((byte,))] for byte in said.encode()]
    if token_ids:
        check(text, token_ids, skip=skip)


def test_parts_of_a_character() -> None:
    text = TEXTS["byte_level"]
    by_byte = {text.token_bytes(i): i for i in range(text.size)}
    deltas = answer(text, [by_byte[bytes((byte,))] for byte in "é!".encode()], skip=True)
    entries = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert [entry.token for entry in entries] == ["\ufffd", "\ufffd", "!"]
    assert [entry.added_bytes for entry in entries] == [b"\xc3", b"\xa9", b"!"]


def test_the_first_token_has_the_space_that_the_text_has() -> None:
    text = TEXTS["byte_fallback"]
    hello = next(i for i in range(text.size) if text.token_bytes(i) == b" Hello")
    entries = [e for d in answer(text, [hello, hello], skip=True) for e in d.logprobs or ()]
    assert [entry.token for entry in entries] == ["Hello", " Hello"]


def test_llamacpp(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    from demo.to_gguf import convert
    from tests.backends import llamacpp

    convert(DEMO_MODEL, tmp_path / "demo.gguf", "f32")
    engine = llamacpp.load(tmp_path / "demo.gguf")
    tokenizer = engine._tokenizer
    special = min(tokenizer.special_token_ids)
    text = Text(
        len(tokenizer.pieces),
        special,
        tokenizer.pieces.__getitem__,
        tokenizer.detokenizer,
        tokenizer.decode,
    )
    token_ids = engine.tokenize(
        "é 😀 <|im_start|>naïve \U0001f468\u200d\U0001f469", add_special_tokens=False
    )
    check(text, [special, *token_ids], skip=False)
    engine.close()


@pytest.mark.parametrize("said", ["é😀", "naïve 日本"])
def test_over_http(demo: Server, said: str) -> None:
    body = {"max_tokens": 40, "guided_regex": said, "logprobs": True, "top_logprobs": 2}
    answered = demo.http.post(
        "/v1/chat/completions", json={**body, "messages": [{"role": "user", "content": "a"}]}
    ).json()["choices"][0]
    assert answered["message"]["content"] == said
    entries = answered["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == said
    assert any("\ufffd" in entry["token"] for entry in entries)
    asked = {"model": "enginebay-demo", "input": "a", "max_output_tokens": 60, "top_logprobs": 2}
    wanted = {"include": ["message.output_text.logprobs"], "guided_regex": said}
    answered = demo.http.post("/v1/responses", json={**asked, **wanted}).json()
    [part] = answered["output"][-1]["content"]
    joined = bytes(byte for entry in part["logprobs"] for byte in entry["bytes"])
    assert joined.decode() == part["text"]
