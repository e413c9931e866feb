"""The vocabulary of a transformers tokenizer, for the grammar engine."""

import logging
from time import perf_counter

from backends.checkpoint.tokenizer import Tokenizer
from enginebay import GrammarCompiler, Vocabulary

logger = logging.getLogger(__name__)


def grammar_compiler(
    tokenizer: Tokenizer, vocab_size: int, end_token_ids: frozenset[int]
) -> GrammarCompiler | None:
    """For logits of this width; None, and a logged reason, if the tokenizer cannot be used."""
    start = perf_counter()
    try:
        compiler = GrammarCompiler(grammar_vocabulary(tokenizer, vocab_size, end_token_ids))
    except ValueError as error:
        logger.warning(
            "structured output and forced tool calls are not available with this model's "
            "tokenizer: %s",
            error,
        )
        return None
    logger.info("the vocabulary is ready for grammars (%.1f s)", perf_counter() - start)
    return compiler


def grammar_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, end_token_ids: frozenset[int]
) -> Vocabulary:
    """The bytes of each token, of `vocab_size`. `ValueError` for a tokenizer that has none."""
    source = tokenizer.tokenizer_json
    if source is None:
        raise ValueError("it is written in Python, and has no tokenizer.json")
    return Vocabulary.from_tokenizer_json(
        source,
        vocab_size=vocab_size,
        end_token_ids=end_token_ids,
        special_token_ids=tokenizer.special_token_ids,
    )
