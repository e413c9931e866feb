"""Texts and pairs that are cut have as many tokens as they may, whatever they are made of."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.errors import ContextLengthExceededError, InvalidRequestError
from enginebay.models.served import ServedModel
from enginebay.serving.pooling_tokens import input_tokens, pair_tokens, shortened
from enginebay.serving.schemas.pooling_fields import CutFields

CLS, SEP = 1, 2
TEXTS = st.text(st.sampled_from("ab é\u4e00"), min_size=1, max_size=40)


@dataclass
class Bytes:
    """A token is a byte of UTF-8; what is cut inside a character becomes U+FFFD, three bytes."""

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        tokens = [byte + 3 for byte in text.encode()]
        return [CLS, *tokens, SEP] if add_special_tokens else tokens

    tokenize_plain = tokenize

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return bytes(token - 3 for token in token_ids).decode(errors="replace")

    async def tokenize_pair(self, query: str, document: str) -> list[int]:
        tokenize = self.tokenize
        words = [await tokenize(text, add_special_tokens=False) for text in (query, document)]
        return [CLS, *words[0], SEP, *words[1], SEP]


def model(context_length: int) -> ServedModel:
    info = SimpleNamespace(context_length=context_length, vocab_size=300, longest_token=1)
    return cast(ServedModel, SimpleNamespace(backend=Bytes(), info=info))


def cut(most: int, side: str) -> CutFields:
    fields: dict[str, Any] = {"truncate_prompt_tokens": most, "truncation_side": side}
    return CutFields.model_validate(fields)


@given(TEXTS, st.integers(3, 60), st.integers(3, 60), st.sampled_from(["left", "right"]))
def test_texts(text: str, context: int, most: int, side: str) -> None:
    tokens = asyncio.run(input_tokens(model(context), text, cut(most, side), param="input"))
    whole = asyncio.run(Bytes().tokenize(text, add_special_tokens=False))
    kept = min(context, most) - 2
    assert tokens == [CLS, *(whole[-kept:] if side == "left" else whole[:kept]), SEP]


@given(TEXTS, TEXTS, st.integers(1, 60), st.sampled_from(["left", "right"]))
def test_pairs(query: str, document: str, most: int, side: str) -> None:
    pairing = pair_tokens(
        model(60), query, document, cut(most, side), query_param="query", param="document"
    )
    head = asyncio.run(Bytes().tokenize_pair(query, ""))[:-1]
    if len(head) + 2 > most:
        with pytest.raises(ContextLengthExceededError, match="query leaves no room"):
            asyncio.run(pairing)
        return
    pair = asyncio.run(pairing)
    assert pair[: len(head)] == head
    assert pair[-1] == SEP
    whole = len(head) + len(document.encode()) + 1
    assert len(pair) == whole if whole <= most else most - 3 < len(pair) <= most


@given(TEXTS, st.integers(1, 40))
def test_documents(text: str, most: int) -> None:
    work = shortened(model(60), text, most, param="document", left=False)
    kept = asyncio.run(work)
    assert text.startswith(kept)
    assert len(kept.encode()) <= most
    assert len(text.encode()) <= most or len(kept.encode()) > most - 3


@pytest.mark.parametrize("text", ["", "\ud800"])
def test_what_is_no_text(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        asyncio.run(input_tokens(model(9), text, CutFields(truncate=True), param="input"))
