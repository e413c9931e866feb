"""REAL-4: the grammar engine's view of real vocabularies."""

import re
import unicodedata

import pytest

from enginebay import Pattern, allowed_tokens
from enginebay import Vocabulary as GrammarVocabulary
from enginebay_checkpoint.vocabulary import grammar_compiler, grammar_vocabulary
from tests.real.vocabularies import ROWS, Vocabulary

pytestmark = [pytest.mark.real, pytest.mark.thorough]
TEXT = 'Zürich, 東京: {"a": [1,  true]}\n\n\tλ 😀 <tool_call>'


@pytest.fixture(scope="module")
def read(vocabulary: Vocabulary) -> GrammarVocabulary:
    return grammar_vocabulary(vocabulary.ours, ROWS[vocabulary.name], frozenset({1}))


def test_the_bytes_of_all_tokens(vocabulary: Vocabulary, read: GrammarVocabulary) -> None:
    assert len(read.tokens) == ROWS[vocabulary.name]
    expected = vocabulary.token_bytes
    wrong = [i for i, token in enumerate(read.tokens) if token != expected.get(i, b"")]
    assert not wrong, [(i, read.tokens[i], expected.get(i)) for i in wrong[:5]]


def test_tokens_of_a_text_have_its_bytes(read: GrammarVocabulary) -> None:
    special = read.tokens[min(read.special_token_ids)].decode()
    text = unicodedata.normalize("NFC", TEXT + special)
    token_ids = read.encode(text)
    assert b"".join(read.tokens[i] for i in token_ids) == text.encode()
    assert not read.special_token_ids.intersection(token_ids)


def test_a_grammar_allows_the_tokens_that_begin_its_text(
    vocabulary: Vocabulary, read: GrammarVocabulary
) -> None:
    size = ROWS[vocabulary.name]
    compiler = grammar_compiler(vocabulary.ours, size, frozenset({1}))
    assert compiler
    [mask] = compiler.fill([compiler.matcher(Pattern("[a-z]{3}"))])
    beginning = re.compile(b"[a-z]{1,3}")
    wanted = {i for i, token in enumerate(read.tokens) if beginning.fullmatch(token)}
    assert len(wanted) > 1000
    assert set(allowed_tokens(mask, size).nonzero()[0].tolist()) == wanted
