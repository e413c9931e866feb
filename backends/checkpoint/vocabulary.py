"""What the grammar engine must know of a tokenizer of transformers."""

import logging
from time import perf_counter

from llguidance import LLTokenizer

from backends.checkpoint.tokenizer import Tokenizer
from enginebay import GrammarCompiler, Vocabulary

logger = logging.getLogger(__name__)


def grammar_compiler(
    tokenizer: Tokenizer, vocab_size: int, end_token_ids: frozenset[int]
) -> GrammarCompiler | None:
    """For logits of this width; None, and a warning that says why, if the tokenizer is no use."""
    start = perf_counter()
    try:
        compiler = GrammarCompiler(grammar_vocabulary(tokenizer, vocab_size, end_token_ids))
    except ValueError as error:
        logger.warning(
            "answers cannot be held to schemas or grammars, nor calls be forced, with this "
            "model's tokenizer: %s",
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
    reader = LLTokenizer(source)
    known = tokenizer.token_ids
    return Vocabulary(
        tokens=[reader.decode_bytes([i]) if i in known else b"" for i in range(vocab_size)],
        special_token_ids=frozenset(i for i in tokenizer.special_token_ids if i < vocab_size),
        end_token_ids=frozenset(i for i in end_token_ids if i < vocab_size),
        encode=reader.tokenize_str,
    )
