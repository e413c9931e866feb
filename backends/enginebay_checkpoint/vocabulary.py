"""The vocabulary of a transformers tokenizer, for the grammar engine."""

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from enginebay import GrammarCompiler, Vocabulary
from enginebay_checkpoint.token_bytes import TokenBytes
from enginebay_checkpoint.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def grammar_compiler(
    tokenizer: Tokenizer, vocab_size: int, end_token_ids: frozenset[int]
) -> GrammarCompiler | None:
    """For logits of this width; None, and a logged reason, if the tokenizer cannot be used.

    The first grammar reads the vocabulary.
    """
    try:
        raw = _raw(tokenizer)
        token_bytes = TokenBytes(raw)
    except ValueError as error:
        logger.warning(
            "structured output and forced tool calls are not available with this model's "
            "tokenizer: %s",
            error,
        )
        return None
    special = tokenizer.special_token_ids
    read = partial(_vocabulary, raw, token_bytes, special, vocab_size, end_token_ids)
    return GrammarCompiler(read)


def grammar_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, end_token_ids: frozenset[int]
) -> Vocabulary:
    """The bytes of each token, of `vocab_size`. `ValueError` for a tokenizer that has none."""
    raw = _raw(tokenizer)
    special = tokenizer.special_token_ids
    return _vocabulary(raw, TokenBytes(raw), special, vocab_size, end_token_ids)


def _raw(tokenizer: Tokenizer) -> RawTokenizer:
    if tokenizer.raw is None:
        raise ValueError("it is written in Python, and has no tokenizer.json")
    return tokenizer.raw


def _vocabulary(
    raw: RawTokenizer,
    token_bytes: TokenBytes,
    special_token_ids: frozenset[int],
    vocab_size: int,
    end_token_ids: frozenset[int],
) -> Vocabulary:
    part = _part_tokenizer(raw)
    return Vocabulary(
        tokens=[token_bytes(i) for i in range(vocab_size)],
        special_token_ids=frozenset(i for i in special_token_ids if i < vocab_size),
        end_token_ids=frozenset(i for i in end_token_ids if i < vocab_size),
        encode=lambda text: part.encode(text, add_special_tokens=False).ids,
    )


def _part_tokenizer(whole: RawTokenizer) -> RawTokenizer:
    """A tokenizer for parts of a text: it adds no space, and special tokens are plain text.

    It shares the model of `whole`, which is most of what a tokenizer holds.
    """
    stages = RawTokenizer(models.BPE())
    stages.normalizer = whole.normalizer
    stages.pre_tokenizer = whole.pre_tokenizer
    described = json.loads(stages.to_str())
    described["normalizer"] = _without_space(described["normalizer"])
    described["pre_tokenizer"] = _without_space(described["pre_tokenizer"])
    part = RawTokenizer.from_str(json.dumps(described))
    part.model = whole.model
    added = sorted(whole.get_added_tokens_decoder().items())
    part.add_tokens([token for _, token in added])
    if any(part.token_to_id(token.content) != token_id for token_id, token in added):
        raise ValueError("the ids of its added tokens have gaps")
    part.encode_special_tokens = True
    return part


def _without_space(stage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A normalizer or pre-tokenizer that puts no space in front of a text."""
    if stage is None or stage["type"] == "Prepend":
        return None
    changed = dict(stage)
    if "add_prefix_space" in stage:
        changed["add_prefix_space"] = False
    if "prepend_scheme" in stage:
        changed["prepend_scheme"] = "never"
    for key in ("normalizers", "pretokenizers"):
        if key in stage:
            changed[key] = [kept for inner in stage[key] if (kept := _without_space(inner))]
    return changed
