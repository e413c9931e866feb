"""A vocabulary read from a tokenizer.json; test_checkpoint_vocabulary.py tries other kinds.

When the compiler reads it: REAL-4.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from enginebay import (
    GrammarCompiler,
    Pattern,
    Text,
    UnsupportedParameterError,
    Vocabulary,
    allowed_tokens,
)
from enginebay.grammar.vocabulary import grammar_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
END = 259


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), *((byte, -9.0) for byte in BYTES), ("a", -1.0), ("▁b", -1.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


def test_of_pieces_with_scores() -> None:
    vocabulary = Vocabulary.from_tokenizer_json(
        unigram().to_str(), vocab_size=270, end_token_ids=[END], special_token_ids=[0, 300]
    )
    assert vocabulary.tokens[1:3] == [b"\x00", b"\x01"]
    assert vocabulary.tokens[257:] == [b"a", b" b", b"</s>", *[b""] * 10]
    assert vocabulary.special_token_ids == {0, END}
    assert vocabulary.end_token_ids == {END}
    assert b"".join(vocabulary.tokens[i] for i in vocabulary.encode("a b")) == b"a b"
    matcher = GrammarCompiler(vocabulary).matcher(Text("a b"))
    assert all(map(matcher.accept, [257, 258]))
    assert matcher.finished


def test_logits_may_be_fewer_than_tokens() -> None:
    vocabulary = Vocabulary.from_tokenizer_json(
        unigram().to_str(), vocab_size=258, end_token_ids=[END]
    )
    assert len(vocabulary.tokens) == 258
    assert not vocabulary.special_token_ids | vocabulary.end_token_ids


class Source:
    """A function that makes a vocabulary, and counts its calls."""

    def __init__(self, end_token_id: int = 256) -> None:
        self.calls = 0
        self._end = frozenset({end_token_id})

    def __call__(self) -> Vocabulary:
        self.calls += 1
        if max(self._end) > 256:
            raise ValueError("its tokens have no bytes")
        return Vocabulary(
            tokens=[*(bytes([i]) for i in range(256)), b"</s>"],
            special_token_ids=self._end,
            end_token_ids=self._end,
            encode=lambda text: list(text.encode()),
        )


def test_the_first_grammar_reads_the_vocabulary_once() -> None:
    source = Source()
    compiler = GrammarCompiler(source, threads=1)
    assert source.calls == 0
    grammars = [Pattern(f"[a-{last}]") for last in "bcde"]
    with ThreadPoolExecutor(len(grammars)) as pool:
        list(pool.map(compiler.compile, grammars))
    assert source.calls == 1
    [mask] = compiler.fill([compiler.matcher(grammars[0])])
    assert allowed_tokens(mask, 257).nonzero()[0].tolist() == [ord("a"), ord("b")]
    assert source.calls == 1


def test_a_vocabulary_that_cannot_be_read_fails_each_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source(end_token_id=300)
    compiler = GrammarCompiler(source)
    for grammar in (Text("a"), Text("b")):
        with pytest.raises(UnsupportedParameterError, match="its tokens have no bytes") as caught:
            compiler.compile(grammar)
        assert caught.value.param == "constraint"
    assert source.calls == len(caplog.records) == 1


def test_the_vocabulary_can_be_read_before_any_grammar() -> None:
    source = Source()
    compiler = GrammarCompiler(source)
    compiler.read_vocabulary()
    assert source.calls == 1
    compiler.compile(Text("a"))
    assert source.calls == 1


def test_no_grammar_allows_a_token_that_begins_with_the_byte_ff() -> None:
    """Such a byte would mark a special token, and no text contains it."""
    tokens = [b"a", b"\xff", b"\xffa", b"</s>"]
    vocabulary = Vocabulary(
        tokens=tokens,
        special_token_ids=frozenset({3}),
        end_token_ids=frozenset({3}),
        encode=lambda text: [0] * len(text),
    )
    tokenizer = grammar_tokenizer(vocabulary)
    assert [tokenizer.is_special_token(i) for i in range(4)] == [False, False, False, True]
    compiler = GrammarCompiler(vocabulary, threads=1)
    [mask] = compiler.fill([compiler.matcher(Pattern("(.|\n)+"))])
    assert allowed_tokens(mask, 4).tolist() == [True, False, False, False]
