"""The bytes of tokens, as the grammar engine gets them, against what tokenizers decode."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from enginebay import Vocabulary
from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_checkpoint.vocabulary import grammar_compiler, grammar_vocabulary
from tests.backends.tiny import make_tokenizer

END = "</s>"


def sentencepiece_like(*, metaspace: bool) -> RawTokenizer:
    """Words that begin with a blank, and bytes for all that is in no word, as in Llama 2."""
    words = ["▁", *"helowrd", "é", "{", '"', "▁h", "he", "ll", "llo", "▁w", "or", "▁he", "▁hello"]
    pieces = ["<unk>", "<s>", END, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    merges = ["▁ h", "▁ w", "h e", "l l", "ll o", "o r", "▁h e", "▁he llo"]
    tokenizer = RawTokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[tuple(pair.split()) for pair in merges],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in pieces[:3]])
    tokenizer.add_tokens([AddedToken("<call>", special=False, normalized=False)])
    return tokenizer


def fast(tokenizer: RawTokenizer) -> Tokenizer:
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token="<s>", eos_token=END, unk_token="<unk>"
        )
    )


KINDS = {
    "bytes": Tokenizer(make_tokenizer()),
    "metaspace": fast(sentencepiece_like(metaspace=True)),
    "prepended": fast(sentencepiece_like(metaspace=False)),
}
PADDING = 13  # rows of a model's output layer that stand for nothing


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    ends = frozenset({tokenizer.eos_token_id or 0})
    return grammar_vocabulary(tokenizer, max(tokenizer.token_ids) + 1 + PADDING, ends)


VOCABULARIES = {kind: vocabulary_of(tokenizer) for kind, tokenizer in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.sampled_from('hello wr{"d') | st.characters(exclude_categories=["Cs"])))
def test_tokens_of_a_text_have_its_bytes(kind: str, text: str) -> None:
    vocabulary, tokenizer = VOCABULARIES[kind], KINDS[kind]
    token_ids = list(vocabulary.encode(text))
    assert b"".join(vocabulary.tokens[i] for i in token_ids) == text.encode()
    # Behind something else, since decoders of this kind leave out the first blank of all.
    first = tokenizer.encode("h", add_special_tokens=False)
    assert tokenizer.decode([*first, *token_ids]) == "h" + text


@pytest.mark.parametrize("kind", KINDS)
def test_each_token_is_what_it_decodes_to(kind: str) -> None:
    vocabulary, tokenizer = VOCABULARIES[kind], KINDS[kind]
    first = tokenizer.encode("h", add_special_tokens=False)
    spelled = {token_id: vocabulary.tokens[token_id] for token_id in tokenizer.token_ids}
    for token_id, octets in spelled.items():
        assert tokenizer.decode([*first, token_id]) == "h" + octets.decode(errors="replace")


@pytest.mark.parametrize("kind", KINDS)
def test_the_grammar_engine_reads_the_same_bytes_from_the_tokenizer_json(kind: str) -> None:
    """REAL-4: the tokens are not decoded by a second tokenizer of the grammar engine."""
    vocabulary, source = VOCABULARIES[kind], KINDS[kind].tokenizer_json
    assert source
    size = len(vocabulary.tokens)
    theirs = Vocabulary.from_tokenizer_json(source, vocab_size=size, end_token_ids=[])
    ours = [b"" if token == b"\xff" else token for token in vocabulary.tokens]
    assert ours == list(theirs.tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_looks_like_a_special_token_is_plain_text(kind: str) -> None:
    vocabulary, tokenizer = VOCABULARIES[kind], KINDS[kind]
    special = tokenizer.decode([tokenizer.eos_token_id or 0])
    token_ids = vocabulary.encode(f"h{special}h")
    assert not vocabulary.special_token_ids.intersection(token_ids)
    assert b"".join(vocabulary.tokens[i] for i in token_ids) == f"h{special}h".encode()


def test_added_tokens_that_are_not_special_are_found_in_a_text() -> None:
    vocabulary = VOCABULARIES["metaspace"]
    assert [vocabulary.tokens[i] for i in vocabulary.encode("h<call>h")] == [b"h", b"<call>", b"h"]


@pytest.mark.parametrize("kind", KINDS)
def test_special_and_padding(kind: str) -> None:
    vocabulary, tokenizer = VOCABULARIES[kind], KINDS[kind]
    assert vocabulary.special_token_ids == tokenizer.special_token_ids
    assert tokenizer.eos_token_id in vocabulary.end_token_ids
    assert not any(vocabulary.tokens[-PADDING:])
    name = tokenizer.decode([tokenizer.eos_token_id or 0])
    assert vocabulary.special_tokens[name] == tokenizer.eos_token_id
    assert "<call>" not in vocabulary.special_tokens


def test_a_model_may_have_fewer_logits_than_its_tokenizer_has_tokens() -> None:
    tokenizer = KINDS["bytes"]
    width = len(tokenizer.token_ids) - 20
    vocabulary = grammar_vocabulary(tokenizer, width, frozenset({1, width + 5}))
    assert len(vocabulary.tokens) == width
    assert vocabulary.end_token_ids == {1}


def undecodable() -> Tokenizer:
    words = {"<s>": 0, END: 1, "<unk>": 2, "a": 3, "##b": 4}
    return fast(RawTokenizer(models.WordPiece(vocab=words, unk_token="<unk>")))


class WrittenInPython:
    """A tokenizer of transformers without a file of its own."""

    all_special_ids: tuple[int, ...] = ()
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [(undecodable(), "decoder"), (Tokenizer(WrittenInPython()), "tokenizer.json")],
    ids=["wordpiece", "python"],
)
def test_what_cannot_be_handled_is_said(
    tokenizer: Tokenizer, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert grammar_compiler(tokenizer, 100, frozenset({1})) is None
    assert reason in caplog.text
