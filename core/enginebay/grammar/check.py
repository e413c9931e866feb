"""Checks grammars without a model's vocabulary."""

import re
from functools import cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from enginebay.contract.grammar import Grammar, Lark
from enginebay.grammar.lark import to_lark
from enginebay.grammar.vocabulary import Vocabulary, grammar_tokenizer

IMPOSSIBLE = "nothing can satisfy it"

_END = 256


def check_grammar(grammar: Grammar) -> None:
    """`ValueError` for an expression that does not compile or that no text matches.

    Special tokens count as text here. One named in a Lark source is checked by the compiler, which
    knows the model's.
    """
    source = grammar.source if isinstance(grammar, Lark) else to_lark(grammar, {})
    if problem := compile_problem(source):
        place = r"line \1, column \2: " if isinstance(grammar, Lark) else ""
        raise ValueError(re.sub(r"^(?:at )?(\d+)\((\d+)\): ", place, problem))


def compile_problem(lark: str) -> str:
    """The engine's error for a grammar, without quoted lines; empty if there is none."""
    compiled = LLMatcher.grammar_from_lark(lark)
    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(_bytes_as_tokens(), compiled, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()
        return IMPOSSIBLE if matcher.is_error() else ""
    error = matcher.get_error()
    if "unknown special token" in error:
        error = LLMatcher.validate_grammar(compiled)
    return first_problem(error)


def first_problem(error: str) -> str:
    """The engine's error message, without quoted lines and stack."""
    return re.split(r"\n +\d+ \| |\n  while processing|\n<", error)[0].strip()


@cache
def _bytes_as_tokens() -> LLTokenizer:
    tokens = [*(bytes([i]) for i in range(_END)), b"<end>"]
    end = frozenset({_END})
    return grammar_tokenizer(
        Vocabulary(
            tokens=tokens,
            special_token_ids=end,
            end_token_ids=end,
            encode=lambda text: list(text.encode()),
        )
    )
